"""`wattloop bench`: time and energy of six kernels across frameworks and parallel styles."""

import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import typer

from wattloop.bench.idle import IdleByThreads, IdleLines, idle_by_threads, idle_line
from wattloop.bench.plan import BenchPlan, BenchRequest, make_plan, split_words, usable_cpus
from wattloop.bench.record import BenchRecord, BenchRecorder, stored_record
from wattloop.bench.result import KernelResult
from wattloop.bench.roofline import roofline
from wattloop.bench.runner import TIMEOUT_S, KernelBench
from wattloop.bench.speedups import threads_stop_paying
from wattloop.bench.tables import (
    csv_table,
    frameworks_table,
    idle_table,
    kernels_table,
    speedups_table,
)
from wattloop.cli.app import MeterOptions, Verb
from wattloop.cli.options import file_option, option
from wattloop.cli.output import print_rows, print_table, say, write_json
from wattloop.cli.progress import BAR_WIDTH, is_redrawable, updated_row, warn_if_busy
from wattloop.core.errors import ConfigError, StoreError
from wattloop.core.files import user_path
from wattloop.core.records import picked
from wattloop.core.results import RunStatus
from wattloop.core.settings import Settings
from wattloop.core.table import Table
from wattloop.core.units import format_bytes, format_duration
from wattloop.kernels.registry import BACKENDS, FURTHER, KERNELS, backend_named
from wattloop.measure.session import Session
from wattloop.store.database import open_store
from wattloop.store.formats.table_files import Target
from wattloop.store.formats.table_files import write_csv_file as write_csv

TABLES = ("kernels", "speedups", "frameworks", "idle")


def show(record: BenchRecord, wanted: Sequence[str] = (), space: float | None = None) -> None:
    """Print tables to standard output and remarks to standard error."""
    for name in wanted or _usual(record):
        table = _table(name, record, space)
        if table.rows:
            print_table(table)
            sys.stdout.write("\n")
        else:
            say(f"wattloop: nothing for the table '{name}'")
    for line in remarks(record):
        say(f"wattloop: {line}")


def remarks(record: BenchRecord) -> list[str]:
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
    lines += _not_counted(record.results)
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


def _not_counted(results: Sequence[KernelResult]) -> list[str]:
    """Say why IPC or the memory volume are missing, and what the volume is taken from."""
    lines = []
    for result in results:
        why = result.not_counted
        for name, events in (("IPC", ("cycles", "instructions")), ("memory volume", ("memory_b",))):
            known = result.ipc if name == "IPC" else result.memory_b
            reason = next((why[event] for event in (*events, "cache_misses") if event in why), "")
            if known is None and reason:
                lines.append(f"{name} not counted: {reason}")
        if "cache_misses" in result.counts and "memory_b" not in result.counts:
            lines.append("memory volume: misses of the last cache x 64 B, without prefetches")
    return lines


