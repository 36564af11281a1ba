"""Two hundred jobs on a real Slurm under four schedulers, compared with the simulator.

    python benchmarks/slurm_replay.py [--speedup 180] [--jobs 200] [--json FILE] [--quick]

Starts a Slurm of its own: 4 nodes with 4 fake GPUs each, on this machine, with virtual power. Needs
root and Slurm (Debian: slurm-wlm slurm-wlm-basic-plugins munge). About four minutes per scheduler.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bars import Bar, Page, Table, arguments, publish
from support.slurm_lab import SlurmLab, why_no_slurm
from wattloop.schedule.driver.managed_cluster import DriverSettings
from wattloop.schedule.scenarios.file import load_scenario
from wattloop.schedule.slurm.client import SlurmClient
from wattloop.schedule.slurm.replay.plan import replay_plan
from wattloop.schedule.slurm.replay.runner import (
    OWN,
    SAME_POWER,
    ReplayDriver,
    ReplayResult,
    replay,
)

BUDGET_W = 4_500.0
OFF = 10.0
SAMPLES_PER_S = 5.0
SCHEDULERS = {
    "fifo": ("sched/builtin", OWN),
    "stock backfill": ("sched/backfill", OWN),
    "zeus": ("sched/backfill", "zeus"),
    "charon": ("sched/backfill", "charon"),
}
"""Name -> Slurm's own scheduler, and who steers it."""
PARAMETERS = "batch_sched_delay=0,sched_min_interval=100000,bf_interval=1,bf_resolution=1"


@dataclass(frozen=True)
class Run:
    """One scheduler: its results, and the load of this machine."""

    name: str
    found: ReplayResult
    budget_w: float | None
    load: tuple[float, float]


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--speedup", type=float, default=180.0)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--only", default=",".join(SCHEDULERS), help="some of the schedulers")
    args = parser.parse_args()
    if why_no_slurm():
        raise SystemExit(f"slurm_replay: {why_no_slurm()}")
    if args.quick:
        args.jobs, args.speedup = min(args.jobs, 8), max(args.speedup, 1_500.0)
    source = Path(__file__).resolve().parent.parent / "src"
    os.environ["PYTHONPATH"] = str(source)  # replayed jobs start in a folder of their own
    runs = [carried_out(name, args.speedup, args.jobs) for name in args.only.split(",")]
    publish(page(runs, args.speedup, args.jobs), args)


def carried_out(name: str, speedup: float, jobs: int) -> Run:
    """Run one scheduler on a Slurm of its own."""
    scheduler, policy = SCHEDULERS[name]
    budget_w = BUDGET_W if name == "charon" else None
    changes = {} if budget_w is None else {"budget": f"{budget_w:g} W"}
    plan = replay_plan(load_scenario("slurm-lab", changes), speedup=speedup, most_jobs=jobs)
    before = os.getloadavg()[0]
    with slurm(scheduler) as lab:
        client = SlurmClient(environment=lab.environment)
        driver = ReplayDriver(plan, client, lab.folder, settings=DriverSettings(interval_s=0.5))
        (found,) = replay(
            plan,
            [policy],
            slurm=lab.run,
            folder=lab.folder,
            driver=driver,
            tell=lambda label: Telling(name),
        )
    return Run(name, found, budget_w, (before, os.getloadavg()[0]))


@contextmanager
def slurm(scheduler: str) -> Iterator[SlurmLab]:
    """Start a Slurm with the scenario's nodes, the faster ones first, as in the simulator."""
    extra = f"SchedulerType={scheduler}\nSchedulerParameters={PARAMETERS}\n"
    types = ["a100", "a100", "h100", "h100"]
    with SlurmLab(nodes=4, gpus=4, gpu_type=types, weights=[2, 2, 1, 1], extra=extra) as lab:
        yield lab


class Telling:
    """A progress line from time to time."""

    def __init__(self, name: str) -> None:
        self._name, self._said_s = name, 0.0

    def __call__(self, submitted: int, done: int, jobs: int, power_w: float) -> None:
        if time.monotonic() - self._said_s > 15.0 or done == jobs:
            self._said_s = time.monotonic()
            load = os.getloadavg()[0]
            sys.stderr.write(
                f"{self._name}: {submitted} submitted, {done} of {jobs} done, {power_w:.0f} W "
                f"(simulated), load {load:.1f}\n"
            )


def page(runs: list[Run], speedup: float, jobs: int) -> Page:
    """Make the page of bars and tables."""
    by_name = {run.name: run for run in runs}
    bars = [bar for run in runs for bar in _agreement(run)]
    if {"fifo", "stock backfill", "zeus"} <= by_name.keys():
        bars += _savings(by_name)
    if "charon" in by_name:
        bars += _budget(by_name["charon"])
    loads = [each for run in runs for each in run.load]
    return Page(
        name="slurm_replay",
        title="The same jobs on a real Slurm and in the simulator",
        bars=bars,
        tables=[_figures(runs), _latencies(runs)],
        text=TEXT.format(jobs=jobs, speedup=speedup, power=SAME_POWER, low=min(loads),
                         high=max(loads), cores=os.cpu_count(), nice=os.nice(0)),
        details={"runs": [{"name": run.name, "load": run.load, **run.found.to_dict()}
                          for run in runs]},
    )  # fmt: skip


