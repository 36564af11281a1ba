"""Speed of the scheduler's engine, compared with SimPy and on Philly's trace.

python benchmarks/engine_speed.py [--quick] [--json FILE] [--busy FILE]

`--busy FILE` measures the busy trace only and replaces its rows on the page. FILE holds one JSON
object per policy; policies in it are not measured again, so that an interrupted run continues.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bars import SOURCES, Bar, Page, Table, arguments, machine, markdown, publish, shown
from engine_measured import (
    BUSY_JOBS,
    KEEPS_UP,
    NOISE,
    REPEATS,
    SIZES,
    measured,
    measured_busy,
    measured_philly,
    peak_mb,
)
from engine_worlds import missing
from wattloop.schedule.policies.registry import POLICIES

HERE = Path(__file__).resolve()
FALLS_BEHIND = 32.0
"""How many times faster than recorded Philly's jobs arrive for a backlog."""
TEXT = """
Every row is a process of its own. Seconds are processor time inside the engine (`run`, the policy
included; reading files and setting up are not), the least of {repeats} runs up to 100,000 jobs and
one run above. Other programs on the same cores (see the load) make processor time longer.

**One-GPU jobs.** Poisson arrivals that keep 2,048 GPUs (256 nodes of eight) busy to 95%, first in,
first out. SimPy does the same twice: a process for each job, power integrated at every event,
energy per job, GPU time per user, the log of events. Once as the thesis describes its simulator
(5.3.2.1: a `Resource` for each GPU, a scheduler that collects the idle ones; woken by events here,
not every second), and once as lean as SimPy gets: one `Resource` whose own queue is the waiting
line. The lean one has no policy, no other placements, no preemption, and no place for them. All
three end every job at the same time, which is checked.

**Philly.** 82,247 jobs of Microsoft's trace on 2,490 GPUs of three types (scenario
`philly-gavel`), event-driven rounds. The policy chooses each job's GPUs (half, the same or twice
what it asked for), batch size, GPU type and power limit by least energy-delay product (Zeus with
caps): {options:.0f} placements for a job on average. As recorded the cluster keeps up; with
arrivals {speed:g} times as fast jobs pile up. `noisy`: estimates are off by up to {noise:.0%} for
each job and placement, so nothing that is computed for one job holds for the next.

**Busy.** {busy:,} jobs of 1 to 32 GPUs on 640 GPUs of three types, drawn by seed: a backlog every
day, a tenth with a deadline of twice the best run time, a power budget that is lower by day,
decisions every 30 s as Slurm's backfill makes them. Every policy.
"""


def main() -> int:
    parser = arguments("how fast the engine is")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "SIZE"), help="one figure, as JSON")
    parser.add_argument("--busy", metavar="FILE", type=Path, help="the busy trace only")
    args = parser.parse_args()
    if args.busy:
        _update_busy(args.docs / "engine_speed.md", _resumed(args.busy))
        return 0
    if args.measure:
        print(json.dumps(measured(args.measure[0], float(args.measure[1]))))
        return 0
    publish(_quick_page() if args.quick else _page(), args)
    return 0


def _page() -> Page:
    ours = {size: _in_a_process("fifo", size) for size in SIZES}
    theirs = {size: _in_a_process("simpy", size) for size in SIZES} if _has_simpy() else {}
    thesis = _in_a_process("thesis", SIZES[0]) if theirs else None
    _check_ends(ours, {**theirs, **({0: thesis} if thesis else {})})
    lacking = missing()
    traces = {} if lacking else {s: _in_a_process("philly", s) for s in (KEEPS_UP, FALLS_BEHIND)}
    why = f"{', '.join(lacking)} not there; name the folder with WATTLOOP_SHARED_DATA"
    noisy = None if lacking else _in_a_process("noisy", KEEPS_UP)
    busy = {name: _in_a_process(f"busy:{name}", BUSY_JOBS) for name in POLICIES}
    bars = [*_fifo_bars(ours, theirs, thesis), *_philly_bars(traces, noisy, why)]
    bars.append(_busy_bar(busy))
    every = [*ours.values(), *traces.values(), *([noisy] if noisy else []), *busy.values()]
    bars.append(Bar("peak_memory", max(each["peak_mb"] for each in every), "MB", 2000))
    options = traces[KEEPS_UP]["options"] if traces else float("nan")
    return Page(
        "engine_speed",
        "How fast the scheduler's engine is",
        bars,
        [_sizes(ours, theirs), *([_traces(traces, noisy)] if noisy else []), _busy(busy)],
        TEXT.format(
            repeats=REPEATS, options=options, speed=FALLS_BEHIND, noise=NOISE, busy=BUSY_JOBS
        ),
        packages=("wattloop", "numpy", *(("simpy",) if theirs else ())),
    )


