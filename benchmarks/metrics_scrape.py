"""Cost of live metrics for an agent: processor time at 1 Hz and the time of a scrape.

    python benchmarks/metrics_scrape.py [--steps 60] [--json FILE] [--quick]

An agent with 8 virtual GPUs and 64 jobs takes steps of a second on a virtual clock; scrapes go
through its HTTP endpoint. The program of every job tells its steps and phases, among 500 other
processes of the node. Next to it, in the same run: the same agent without metrics.
"""

import os
import statistics
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path

from bars import Bar, Page, Table, arguments, publish
from wattloop.core.clock import VirtualClock
from wattloop.core.settings import Settings
from wattloop.fleet.agent.agent import Agent
from wattloop.fleet.agent.config import AgentConfig, AgentContext
from wattloop.fleet.agent.live_metrics import AgentMetrics
from wattloop.fleet.agent.program_progress import LOOK_EVERY_S, JobPrograms
from wattloop.hardware.host import Host
from wattloop.measure.metrics_endpoint import MetricsEndpoint
from wattloop.measure.run_journal import PHASES, RunProgress

GPUS, JOBS, OTHERS = 8, 64, 500
SCRAPE_BAR_MS, CORE_BAR = 20.0, 0.5


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="steps of the agent")
    args = parser.parse_args()
    steps = 10 if args.quick else args.steps
    with tempfile.TemporaryDirectory(prefix="wattloop-metrics-") as folder:
        plain_s, _, _, _ = measured(Path(folder) / "plain", steps, with_metrics=False)
        found = measured(Path(folder) / "metrics", steps, with_metrics=True)
    with_s, scrapes_s, looks_s, size = found
    look_s = statistics.median(looks_s)
    added_s = max(0.0, statistics.median(with_s) - statistics.median(plain_s))
    added = 100 * (added_s + look_s / LOOK_EVERY_S)
    scrape_ms = 1_000 * statistics.median(scrapes_s)
    bars = [
        Bar("scrape", scrape_ms, "ms", SCRAPE_BAR_MS, note="median over HTTP, OpenMetrics"),
        Bar(
            "added_core",
            added,
            "% of a core",
            CORE_BAR,
            note="median step at 1 Hz, with minus without, and reading the jobs' programs",
        ),
    ]
    rows = [
        ["without metrics", f"{1_000 * statistics.median(plain_s):.2f} ms", "", "", ""],
        [
            "with metrics",
            f"{1_000 * statistics.median(with_s):.2f} ms",
            f"{1_000 * look_s:.2f} ms",
            f"{scrape_ms:.2f} ms",
            f"{size / 1_000:.0f} kB",
        ],
    ]
    table = Table(
        f"{GPUS} GPUs, {JOBS} jobs, {steps} steps",
        [
            "agent",
            "CPU time of a step",
            f"of reading programs, every {LOOK_EVERY_S:g} s",
            "time of a scrape",
            "size of an answer",
        ],
        rows,
    )
    publish(Page("metrics_scrape", "What live metrics cost", bars, [table]), args)


def measured(
    folder: Path, steps: int, *, with_metrics: bool
) -> tuple[list[float], list[float], list[float], int]:
    clock = VirtualClock(1_000.0, 1.7e9)
    config = AgentConfig.model_validate(
        {"folder": str(folder), "virtual_gpus": GPUS, "meters": "virtual", "cpus": JOBS,
         "cluster": "bench", "cgroup_root": str(folder / "cgroup"), "slurm_bin": str(folder)}
    )  # fmt: skip
    settings = Settings(virtual_gpus=GPUS, meters=("virtual",))
    host = Host(procfs=folder / "proc")
    agent = Agent(AgentContext("n1", config, settings, host, clock, {}, JOBS))
    programs = JobPrograms(host.procfs, "n1")
    metrics = AgentMetrics(programs)
    if with_metrics:
        agent.on_step = lambda: metrics.update(agent, [], 0)
        agent.on_job_closed = partial(metrics.close_job, agent)
    agent.start()
    for job in range(JOBS):
        path = folder / "events" / f"{round(clock.wall_s() * 1e9)}-{job + 1}-start"
        names = {"user": f"u{job % 9}", "name": f"job {job}", "account": f"p{job % 5}"}
        facts = {
            **names,
            "cpus": 1,
            "uid": os.getuid(),
            "gpus": job % GPUS,
            "job": job + 1,
            "whole": "yes",
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in facts.items()))
    make_processes(folder)
    costs, scrapes, looks, size = [], [], [], 0
    with MetricsEndpoint("0", metrics.render) as endpoint:
        request = urllib.request.Request(
            f"http://127.0.0.1:{endpoint.port}/metrics",
            headers={"Accept": "application/openmetrics-text"},
        )
        for step in range(steps):
            if with_metrics and step % LOOK_EVERY_S == 0:
                tell(folder, clock.now_s(), step)
                begun_s = time.thread_time()
                programs.look()
                looks.append(time.thread_time() - begun_s)
            clock.advance(1.0)
            begun_s = time.thread_time()
            agent.step()
            costs.append(time.thread_time() - begun_s)
            if with_metrics:
                begun_s = time.perf_counter()
                with urllib.request.urlopen(request, timeout=60) as answer:
                    size = len(answer.read())
                scrapes.append(time.perf_counter() - begun_s)
    agent.stop()
    return costs, scrapes, looks, size


def make_processes(folder: Path) -> None:
    """Make the processes of the node as /proc shows them: one per job has steps."""
    for pid in range(1, JOBS + OTHERS + 1):
        place = folder / "proc" / str(pid)
        place.mkdir(parents=True)
        (place / "root").symlink_to("/")
        (place / "cgroup").write_text("0::/system.slice/slurmstepd.scope/user\n")
        words = {"PATH": "/usr/bin", "HOME": "/home/user", "LANG": "C.UTF-8"}
        if pid <= JOBS:
            steps = folder / f"steps-{pid}"
            steps.mkdir()
            words |= {"SLURM_JOB_ID": str(pid), "WATTLOOP_STEPS": str(steps)}
        (place / "environ").write_text("".join(f"{n}={v}\0" for n, v in words.items()))


def tell(folder: Path, now_s: float, second: int) -> None:
    """Write what the programs of all jobs tell."""
    phases = {name: (float(second), 300.0 * second) for name in PHASES}
    progress = RunProgress(100 * second, 3_200.0 * second, 1e6 * second, now_s, phases, now_s)
    for job in range(1, JOBS + 1):
        progress.write(folder / f"steps-{job}")


if __name__ == "__main__":
    main()
