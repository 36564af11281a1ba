"""Bytes per sample, and time to import and to open, for a day at 10 Hz and for 50 million samples.

    python benchmarks/store_size.py [--json FILE] [--hours 24] [--samples 50e6]

The day is that of a node with two CPU packages (counters, RAPL's 61 uJ steps), DRAM, four GPUs
(gauges in milliwatts) and the GPUs' utilisation and temperature, with noise and phases, sampled
with a jitter of 80 us. The 50 million samples are as many such days as it takes, written for
real unless `--extrapolate` is given.
"""

from __future__ import annotations  # array[float] cannot be evaluated before Python 3.12

import argparse
import json
import random
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wattloop.store.database import Store, open_store
from wattloop.store.journal import JournalWriter, SampleBlock
from wattloop.store.journal_import import import_journal
from wattloop.store.runs import RunRecord, find_run, insert_rows_in, insert_run_in, list_runs
from wattloop.store.sample_queries import read_curve, read_samples
from wattloop.store.samples import find_series, pack_samples, series_of
from wattloop.testing.journals import ended, header, root_window

RAPL_STEP_J = 2.0**-14


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the figures there; '-' is stdout")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--samples", type=float, default=50e6)
    parser.add_argument("--extrapolate", action="store_true", help="do not write them for real")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bars = measure(Path(folder), options)
    for bar in bars:
        note = "" if bar["bar"] is None else f"   (bar {bar['bar']:g})"
        print(f"{bar['name']:28} {bar['value']:12.3f} {bar['unit']}{note}", file=sys.stderr)
    text = json.dumps({"bars": bars}, indent=2)
    if options.json == "-":
        print(text)
    elif options.json:
        Path(options.json).write_text(text + "\n")