def _check_ends(ours: Mapping[int, Any], theirs: Mapping[int, Any]) -> None:
    for size, found in theirs.items():
        if found["ends"] != ours[size or SIZES[0]]["ends"]:
            raise SystemExit(f"SimPy and the engine differ in when {size} jobs end")


def _fifo_bars(
    ours: Mapping[int, Any], theirs: Mapping[int, Any], thesis: Mapping[str, Any] | None
) -> list[Bar]:
    middle, small = SIZES[1], SIZES[0]
    per_job_us = [ours[size]["cpu_s"] / size * 1e6 for size in SIZES]
    simpy_s = theirs[middle]["cpu_s"] if theirs else "not installed"
    bars = [
        Bar("fifo_100000_jobs", ours[middle]["cpu_s"], "s", 1.5, {"simpy": simpy_s}),
        Bar(
            "flat_1e4_to_1e6", max(per_job_us) / min(per_job_us), "x", 2,
            note="the longest time per job over the shortest",
        ),
    ]  # fmt: skip
    if thesis:
        bars += [
            Bar(
                "times_as_fast_as_simpy",
                thesis["cpu_s"] / ours[small]["cpu_s"],
                "x",
                10,
                at_least=True,
                note="10,000 jobs, a `Resource` for each GPU as in the thesis",
            ),
            Bar(
                "times_as_fast_as_lean_simpy",
                theirs[middle]["cpu_s"] / ours[middle]["cpu_s"],
                "x",
                note="100,000 jobs, one `Resource` for all GPUs and no policy to ask",
            ),
        ]
    return bars


def _philly_bars(
    traces: Mapping[float, Any], noisy: Mapping[str, Any] | None, why: str
) -> list[Bar]:
    if noisy is None:
        names = ("philly_keeps_up", "philly_backlog", "philly_noisy")
        return [Bar(name, None, "s", note=why) for name in names]
    backlog = traces[FALLS_BEHIND]["backlog"]
    return [
        Bar("philly_keeps_up", traces[KEEPS_UP]["cpu_s"], "s", 10),
        Bar(
            "philly_backlog",
            traces[FALLS_BEHIND]["cpu_s"],
            "s",
            60,
            note=f"up to {backlog:,} jobs wait",
        ),
        Bar(
            "philly_noisy",
            noisy["cpu_s"],
            "s",
            note=f"arrivals as recorded, estimates off by up to {NOISE:.0%}",
        ),
    ]


def _sizes(ours: Mapping[int, Any], theirs: Mapping[int, Any]) -> Table:
    rows = [
        [
            f"{size:,}",
            shown(ours[size]["cpu_s"]),
            shown(ours[size]["cpu_s"] / size * 1e6),
            shown(ours[size]["peak_mb"]),
            shown(theirs[size]["cpu_s"] if theirs else None),
            shown(theirs[size]["cpu_s"] / size * 1e6 if theirs else None),
            shown(theirs[size]["peak_mb"] if theirs else None),
        ]
        for size in SIZES
    ]
    header = ["jobs", "s", "us a job", "peak MB", "lean SimPy: s", "us a job", "peak MB"]
    return Table("One-GPU jobs, first in, first out", header, rows)


def _traces(traces: Mapping[float, Any], noisy: Mapping[str, Any]) -> Table:
    named = {f"{speed:g}x": found for speed, found in traces.items()}
    rows = [
        [
            name, found["jobs"], found["done"], found["backlog"], found["cpu_s"],
            found["cpu_s"] / found["jobs"] * 1e6, found["peak_mb"],
        ]
        for name, found in {**named, f"{KEEPS_UP:g}x, noisy": noisy}.items()
    ]  # fmt: skip
    header = ["arrivals", "jobs", "done", "most waiting", "s", "us a job", "peak MB"]
    return Table("Philly, least energy-delay product over all placements and caps", header, rows)


