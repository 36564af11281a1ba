"""What live metrics cost an agent: processor time at 1 Hz and the time of a scrape.

    python benchmarks/metrics_scrape.py [--steps 60] [--json FILE] [--quick]

An agent with 8 virtual GPUs and 64 jobs takes steps of a second on a virtual clock; scrapes go
through its HTTP endpoint. Next to it, in the same run: the same agent without metrics.
"""

import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

from bars import Bar, Page, Table, arguments, publish
from wattloop.core.clock import VirtualClock
from wattloop.core.settings import Settings
from wattloop.fleet.agent.agent import Agent
from wattloop.fleet.agent.config import AgentConfig, AgentContext
from wattloop.fleet.agent.live_metrics import AgentMetrics
from wattloop.hardware.host import Host
from wattloop.measure.metrics_endpoint import MetricsEndpoint

GPUS, JOBS = 8, 64
SCRAPE_BAR_MS, CORE_BAR = 20.0, 0.5


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="steps of the agent")
    args = parser.parse_args()
    steps = 10 if args.quick else args.steps
    with tempfile.TemporaryDirectory(prefix="wattloop-metrics-") as folder:
        plain_s, _, _ = measured(Path(folder) / "plain", steps, with_metrics=False)
        with_s, scrapes_s, size = measured(Path(folder) / "metrics", steps, with_metrics=True)
    added = 100 * max(0.0, statistics.median(with_s) - statistics.median(plain_s))
    scrape_ms = 1_000 * statistics.median(scrapes_s)
    bars = [
        Bar("scrape", scrape_ms, "ms", SCRAPE_BAR_MS, note="median over HTTP, OpenMetrics"),
        Bar(
            "added_core",
            added,
            "% of a core",
            CORE_BAR,
            note="median step at 1 Hz, with minus without",
        ),
    ]
    rows = [
        ["without metrics", f"{1_000 * statistics.median(plain_s):.2f} ms", "", ""],
        [
            "with metrics",
            f"{1_000 * statistics.median(with_s):.2f} ms",
            f"{scrape_ms:.2f} ms",
            f"{size / 1_000:.0f} kB",
        ],
    ]
    table = Table(
        f"{GPUS} GPUs, {JOBS} jobs, {steps} steps",
        ["agent", "CPU time of a step", "time of a scrape", "size of an answer"],
        rows,
    )
    publish(Page("metrics_scrape", "What live metrics cost", bars, [table]), args)


def measured(
    folder: Path, steps: int, *, with_metrics: bool
) -> tuple[list[float], list[float], int]:
    clock = VirtualClock(1_000.0, 1.7e9)
    config = AgentConfig.model_validate(
        {"folder": str(folder), "virtual_gpus": GPUS, "meters": "virtual", "cpus": JOBS,
         "cluster": "bench", "cgroup_root": str(folder / "cgroup"), "slurm_bin": str(folder)}
    )  # fmt: skip
    settings = Settings(virtual_gpus=GPUS, meters=("virtual",))
    agent = Agent(AgentContext("n1", config, settings, Host(), clock, {}, JOBS))
    metrics = AgentMetrics()
    if with_metrics:
        agent.on_step = lambda: metrics.update(agent, [], 0)
    agent.start()
    for job in range(JOBS):
        path = folder / "events" / f"{round(clock.wall_s() * 1e9)}-{job + 1}-start"
        names = {"user": f"u{job % 9}", "name": f"job {job}", "account": f"p{job % 5}"}
        facts = {
            **names,
            "cpus": 1,
            "uid": 1_000,
            "gpus": job % GPUS,
            "job": job + 1,
            "whole": "yes",
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in facts.items()))
    costs, scrapes, size = [], [], 0
    with MetricsEndpoint("0", metrics.render) as endpoint:
        request = urllib.request.Request(
            f"http://127.0.0.1:{endpoint.port}/metrics",
            headers={"Accept": "application/openmetrics-text"},
        )
        for _ in range(steps):
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
    return costs, scrapes, size


if __name__ == "__main__":
    main()
