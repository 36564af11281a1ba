"""Cost of the node agent: processor time at 1 Hz with 8 GPUs and 8 jobs, and time of its hooks.

    python benchmarks/agent_cost.py [--seconds 120] [--json FILE] [--quick]

Sensors are a powercap tree of real files and 8 stub cards behind the real nvidia-ml-py; jobs have
control groups (files as the kernel shows them), or processes only. For comparison, in the same run:
`wattloop run` at the same pace, once, and once per job.
"""

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bars import Bar, Page, Table, arguments, publish
from support.nvml_stub import StubNvml
from support.power_curves import Constant
from support.powercap_driver import Driver
from support.powercap_tree import PowercapTree, Writing
from wattloop.fleet.agent.hooks import install_hooks

CARDS = JOBS = 8
WARM_S = 5.0
COST_BAR = 5.0
HOOK_BAR_MS = 50.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
COUNTER_S = 0.0039
"""CPU time of one reading of a real card's energy counter (H200, driver 580)."""


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="how long each is watched")
    args = parser.parse_args()
    if args.quick:
        args.seconds = min(args.seconds, 10.0)
    folder = Path(tempfile.mkdtemp(prefix="wattloop-agent-cost-"))
    try:
        with machine(folder) as environment:
            shares = {
                "agent, 8 jobs with control groups": agent(
                    folder / "a", environment, args.seconds, True
                ),
                "agent, 8 jobs known by processes": agent(
                    folder / "b", environment, args.seconds, False
                ),
                "agent, no job": agent(folder / "c", environment, args.seconds, True, jobs=0),
                "`wattloop run -i 1`, one": runs(folder, environment, args.seconds, 1),
                "`wattloop run -i 1`, one per job": runs(folder, environment, args.seconds, JOBS),
            }
            hooks_ms = {
                name: hook_ms(folder, name, 20 if args.quick else 200)
                for name in ("prolog", "epilog", "empty")
            }
        publish(page(shares, hooks_ms, args.seconds), args)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def machine(folder: Path) -> Iterator[dict[str, str]]:
    """Make two packages, their memory and eight cards; return the variables that show them."""
    tree = PowercapTree(folder / "sys")
    packages = [tree.add_package(socket) for socket in range(2)]
    zones = [*packages, *(tree.add_child(package, "dram") for package in packages)]
    with (
        Driver(
            dict.fromkeys(zones, Constant(90.0)), update_period_s=0.05, writing=Writing.IN_PLACE
        ),
        StubNvml(folder, gpus=CARDS, energy_read_cost_s=COUNTER_S) as cards,
    ):
        for card in range(CARDS):
            cards.set_load(card, 0.7)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("WATTLOOP", "SLURM"))}
        yield {
            **kept,
            **cards.environment,
            "WATTLOOP_SYSFS_ROOT": str(folder / "sys"),
            "WATTLOOP_METERS": "rapl,nvidia",
            "OMP_NUM_THREADS": "1",
        }


def agent(
    folder: Path, environment: dict[str, str], seconds: float, cgroups: bool, jobs: int = JOBS
) -> float:
    """Return the share of a core that the agent takes."""
    folder.mkdir()
    config = folder / "agent.yaml"
    config.write_text(
        f"folder: {folder}/{{node}}\ncpus: 64\ncpu_idle_w: 40\ncgroup_root: {folder}/cgroup\n"
        f"slurm_bin: {folder}\n"
    )
    prolog, _ = install_hooks(folder / "hooks", f"{folder}/{{node}}")
    command = [sys.executable, "-m", "wattloop", "agent", "run", "--config", str(config)]
    sleepers = []
    with subprocess.Popen(
        [*command, "--node", "n1"], env=environment, stderr=subprocess.DEVNULL
    ) as process:
        while not (folder / "n1" / "state.json").exists():
            time.sleep(0.1)
        for job in range(jobs):
            own = {**environment, "SLURM_JOB_ID": str(job + 1), "SLURMD_NODENAME": "n1",
                   "SLURM_JOB_GPUS": str(job), "SLURM_JOB_UID": str(os.getuid()),
                   "SLURM_JOB_CPUS_PER_NODE": "8"}  # fmt: skip
            if cgroups:
                place = folder / "cgroup/system.slice/slurmstepd.scope" / f"job_{job + 1}"
                place.mkdir(parents=True)
                (place / "cpu.stat").write_text("usage_usec 1000000\nuser_usec 1\n")
            else:
                sleepers.append(subprocess.Popen(["sleep", "1000"], env=own))
            subprocess.run([prolog], env=own, check=True)
        share = watched(process.pid, seconds)
        measured = json.loads((folder / "n1" / "status.json").read_text())["jobs"]
        assert len(measured) == jobs, measured
        process.terminate()
    for sleeper in sleepers:
        sleeper.kill()
        sleeper.wait()
    return share


