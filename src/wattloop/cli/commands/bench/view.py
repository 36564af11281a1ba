"""What `bench` prints."""

import platform
import sys
from collections.abc import Sequence
from typing import Any

from wattloop.bench.record import BenchRecord
from wattloop.bench.roofline import roofline
from wattloop.bench.speedups import threads_stop_paying
from wattloop.bench.tables import (
    BenchTable,
    frameworks_table,
    idle_table,
    kernels_table,
    speedups_table,
)
from wattloop.cli.output import print_table, say, write_json
from wattloop.core.units import format_bytes
from wattloop.kernels.registry import BACKENDS, KERNELS, backend_named
from wattloop.measure.session import Session

TABLES = ("kernels", "speedups", "frameworks", "idle")


SPARE = ("how", "of roof", "EDP J s", "FLOP/B", "size", "against", "less RAM J")


def show(record: BenchRecord, wanted: Sequence[str] = ()) -> None:
    """Tables on standard output, remarks on standard error."""
    for name in wanted or _usual(record):
        table = _table(name, record)
        if table.rows:
            print_table(table.headers, table.rows, table.title, spare=SPARE)
            sys.stdout.write("\n")
        else:
            say(f"wattloop: nothing for the table '{name}'")
    for line in remarks(record):
        say(f"wattloop: {line}")


def remarks(record: BenchRecord) -> list[str]:
    """What a reader of the tables has to know."""
    lines = []
    peaks, _ = roofline(record.results)
    for peak in peaks:
        if peak.gflops is not None and peak.gb_s is not None:
            lines.append(
                f"{peak.device} {peak.dtype}: roof {peak.gflops:,.0f} GFLOPS "
                f"({peak.gflops_from} gemm) and {peak.gb_s:,.1f} GB/s ({peak.gb_s_from} triad), "
                f"meeting at {peak.ridge_flop_per_b:.3g} FLOP/B"
            )
    lines += [
        f"{s.kernel}, {s.backend} {s.style}: {s.text}" for s in threads_stop_paying(record.results)
    ]
    peak_b = max((r.peak_memory_b or 0 for r in record.results), default=0)
    if peak_b:
        lines.append(f"peak memory of a worker: {format_bytes(peak_b)}")
    if record.idle.get("note"):
        lines.append(str(record.idle["note"]))
    for result in record.results:
        if not result.ok:
            lines.append(
                f"{result.status}: {result.kernel} {result.size}, {result.backend} "
                f"{result.style}: {result.reason}"
            )
    unread = [r.scope for r in record.results if r.ok and r.scope not in r.scopes]
    if unread:
        lines.append(f"energy of the {unread[0]} was not read; see 'wattloop devices'")
    return [*dict.fromkeys(lines), *dict.fromkeys(f"warning: {w}" for w in record.warnings)]


def list_kernels(json_file: str | None) -> None:
    """Kernels with their counts and sizes; frameworks with what adds them."""
    if json_file is not None:
        write_json(_listing(), json_file)
    if json_file == "-":
        return
    listing = _listing()
    print_table(
        ("kernel", "computes", "size is", *KERNELS["gemm"].sizes),
        [
            (k["name"], k["equation"], k["size_means"], *map(str, k["sizes"].values()))
            for k in listing["kernels"]
        ],
    )
    sys.stdout.write("\n")
    print_table(
        ("backend", "devices", "styles", "formats", "here"),
        [
            (
                b["name"],
                ", ".join(b["devices"]),
                ", ".join(b["styles"]),
                ", ".join(b["dtypes"]),
                b["missing"] or "yes",
            )
            for b in listing["backends"]
        ],
    )


def machine_facts(session: Session) -> dict[str, Any]:
    """What the numbers depend on; nothing that names the host."""
    text = session.host.read_text("proc", "cpuinfo") or ""
    names = [
        line.partition(":")[2].strip()
        for line in text.splitlines()
        if line.startswith(("model name", "Model"))
    ]
    return {
        "processor": names[0] if names else platform.machine(),
        "cpus": len(names),
        "python": platform.python_version(),
        "linux": platform.release(),
        "started_wall_s": session.started_wall_s,
        "run_id": session.run_id,
    }


def _usual(record: BenchRecord) -> list[str]:
    names = ["kernels"]
    if any(r.ok and r.scope == "gpu" for r in record.results):
        names.append("frameworks")
    elif len(speedups_table(record.results).rows) > 1:
        names.append("speedups")
    return [*names, "idle"] if record.idle_by_threads else names


def _table(name: str, record: BenchRecord) -> BenchTable:
    if name == "idle":
        return idle_table(record.idle_by_threads)
    makers = {
        "kernels": kernels_table,
        "speedups": speedups_table,
        "frameworks": frameworks_table,
    }
    return makers[name](record.results)


def _listing() -> dict[str, Any]:
    return {
        "kernels": [
            {
                "name": kind.name,
                "equation": kind.equation,
                "size_means": kind.size_means,
                "sizes": dict(kind.sizes),
                "dtypes": list(kind.dtypes),
            }
            for kind in KERNELS.values()
        ],
        "backends": [
            {
                "name": backend.name,
                "devices": list(backend.devices),
                "styles": list(backend.styles),
                "dtypes": list(backend.dtypes),
                "missing": backend.missing(),
                "methods": dict(backend.methods),
            }
            for backend in map(backend_named, BACKENDS)
        ],
    }