def _agreement(run: Run) -> list[Bar]:
    off = run.found.differences()
    untold, real = run.found.without_latency, run.found.real.figures
    names = (("makespan", "makespan_s"), ("GPU energy", "gpu_energy_j"))
    return [
        Bar(
            name=f"{run.name}: simulator off in {word}",
            value=100 * abs(off[field]),
            unit="%",
            bar=OFF,
            baselines={
                "not told latencies": 100 * abs(getattr(untold, field) / getattr(real, field) - 1)
            },
        )
        for word, field in names
    ]


def _savings(by_name: dict[str, Run]) -> list[Bar]:
    ours_j = by_name["zeus"].found.real.figures.gpu_energy_j
    return [
        Bar(
            name=f"zeus saves GPU energy against {other}",
            value=100 * (1 - ours_j / by_name[other].found.real.figures.gpu_energy_j),
            unit="%",
            bar=0.0,
            at_least=True,
            note="on the real Slurm; simulated power",
        )
        for other in ("fifo", "stock backfill")
    ]


def _budget(run: Run) -> list[Bar]:
    assert run.budget_w is not None
    real = run.found.real
    over = sum(sample.power_w > run.budget_w for sample in real.samples)
    return [
        Bar(
            name="charon: samples above the budget",
            value=float(over),
            unit="samples",
            bar=0.0,
            note=f"of {len(real.samples)}, budget {run.budget_w:g} W",
        ),
        Bar(
            name="charon: most power at any moment",
            value=real.exact_peak_w,
            unit="W",
            bar=run.budget_w,
            note="from the virtual GPUs' own past, between samples too",
        ),
        Bar(
            name="samples of power",
            value=len(real.samples) / real.wall_s,
            unit="1/s",
            bar=SAMPLES_PER_S,
            at_least=True,
        ),
    ]


def _figures(runs: list[Run]) -> Table:
    rows = []
    for run in runs:
        real, told = run.found.real.figures, run.found.simulated
        for kind, each in (("real", real), ("simulated", told)):
            rows.append(
                (
                    run.name if kind == "real" else "",
                    kind,
                    f"{each.makespan_s / 3600:.2f}",
                    f"{each.gpu_energy_j / 3.6e6:.1f}",
                    f"{each.peak_w:,.0f}",
                    f"{each.throughput_per_h:.1f}",
                    f"{each.jct_mean_s / 3600:.2f}",
                    f"{each.misses} of {each.deadlines}",
                )
            )
    return Table(
        "Figures, in the scenario's time",
        ("scheduler", "", "makespan h", "GPU energy kWh", "peak W", "jobs/h", "completion h",
         "deadlines missed"),
        rows,
    )  # fmt: skip


def _latencies(runs: list[Run]) -> Table:
    rows = []
    for run in runs:
        real = run.found.real
        end_s = real.latency.end_s
        rows.append(
            (
                run.name,
                f"{real.latency.start_s:.2f}",
                "-" if end_s is None else f"{end_s:.2f}",
                f"{real.wall_s:.0f}",
                f"{real.late_s:.2f}",
                f"{run.load[0]:.1f} to {run.load[1]:.1f}",
            )
        )
    return Table(
        "What Slurm took, which the simulator was told",
        ("scheduler", "start s", "next job on the same GPUs s", "whole replay s",
         "latest submission late by s", "load of the machine"),
        rows,
    )  # fmt: skip


TEXT = """{jobs} jobs of the scenario `slurm-lab` (the thesis's three models, 2 nodes of 4 A100-40
and 2 of 4 H100), {speedup:g} times faster than in the scenario, submitted to a real Slurm
of 4 nodes on one machine. {power} `fifo` is `sched/builtin`, `stock backfill` is
`sched/backfill`: both get every job as its user asks for it (one GPU count, drawn) and
know its time limit only. `zeus` and `charon` steer the same Slurm through the driver of
`wattloop slurm run`; they may choose the GPU type and the GPU count within a node, not the
batch, which is the job's own and in the simulator most of what Zeus saves. Time between looks
of the backfill scheduler is 1 s instead of 30, as time is short here; the simulator's looks as
often, but plans for the first job that waits, where Slurm's plans for many. The simulator
gets the same jobs, arrivals, choices and beliefs, and the latencies of the table below,
measured in the same replay.

The machine has {cores} cores, other work on it made a load of {low:.1f} to {high:.1f} during the
replays; Slurm and the replay ran at nice {nice}.
"""


if __name__ == "__main__":
    main()