def runs(folder: Path, environment: dict[str, str], seconds: float, count: int) -> float:
    """Return the share of a core that as many `wattloop run` take."""
    store = folder / f"runs-{count}.db"
    command = [sys.executable, "-m", "wattloop", "run", "-i", "1", "--store", str(store), "--"]
    started = [
        subprocess.Popen(
            [*command, "sleep", str(seconds + WARM_S + 30)],
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(count)
    ]
    share = watched_all([process.pid for process in started], seconds)
    for process in started:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
    return share


def watched(pid: int, seconds: float) -> float:
    return watched_all([pid], seconds)


def watched_all(pids: list[int], seconds: float) -> float:
    time.sleep(WARM_S)
    begin_s, before_s = time.monotonic(), sum(map(cpu_s, pids))
    time.sleep(seconds)
    return (sum(map(cpu_s, pids)) - before_s) / (time.monotonic() - begin_s)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def hook_ms(folder: Path, name: str, times: int) -> list[tuple[float, float]]:
    """Return the script's time for each of many jobs: elapsed, and of the processor."""
    home = folder / "hooked"
    (home / "n1" / "events").mkdir(parents=True, exist_ok=True)
    prolog, epilog = install_hooks(home / "hooks", f"{home}/{{node}}")
    empty = home / "hooks" / "empty"
    empty.write_text("#!/bin/sh\nexit 0\n")
    empty.chmod(0o755)
    script = {"prolog": prolog, "epilog": epilog, "empty": empty}[name]
    own = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n1"}
    taken = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin_s = time.perf_counter()
        subprocess.run([script], env=own, check=True)
        clock_s = time.perf_counter() - begin_s
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        taken.append((1_000 * clock_s, 1_000 * cpu_s))
    return taken


def page(
    shares: dict[str, float], hooks_ms: dict[str, list[tuple[float, float]]], seconds: float
) -> Page:
    others = {name: 100 * share for name, share in shares.items() if not name.startswith("agent")}
    bars = [
        Bar(name, 100 * share, "% of a core", COST_BAR, others if number == 0 else {})
        for number, (name, share) in enumerate(shares.items())
        if name.startswith("agent")
    ]
    for number, what in enumerate(("by the clock", "of the processor")):
        medians = {n: statistics.median(t[number] for t in taken) for n, taken in hooks_ms.items()}
        for name in ("prolog", "epilog"):
            baseline = {"an empty script": medians["empty"]}
            limit = None if number else HOOK_BAR_MS
            bars.append(Bar(f"{name} {what}, median", medians[name], "ms", limit, baseline))
    table = Table(
        "Processor time",
        ("program", "% of a core", "8 counters at 3.9 ms alone"),
        [(n, f"{100 * s:.2f}", f"{100 * _driver(n):.2f}") for n, s in shares.items()],
    )
    text = (
        f"One reading a second of two packages, their memory and eight cards, for {seconds:g} s "
        "each, on whatever else this machine was doing. The energy counter of a stub card takes "
        f"{1_000 * COUNTER_S:g} ms to read, as that of an H200 does: the last "
        "column is that part alone, which every reader of eight counters a second pays. "
        "Measuring each job by itself reads every card once per job; the agent reads each once."
    )
    return Page("agent_cost", "What the node agent costs", bars, [table], text=text)


def _driver(name: str) -> float:
    return CARDS * COUNTER_S * (JOBS if "one per job" in name else 1)


if __name__ == "__main__":
    main()
