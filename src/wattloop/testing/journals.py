"""Journals in the format of a live run, for tests."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, WindowResult
from wattloop.store.journal import Journal, JournalWriter

STARTED_S = 1_000.0
STARTED_WALL_S = 1_800_000_000.0

FEEDS: list[dict[str, Any]] = [
    {
        "meter": "rapl",
        "domains": [
            {
                "name": "cpu:0/package",
                "kind": "counter",
                "scope": "cpu",
                "source": "powercap intel-rapl:0",
                "provenance": "measured",
                "wrap_j": 262_143.3,
            }
        ],
        "signals": [],
    },
    {
        "meter": "nvml",
        "domains": [
            {
                "name": "gpu:0",
                "kind": "gauge",
                "scope": "gpu",
                "source": "NVML power",
                "provenance": "measured",
            }
        ],
        "signals": [{"name": "gpu:0/utilisation", "unit": "fraction"}],
    },
]


def header(run_id: str, **changes: Any) -> dict[str, Any]:
    """The header of a run of `python train.py`, with `changes`."""
    return {
        "run_id": run_id,
        "name": "train",
        "command": ["python", "train.py"],
        "kind": "command",
        "started_wall_s": STARTED_WALL_S,
        "started_s": STARTED_S,
        "boot_id": "boot",
        "host": "node1",
        "machine_id": "machine",
        "pid": 4242,
        "user": "ada",
        "cwd": "/home/ada",
        "python": "3.12.1",
        "version": "0.1.0",
        "settings": {"interval_s": 0.1},
        "tags": {},
        "job": None,
        "parent_run_id": None,
        "feeds": FEEDS,
        "missing": [{"name": "dram", "reason": "no DRAM domain", "remedy": ""}],
    } | changes


def root_window(
    cpu_j: float | None = 500.0, gpu_j: float | None = 3_000.0, duration_s: float = 10.0
) -> WindowResult:
    """The root window of that run."""
    parts = (("cpu:0/package", Scope.CPU, cpu_j), ("gpu:0", Scope.GPU, gpu_j))
    return WindowResult(
        name="train",
        window_id=0,
        parent_id=None,
        begin_s=STARTED_S,
        end_s=STARTED_S + duration_s,
        domains=tuple(
            DomainEnergy(
                name=name,
                scope=scope,
                energy_j=energy_j,
                uncertainty_j=0.01 * (energy_j or 0.0),
                provenance=Provenance.MEASURED,
                source="test",
            )
            for name, scope, energy_j in parts
        ),
    )


def ended(result: WindowResult | None = None, **changes: Any) -> dict[str, Any]:
    """The end of a run that went well, with `changes`."""
    root = root_window() if result is None else result
    return {
        "type": "end",
        "time_s": root.end_s,
        "wall_s": STARTED_WALL_S + root.duration_s,
        "status": "finished",
        "exit_code": 0,
        "signal": None,
        "result": root.to_dict(),
        "accounting": None,
        "counted": True,
        "counted_by": None,
    } | changes


def write_journal(
    folder: Path,
    run_id: str,
    *,
    seconds: float = 10.0,
    head: dict[str, Any] | None = None,
    events: Sequence[dict[str, Any]] = (),
    end: dict[str, Any] | None = None,
) -> Path:
    """A whole journal of `seconds` at 10 Hz: 50 W of CPU as a counter, 300 W of GPU as a gauge.

    Without `end` it is that of a run whose writer died.
    """
    path = folder / f"{run_id}.journal"
    writer = JournalWriter(path, head or header(run_id))
    for second in range(int(seconds)):
        times_s = array("d", [STARTED_S + second + i / 10 for i in range(10)])
        joules = array("d", [50.0 * (t - STARTED_S) for t in times_s])
        writer.samples(0, 1, times_s, joules)
        writer.samples(1, 1, times_s, array("d", [300.0] * 10))
        writer.samples(1_001, 1, times_s, array("d", [0.9] * 10))
    for event in events:
        writer.event(event)
    if end is not None:
        writer.end(end)
    writer.close()
    return path


def close_journal(journal: Journal) -> dict[str, Any]:
    """A simple way to end a run that died: counters by their difference, gauges by their mean."""
    feeds = journal.header["feeds"]
    parts = []
    last_s = journal.header["started_s"]
    for feed, description in enumerate(feeds):
        blocks = [block for block in journal.blocks if block.feed == feed]
        times_s = [t for block in blocks for t in block.times_s]
        values = [v for block in blocks for v in block.values]
        if not times_s:
            continue
        last_s = max(last_s, times_s[-1])
        domain = description["domains"][0]
        span_s = times_s[-1] - times_s[0]
        counter = domain["kind"] == "counter"
        parts.append(
            DomainEnergy(
                name=domain["name"],
                scope=Scope(domain["scope"]),
                energy_j=values[-1] - values[0] if counter else span_s * sum(values) / len(values),
                uncertainty_j=1.0,
                provenance=Provenance(domain["provenance"]),
                source=domain["source"],
            )
        )
    root = WindowResult(
        name=journal.header["name"],
        window_id=0,
        parent_id=None,
        begin_s=journal.header["started_s"],
        end_s=last_s,
        domains=tuple(parts),
    )
    return {"status": "died", "time_s": last_s, "result": root.to_dict()}