def _busy_bar(busy: Mapping[str, Any]) -> Bar:
    slowest = max(busy, key=lambda name: float(busy[name]["cpu_s"]))
    lacking = [name for name in POLICIES if name not in busy]
    note = f"it is {slowest}" + (f"; not measured: {', '.join(lacking)}" if lacking else "")
    return Bar("busy_slowest_policy", busy[slowest]["cpu_s"], "s", 60, note=note)


def _resumed(path: Path) -> dict[str, Any]:
    """Measure the policies that the file lacks and append them to it."""
    lines = path.read_text().splitlines() if path.exists() else []
    known = {each["policy"]: each for each in map(json.loads, lines)}
    for name in POLICIES:
        if name not in known:
            known[name] = {"policy": name, **_in_a_process(f"busy:{name}", BUSY_JOBS)}
            with path.open("a") as file:
                file.write(json.dumps(known[name]) + "\n")
    return {name: known[name] for name in POLICIES}


def _update_busy(path: Path, busy: Mapping[str, Any]) -> None:
    """Replace the paragraph, the bar, its note and the table of the busy trace on the page."""
    begin = TEXT.index("**Busy.**")
    paragraph = TEXT[begin:].strip().format(busy=BUSY_JOBS)
    table = replace(_busy(busy), text=f"Measured on {datetime.now(UTC):%Y-%m-%d}: {machine()}.")
    new = markdown(Page("engine_speed", "", [_busy_bar(busy)], [table], paragraph))
    _, _, _, new_text, new_bars, new_note, *new_table = new.split("\n\n")
    old = path.read_text()
    parts = old.split(f"\n\n## {table.title}")[0].rstrip("\n").split("\n\n")
    footers = [said for said in SOURCES.values() if said in old]
    name = "busy_slowest_policy"
    parts = [each for each in parts if not each.startswith(("**Busy.**", f"- `{name}`"))]
    place = next(n for n, each in enumerate(parts) if each.startswith("|  | unit |"))
    rows = [row for row in parts[place].splitlines() if not row.startswith(f"| {name} |")]
    columns = rows[0].count("|") - 1
    row = new_bars.splitlines()[-1] + "  |" * (columns - (new_bars.splitlines()[0].count("|") - 1))
    rows.insert(len(rows) - 1, row)  # before the memory of all
    parts[place : place + 1] = [new_text, "\n".join(rows), new_note]
    new_table = [each.strip() for each in new_table if each.strip() not in footers]
    path.write_text("\n\n".join([*parts, *new_table, *footers]).rstrip("\n") + "\n")


def _busy(busy: Mapping[str, Any]) -> Table:
    rows = [
        [
            name, found["jobs"], found["done"], found["backlog"], found["cpu_s"],
            found["cpu_s"] / found["jobs"] * 1e6, found["peak_mb"], found["over_budget_s"],
        ]
        for name, found in busy.items()
    ]  # fmt: skip
    header = [
        *("policy", "jobs", "done", "most waiting", "s", "us a job", "peak MB", "s over budget"),
    ]
    return Table("Busy: deadlines, wide jobs, a budget by the hour", header, rows)


def _quick_page() -> Page:
    found = measured("fifo", 2000)
    bars = [Bar("fifo_2000_jobs", found["cpu_s"], "s")]
    if _has_simpy():
        theirs = measured("simpy", 2000)
        if theirs["ends"] != found["ends"]:
            raise SystemExit("SimPy and the engine differ in when 2000 jobs end")
        bars.append(Bar("times_as_fast_as_simpy", theirs["cpu_s"] / found["cpu_s"], "x"))
    if not missing():
        bars.append(Bar("philly_first_1000", measured_philly(KEEPS_UP, 1000)["cpu_s"], "s"))
    busy_s = max(measured_busy(name, 300)["cpu_s"] for name in POLICIES)
    bars.append(Bar("busy_slowest_policy", busy_s, "s", note="300 jobs"))
    bars.append(Bar("peak_memory", peak_mb(), "MB", 2000))
    return Page("engine_speed", "How fast the scheduler's engine is", bars)


def _in_a_process(what: str, size: float) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(HERE), "--measure", what, str(size)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _has_simpy() -> bool:
    return importlib.util.find_spec("simpy") is not None


if __name__ == "__main__":
    sys.exit(main())