def measure(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    feeds = describe()
    count = int(options.hours * 36_000)
    blocks = record(feeds, count)
    values = sum(len(block.values) for block in blocks)
    with open_store(folder / "runs.db") as store:
        path = write(store, "day", feeds, blocks)
        journal_b = path.stat().st_size
        fold_s = timed(lambda: import_journal(store, path, lambda journal: {}))
        day_b = size_b(folder)
        series = find_series(find_run(store, "day").feeds, "gpu:0")
        list_s = best(lambda: list_runs(store, limit=20))
        curve_s = best(lambda: read_curve(store, "day", series, max_points=2_000))
        hour_s = best(lambda: read_curve(store, "day", series, span=(50_000.0, 53_600.0)))
        raw_s = best(lambda: read_samples(store, "day", series))
        bars = [
            bar("samples_per_day", values, "samples"),
            bar("bytes_per_sample", day_b / values, "B", 3.0, journal=journal_b / values),
            bar("day_store_mb", day_b / 1e6, "MB", journal=journal_b / 1e6),
            bar("day_fold_s", fold_s, "s"),
            bar("fold_us_per_sample", fold_s / values * 1e6, "us"),
            bar("list_ms", list_s * 1e3, "ms"),
            bar("open_day_curve_ms", curve_s * 1e3, "ms", 100.0, raw=raw_s * 1e3),
            bar("open_hour_curve_ms", hour_s * 1e3, "ms", 500.0),
        ]
        days = max(1, round(options.samples / values))
        if options.extrapolate:
            return [*bars, bar("samples_50m_mb", day_b / values * options.samples / 1e6, "MB")]
        begun_s = time.perf_counter()
        for number in range(1, days):
            run = RunRecord(run_id=f"day{number}", feeds=feeds, result=root_window())
            packed = pack_samples(run.run_id, feeds, blocks)
            with store.writing() as connection:
                insert_run_in(connection, run)
                insert_rows_in(connection, packed)
        total_s = time.perf_counter() - begun_s + fold_s
        last = f"day{days - 1}" if days > 1 else "day"
        curve_s = best(lambda: read_curve(store, last, series, max_points=2_000))
        return [
            *bars,
            bar("samples_50m_count", values * days, "samples"),
            bar("samples_50m_mb", size_b(folder) / 1e6, "MB"),
            bar("samples_50m_write_s", total_s, "s"),
            bar("samples_50m_open_curve_ms", curve_s * 1e3, "ms", 100.0),
        ]


def describe() -> list[dict[str, Any]]:
    """Return the streams of the node, as in a journal's header."""

    def domain(name: str, kind: str, scope: str) -> dict[str, Any]:
        wrap_j = 262_143.3 if kind == "counter" else None
        common = {"source": "benchmark", "provenance": "simulated", "wrap_j": wrap_j}
        return {"name": name, "kind": kind, "scope": scope} | common

    cpu = [domain(f"cpu:{i}/package", "counter", "cpu") for i in range(2)]
    gpus = [domain(f"gpu:{i}", "gauge", "gpu") for i in range(4)]
    signals = [
        {"name": f"gpu:{i}/{name}", "unit": unit}
        for i in range(4)
        for name, unit in (("utilisation", "fraction"), ("temperature", "degC"))
    ]
    dram = domain("dram", "counter", "dram")
    return [
        {"meter": "rapl", "domains": [*cpu, dram], "signals": []},
        {"meter": "nvml", "domains": gpus, "signals": signals},
    ]


def record(feeds: list[dict[str, Any]], count: int) -> list[SampleBlock]:
    """Return one block per stream with `count` readings of each series."""
    dice = random.Random(1)
    grouped: dict[int, list[Callable[[], float]]] = {}
    for series in series_of(feeds):
        if series.kind == "counter":
            source = counter(dice, 12.0 if series.name == "dram" else 90.0)
        elif series.kind == "gauge":
            source = gauge(dice)
        else:
            source = signal(dice, series.name)
        grouped.setdefault(series.feed, []).append(source)
    blocks = []
    for feed, sources in grouped.items():
        times_s = array("d", [10_000.0 + i / 10 + dice.expovariate(12_500) for i in range(count)])
        readings = array("d", [source() for _ in range(count) for source in sources])
        blocks.append(SampleBlock(feed, len(sources), times_s, readings))
    return blocks


def counter(dice: random.Random, mean_w: float) -> Callable[[], float]:
    state = {"w": mean_w, "j": dice.uniform(0, 200_000)}

    def read() -> float:
        state["w"] += 0.05 * (mean_w - state["w"]) + dice.gauss(0, 0.03 * mean_w)
        state["j"] = (state["j"] + max(1.0, state["w"]) * 0.1) % 262_143.3
        # the sensor counts steps of 61 uJ, the kernel shows whole microjoules
        return int(int(state["j"] / RAPL_STEP_J) * RAPL_STEP_J * 1e6) * 1e-6

    return read


def gauge(dice: random.Random) -> Callable[[], float]:
    state = {"w": 300.0, "busy": True}

    def read() -> float:
        if dice.random() < 0.002:
            state["busy"] = not state["busy"]
        goal_w = 620.0 if state["busy"] else 80.0
        state["w"] += 0.3 * (goal_w - state["w"]) + dice.gauss(0, 9.0 if state["busy"] else 0.4)
        return int(max(30.0, state["w"]) * 1_000) / 1_000

    return read


def signal(dice: random.Random, name: str) -> Callable[[], float]:
    if name.endswith("temperature"):
        state = {"c": 55.0}

        def read_c() -> float:
            state["c"] = min(90.0, max(30.0, state["c"] + dice.gauss(0, 0.2)))
            return float(int(state["c"]))

        return read_c
    return lambda: dice.choice((0.96, 0.97, 0.98, 0.99, 1.0))


def write(store: Store, run_id: str, feeds: list[Any], blocks: list[SampleBlock]) -> Path:
    """Write the journal of a run with these samples, a second at a time like the sampler."""
    path = store.journals / f"{run_id}.journal"
    writer = JournalWriter(path, header(run_id, feeds=feeds))
    for block in blocks:
        for begin in range(0, len(block.times_s), 10):
            readings = block.values[begin * block.width : (begin + 10) * block.width]
            writer.samples(block.feed, block.width, block.times_s[begin : begin + 10], readings)
    writer.end(ended())
    writer.close()
    return path


def timed(work: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    work()
    return time.perf_counter() - begun_s


def best(work: Callable[[], object], times: int = 5) -> float:
    return min(timed(work) for _ in range(times))


def size_b(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("runs.db"))


def bar(
    name: str, value: float, unit: str, limit: float | None = None, **baselines: float
) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "bar": limit, "baselines": baselines}


if __name__ == "__main__":
    main()
