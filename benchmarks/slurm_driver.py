"""Cost of driving Slurm: a round with 500 waiting jobs, throughput, and a killed driver.

    python benchmarks/slurm_driver.py [--pairs 15] [--jobs 200] [--json FILE] [--quick]

Starts a Slurm of its own: 4 nodes with 4 fake GPUs each, on this machine. Needs root and Slurm
(Debian: slurm-wlm slurm-wlm-basic-plugins munge). About 25 minutes.
"""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bars import Bar, Page, Table, arguments, publish
from slurm_gates import gates_compared
from slurm_throughput import throughput
from support.slurm_lab import SlurmLab, why_no_slurm
from wattloop.schedule.driver.event_log import DriverLog, RoundReport
from wattloop.schedule.driver.managed_cluster import (
    ClusterOptions,
    DriverSettings,
    build_managed_cluster,
)
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.slurm.client import SlurmClient
from wattloop.schedule.slurm.driver import SlurmDriver
from wattloop.schedule.slurm.state import DriverState

Timed = tuple[RoundReport, float]
WAITING = 500
LEASE_S = 10.0
COMMENTS = (
    "--comment=wattloop:model=resnet-50,batch=128,samples=2e7,precision=tf32",
    "--comment=wattloop:model=resnet-50,batch=64,samples=1e6,gpus=1|2|4,precision=tf32",
    "--comment=wattloop:batch=many",
    "--comment=ask ada",
)


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--jobs", type=int, default=200)
    args = parser.parse_args()
    if why_no_slurm():
        raise SystemExit(f"slurm_driver: {why_no_slurm()}")
    if args.quick:
        args.pairs, args.jobs = 1, 32
    with SlurmLab(nodes=4, gpus=4, cpus=16, extra="MinJobAge=2") as lab:
        parts, bars = rounds(lab, 50 if args.quick else WAITING)
        fifo = partial(_driving, lab, "--policy", "fifo")
        lost, lost_bar = throughput(lab, fifo, pairs=args.pairs, jobs=args.jobs, seconds=1)
        longer, longer_bar = throughput(
            lab, fifo, pairs=1 + args.pairs // 4, jobs=max(16, 2 * args.jobs // 5), seconds=5
        )
        kills, kill_bars = killed(lab, 1 if args.quick else 5)
        gates = gates_compared(lab, 20 if args.quick else WAITING)
    tables = [parts, lost, longer, kills, gates]
    page = Page(
        "slurm_driver",
        "What driving Slurm costs",
        [*bars, lost_bar, longer_bar, *kill_bars],
        tables,
        text=TEXT,
    )
    publish(page, args)


def rounds(lab: SlurmLab, waiting: int) -> tuple[Table, list[Bar]]:
    """Run rounds of zeus with many jobs waiting and all GPUs busy."""
    with tempfile.TemporaryDirectory() as folder:
        driver = _driver(lab, Path(folder), "zeus")
        driver.begin()
        for number in range(waiting):
            lab.submit(
                "sleep 600", f"--gres=gpu:{1 + number % 4}", "--time=20", COMMENTS[number % 4]
            )
        reports = []
        for _ in range(40):
            begun_s = time.perf_counter()
            reports.append((driver.round(), time.perf_counter() - begun_s))
            time.sleep(0.2)
        driver.restore()
    lab.run("scancel", "--user=root")
    lab.wait_for_jobs()
    starting = [found for found in reports if found[0].starts][:1]
    quiet = [found for found in reports[5:] if not found[0].starts]
    rows = [
        (
            name,
            f"{report.waiting}",
            f"{1e3 * took_s:.0f}",
            f"{1e3 * report.read_s:.0f}",
            f"{1e3 * report.view_s:.0f}",
            f"{1e3 * report.policy_s:.0f}",
            f"{1e3 * report.carry_s:.0f}",
            f"{report.calls}",
            f"{len(report.starts)} + {len(report.standby)}",
        )
        for name, (report, took_s) in (
            ("that starts jobs", starting[0]),
            ("median of the others", _median(quiet)),
            ("slowest of all", max(reports, key=lambda found: found[1])),
        )
    ]
    headers = (
        "round",
        "waiting",
        "ms",
        "reading",
        "view",
        "policy",
        "telling",
        "calls",
        "starts + standby",
    )
    bars = [
        Bar(
            f"round with {waiting} waiting jobs, median",
            statistics.median(took_s for _, took_s in reports),
            "s",
            1.0,
            note="Slurm's own calls included",
        ),
        Bar(
            f"round with {waiting} waiting jobs, slowest",
            max(took_s for _, took_s in reports),
            "s",
            1.0,
        ),
    ]
    return Table("A round, part by part (ms)", headers, rows), bars


