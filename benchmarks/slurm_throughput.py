"""What the driver costs Slurm in jobs per minute: the same jobs with and without it.

    python benchmarks/slurm_throughput.py [--jobs 200] [--rounds 2] [--json FILE] [--quick]

Starts a Slurm of its own with 4 nodes of 4 fake GPUs. Every job waits for its seconds and notes its
end; all are submitted at once. Stock Slurm and Slurm under the driver take turns.
"""

import getpass
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from bars import Bar, Page, Table, arguments, publish
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.slurm.assembly import SiteRequest, site_from
from wattloop.schedule.slurm.client import SlurmClient
from wattloop.schedule.slurm.commands import SlurmCommands
from wattloop.schedule.slurm.drive import drive
from wattloop.schedule.slurm.driver import SlurmDriver
from wattloop.schedule.slurm.event_log import EventLog
from wattloop.schedule.slurm.round_report import RoundReport
from wattloop.schedule.slurm.settings import DriverSettings
from wattloop.schedule.slurm.state import DriverState
from wattloop.testing.slurm_lab import SlurmLab, why_no_slurm

GPUS = 16
SHORTEST_S, LONGEST_S = 4.0, 12.0
LOSS = 5.0


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2, help="of each, in turns")
    args = parser.parse_args()
    if why_no_slurm():
        raise SystemExit(f"slurm_throughput: {why_no_slurm()}")
    if args.quick:
        args.jobs, args.rounds = min(args.jobs, 24), 1
    stock: list[float] = []
    driven: list[float] = []
    reports: list[RoundReport] = []
    loads = [os.getloadavg()[0]]
    for number in range(args.rounds):
        stock.append(jobs_per_min(args.jobs, number, None))
        driven.append(jobs_per_min(args.jobs, number, reports))
        loads.append(os.getloadavg()[0])
        sys.stderr.write(f"stock {stock[-1]:.1f}, with the driver {driven[-1]:.1f} jobs/min\n")
    publish(page(args.jobs, stock, driven, reports, loads), args)


def jobs_per_min(jobs: int, seed: int, reports: list[RoundReport] | None) -> float:
    """All of them, from the first submission to the last end; under the driver with `reports`."""
    dice = random.Random(seed)
    with SlurmLab(nodes=4, gpus=4, cpus=8, extra="MinJobAge=10") as lab:
        ends = lab.folder / "ends"
        ends.mkdir()
        with nullcontext() if reports is None else driving(lab, reports):
            time.sleep(2.0)  # the driver's first rounds
            begin_s = time.time()
            for number in range(jobs):
                seconds = dice.uniform(SHORTEST_S, LONGEST_S)
                command = f"sleep {seconds:.3f}; : >{ends}/{number}"
                lab.submit(command, "--gres=gpu:1", "--time=1")
            lab.wait(lambda: len(list(ends.iterdir())) == jobs, "jobs do not end", 1_800.0)
            end_s = max(path.stat().st_mtime for path in ends.iterdir())
    return jobs / (end_s - begin_s) * 60.0


@contextmanager
def driving(lab: SlurmLab, reports: list[RoundReport]) -> Iterator[None]:
    """The driver as `wattloop slurm run --policy fifo --gpus-only` runs it."""
    client = SlurmClient(SlurmCommands(environment=lab.environment))
    policy = policy_from("fifo")
    state = DriverState.load(Path(lab.folder) / "driver.json")
    state.hold()
    driver = SlurmDriver(
        client,
        site_from(client, SiteRequest(gpus_only=True), policy),
        policy,
        state=state,
        log=EventLog(Path(lab.folder) / "driver.jsonl"),
        settings=DriverSettings(),
        owner=getpass.getuser(),
    )
    stop = threading.Event()
    thread = threading.Thread(
        target=drive, args=(driver, stop), kwargs={"on_round": reports.append}
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        state.let_go()


def page(
    jobs: int,
    stock: list[float],
    driven: list[float],
    reports: list[RoundReport],
    loads: list[float],
) -> Page:
    """One bar, and every round."""
    before, after = statistics.fmean(stock), statistics.fmean(driven)
    ideal = GPUS / ((SHORTEST_S + LONGEST_S) / 2) * 60.0
    took_s = [report.took_s for report in reports]
    return Page(
        name="slurm_throughput",
        title="What the driver costs Slurm in jobs per minute",
        bars=[
            Bar(
                name="throughput lost under the driver",
                value=100 * (1 - after / before),
                unit="%",
                bar=LOSS,
                note=f"{after:.1f} instead of {before:.1f} jobs per minute",
            ),
            Bar("mean round of the driver", statistics.fmean(took_s), "s", 1.0),
        ],
        tables=[
            Table(
                "Jobs per minute",
                ("round", "stock Slurm", "with the driver"),
                [
                    (number + 1, f"{one:.1f}", f"{other:.1f}")
                    for number, (one, other) in enumerate(zip(stock, driven, strict=True))
                ],
            )
        ],
        text=(
            f"{jobs} jobs of one GPU and {SHORTEST_S:g} to {LONGEST_S:g} s each, all submitted at "
            f"once to 4 nodes of 4 fake GPUs; {ideal:.0f} jobs per minute would be ideal. "
            "Stock Slurm is `sched/backfill`; the driver runs the policy `fifo`, looks once a "
            "second, and lets jobs through ahead of time for GPUs that are about to be free. Jobs "
            "this short make the most of what the driver costs. The load of the machine "
            f"({os.cpu_count()} cores) was {min(loads):.1f} to {max(loads):.1f}."
        ),
        details={"stock_jobs_per_min": stock, "driven_jobs_per_min": driven},
    )


if __name__ == "__main__":
    main()