def list_kernels(json_file: str | None) -> None:
    """List kernels with their counts and sizes, and frameworks with their install commands."""
    write_json(_listing(), json_file)
    if json_file == "-":
        return
    listing = _listing()
    print_rows(
        ("kernel", "computes", "size is", *KERNELS["gemm"].sizes),
        [
            (k["name"], k["equation"], k["size_means"], *map(str, k["sizes"].values()))
            for k in listing["kernels"]
        ],
    )
    sys.stdout.write("\n")
    print_rows(
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
    """Return the facts that the numbers depend on, without the host's name."""
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


def _table(name: str, record: BenchRecord, space: float | None) -> Table:
    if name == "idle":
        return idle_table(record.idle_by_threads)
    makers: dict[str, Callable[[Sequence[KernelResult]], Table]] = {
        "kernels": kernels_table,
        "speedups": speedups_table,
        "frameworks": partial(frameworks_table, space=space),
    }
    return makers[name](record.results)


def _listing() -> dict[str, Any]:
    return {
        "kernels": [
            picked(kind, "name equation size_means")
            | {"sizes": dict(kind.sizes), "dtypes": list(kind.dtypes)}
            for kind in (KERNELS | FURTHER).values()
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


Tell = Callable[[str, KernelResult | None], None]


def measured(
    choice: BenchRequest, settings: Settings, how_idle: str, timeout_s: float
) -> BenchRecord:
    """Measure all chosen kernels in one stored run whose curve shows kernel after kernel."""
    session = Session.open(settings, name="bench", in_process=False)
    status = RunStatus.FAILED
    try:
        record = _watched(make_plan(choice, session.host), session, how_idle, timeout_s)
        status = RunStatus.FINISHED
    finally:
        session.close(status)
    return record


def _watched(plan: BenchPlan, session: Session, how_idle: str, timeout_s: float) -> BenchRecord:
    for item in plan.left_out:
        say(f"wattloop: left out: {item.what}: {item.reason}")
    warn_if_busy(
        session, "times will be longer, and energy that others use is counted; stop what else runs"
    )
    with _keeper(plan, session) as keeper, _progress(plan) as tell:
        rows, idle = _idle(plan, session, how_idle, tell)

        def listen(text: str, result: KernelResult | None) -> None:
            tell(text, result)
            if result is not None and keeper is not None:
                keeper.add(result)

        bench = KernelBench(plan, session, idle, listen, timeout_s)
        bench.run()
        record = BenchRecord(
            results=bench.results,
            left_out=[{"what": o.what, "reason": o.reason} for o in plan.left_out],
            idle=idle.to_dict(),
            idle_by_threads=rows,
            machine=machine_facts(session),
            missing=[picked(missing, "name reason") for missing in session.missing],
            warnings=[*idle.warnings, *session.notes, *(keeper.warnings if keeper else ())],
            experiment_id=keeper.experiment_id if keeper else None,
        )
        if keeper is not None:
            keeper.end("finished", record)
    return record


def _idle(
    plan: BenchPlan, session: Session, how: str, tell: Tell
) -> tuple[list[IdleByThreads], IdleLines]:
    if how != "threads":
        tell("what this machine draws when idle", None)
        return [], idle_line(session, how, plan.choice.device.kind, lambda: None)
    most = len(usable_cpus())
    doubling = [2**power for power in range(most.bit_length()) if 2**power <= most]
    counts = plan.choice.threads or tuple(doubling)
    tell(f"idle with {', '.join(map(str, counts))} sleeping threads", None)
    rows, lines = idle_by_threads(session, counts, lambda: None)
    return rows, IdleLines(lines, "idle line fitted over windows of sleeping threads")


@contextmanager
def _keeper(plan: BenchPlan, session: Session) -> Iterator[BenchRecorder | None]:
    try:
        store = open_store(session.settings.store_location)
    except StoreError as error:
        say(f"wattloop: warning: results will not be kept: {error}")
        yield None
        return
    with store:
        keeper = BenchRecorder(store, plan, session.clock.wall_s())
        try:
            yield keeper
        except BaseException:
            keeper.end("interrupted")
            raise


@contextmanager
def _progress(plan: BenchPlan) -> Iterator[Tell]:
    about = f"{plan.measurements} measurements, about {format_duration(plan.expected_s)}"
    if not is_redrawable():
        say(f"wattloop: {about}")
        yield _plain_progress
        return
    from rich.progress import BarColumn, TimeRemainingColumn

    columns = (BarColumn(BAR_WIDTH), TimeRemainingColumn(), "{task.description}")
    with updated_row(lambda: columns) as update:
        update(total=plan.measurements, description=about)
        yield lambda text, result: update(**({"advance": 1} if result else {"description": text}))


def _plain_progress(text: str, result: KernelResult | None) -> None:
    if text.endswith(": starting"):
        say(f"wattloop: {text.removesuffix(': starting')}")


IDLE = ("auto", "stored", "fit", "threads", "none")
USAGE_ERROR = 2
app = Verb()


@app.command(
    "bench",
    example="wattloop bench --kernels gemm,triad --backends numpy,torch\n"
    "wattloop bench -o kernels.csv",
)
def bench(  # noqa: PLR0913 - one parameter per option
    *,
    kernels: str = option("--kernels -k LIST", "Such as gemm,triad.", ""),
    backends: str = option("--backends -b LIST", "Such as numpy,torch.", ""),
    styles: str = option("--styles LIST", "Such as scalar,simd or compiled.", ""),
    threads: str = option("--threads LIST", "CPU threads, such as 1,2,4.", ""),
    sizes: str = option("--sizes LIST", "Such as small, or gemm=4096,triad=1e8.", ""),
    dtype: str = option("--dtype", "Number format: fp64, fp32, tf32, bf16 or fp16.", "fp32"),
    device: str = option("--device", "cpu, gpu or gpu:N (default: a GPU if there is one).", ""),
    seconds: float | None = option("--seconds -s", "Measured seconds per kernel."),
    idle: str = option("--idle", "What to subtract: auto, stored, fit, threads, none.", "auto"),
    timeout: float = option("--timeout", "Most seconds for one kernel.", TIMEOUT_S, min=1),
    tables: str = option("--tables LIST", f"Of {','.join(TABLES)}, or all.", ""),
    space: float | None = option(
        "--space", "Rack units or m2 of the machine, for SWaP in the table 'frameworks'."
    ),
    listing: bool = option("--list", "Show kernels, sizes and frameworks, and end."),
    kept: str | None = option("--show ID", "Show an earlier session; 'last' is the newest."),
    csv_file: str | None = file_option("--csv -o FILE", "Write the results as CSV."),
    figures: str | None = option("--figures DIR", "Draw the roofline there."),
    given: MeterOptions,
) -> None:
    """Run six kernels on every installed framework; report their speed and energy.

    Results are checked, kernels run in processes of their own, and energy is read from outside.
    """
    if figures is not None:
        from wattloop.report.figures.render import needs_libraries

        needs_libraries()
    wanted = _tables(tables)
    settings = given.settings()
    if listing:
        list_kernels(given.json_file)
        return
    if kept is not None:
        _give(_kept(settings, kept), wanted, given.json_file, csv_file, figures, space)
        return
    if idle not in IDLE:
        raise ConfigError(f"--idle {idle}: use {', '.join(IDLE)}")
    choice = BenchRequest.of(
        kernels=kernels,
        backends=backends,
        styles=styles,
        threads=threads,
        sizes=sizes,
        dtype=dtype,
        device=device,
        seconds=seconds,
    )
    record = measured(choice, settings, idle, timeout)
    _give(record, wanted, given.json_file, csv_file, figures, space)
    if not any(r.ok for r in record.results):
        raise typer.Exit(USAGE_ERROR)


def _kept(settings: Settings, reference: str) -> BenchRecord:
    with open_store(settings.store_location) as store:
        return stored_record(store, reference)


def _tables(text: str) -> list[str]:
    wanted = split_words(text)
    unknown = [name for name in wanted if name not in (*TABLES, "all")]
    if unknown:
        raise ConfigError(f"--tables {unknown[0]}: known are {', '.join(TABLES)}, all")
    return list(TABLES) if "all" in wanted else wanted


def _give(
    record: BenchRecord,
    wanted: list[str],
    json_file: str | None,
    csv_file: str | None,
    figures: str | None,
    space: float | None,
) -> None:
    if "-" not in (json_file, csv_file):
        show(record, wanted, space)
    write_json(record.to_dict(), json_file)
    if csv_file is not None:
        write_csv(csv_table(record.results), Target(csv_file, "--csv"))
    if figures is not None:
        _draw(record, figures)


def _draw(record: BenchRecord, folder: str) -> None:
    from wattloop.report.figures.render import save
    from wattloop.report.figures.roofline import roofline_figures

    charts = roofline_figures(record.results)
    if not charts:
        say("wattloop: no figure: the roofline needs gemm and triad among the kernels")
        return
    for path in save(charts, user_path(folder), title="Kernels under their roof"):
        say(f"wattloop: wrote {path}")