def killed(lab: SlurmLab, times: int) -> tuple[Table, list[Bar]]:
    """Kill the driver with jobs waiting and GPUs free, and measure when Slurm continues."""
    rows, waits_s, held = [], [], 0
    for number in range(times):
        with _driving(lab, "--policy", "never.py:Never", "--lease", f"{LEASE_S:g}") as process:
            jobs = [lab.submit("sleep 1", "--gres=gpu:1", "--time=1") for _ in range(20)]
            time.sleep(2.0 + 0.7 * number)
            process.kill()
            process.wait()
            begun_s = time.monotonic()
            lab.wait(lambda: bool(_running(lab)), "Slurm does not go on", 120)
            waits_s.append(time.monotonic() - begun_s)
            held += sum(job.priority == 0 for job in _client(lab).jobs())
            lab.wait_for_jobs()
            rows.append((str(number + 1), f"{waits_s[-1]:.1f}", f"{len(jobs)}"))
    table = Table(
        f"kill -9, lease {LEASE_S:g} s, 16 GPUs free",
        ("kill", "Slurm goes on after s", "jobs, all ran"),
        rows,
    )
    return table, [
        Bar("jobs held after kill -9", float(held), "jobs", 0.0),
        Bar("Slurm goes on after kill -9, median", statistics.median(waits_s), "s"),
    ]


def _driver(lab: SlurmLab, folder: Path, name: str) -> SlurmDriver:
    client, policy = _client(lab), policy_from(name)
    options = ClusterOptions(partitions=("all",), gpus_only=True)
    site = build_managed_cluster(client.nodes(), options, policy)
    state = DriverState.load(folder / "state.json")
    state.lock()
    log = DriverLog(folder / "log.jsonl")
    return SlurmDriver(
        client, site, policy, state=state, log=log, settings=DriverSettings(), owner="root"
    )


def _client(lab: SlurmLab) -> SlurmClient:
    return SlurmClient(environment=lab.environment)


NEVER = """
from wattloop.schedule.policies.base import Policy
class Never(Policy):
    def decide(self, view):
        return ()
"""


@contextmanager
def _driving(lab: SlurmLab, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `wattloop slurm run` in a second process."""
    source = Path(__file__).resolve().parent.parent / "src"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "never.py").write_text(NEVER, "utf-8")
        words = ["slurm", "run", "--partition", "all", "--gpus-only", "--state", "state.json"]
        process = subprocess.Popen(
            [sys.executable, "-m", "wattloop", *words, *options],
            env={**lab.environment, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
            cwd=folder,
            stderr=subprocess.DEVNULL,
        )
        try:
            lab.wait((Path(folder) / "state.status.json").exists, "no driver")
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _running(lab: SlurmLab) -> list[str]:
    return lab.run("squeue", "-h", "-t", "R", "-o", "%i", check=False).split()


def _median(found: list[Timed]) -> Timed:
    return sorted(found, key=lambda each: each[1])[len(found) // 2]


TEXT = """\
`wattloop slurm run` on a real Slurm 22.05: what a round takes with many jobs waiting, what Slurm's
throughput loses to it, and when Slurm goes on after the driver was killed. The last table compares
ways of steering without holding jobs ([ADR 0043](../adr/0043-steering-slurm-without-holding.md)).

One Slurm on this machine, 4 nodes x 4 fake GPUs; jobs sleep. Throughput: the time from the first
submission until no job is left, stock Slurm and the driver (first in, first out, all else as
shipped) in turns, every second pair the other way round.

Where the seconds go, by slurmctld's log: after one in eight ends of these jobs it looks at its
queue at once (24 of 200 in a run with its debug messages), after the others at its next tick, up to
a second later; and it uses no node on which a job is just ending. So GPUs stand free while jobs
wait, with stock Slurm as well. What the driver adds comes before the first start: until it looks,
and until Slurm's next tick after that. It is lost once for each batch of jobs on an idle cluster,
not for each job: later changes are covered by what is let through ahead (the last two columns).
"""
if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
