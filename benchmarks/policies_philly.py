"""The policies on Philly's trace, with throughputs of Gavel and cap curves of the Zeus library."""

from collections.abc import Mapping
from dataclasses import replace

from engine_worlds import missing, philly
from wattloop.schedule.engine import Simulation
from wattloop.schedule.metrics.metrics import Metrics, metrics_of
from wattloop.schedule.policies.registry import policy_from

__all__ = ["philly_rows"]

JOBS = 10_000
SPEED = 1.0
POLICIES = (
    "fifo", "sjf", "pollux", "themis", "themis-as-printed", "chronos", "zeus", "hades",
    "hades-as-printed", "aurachronos", "charon", "helios",
)  # fmt: skip


def philly_rows(jobs: int = JOBS) -> tuple[Mapping[str, Metrics], str]:
    """Run each policy on the first jobs of the trace; return rows and a caption; none without
    data.
    """
    absent = missing()
    if absent:
        return (
            {},
            f"Left out: {', '.join(absent)} not found; WATTLOOP_SHARED_DATA names the folder.",
        )
    rows = {}
    world = philly(SPEED, jobs)
    settings = replace(world.settings, horizon_s=float(world.jobs.arrival_s[-1]))
    for name in POLICIES:
        simulation = Simulation(
            world.cluster,
            world.jobs,
            policy_from(name),
            truth=world.truth,
            oracle=world.oracle,
            settings=settings,
        )
        rows[name] = metrics_of(simulation.run())
    text = (
        f"The first {jobs:,} jobs of the trace as they came, {world.cluster.gpus:,} GPUs of "
        f"{len(world.cluster.types)} types, until the last arrives; models, users and deadlines "
        "that the trace lacks are drawn (docs/traces.md), estimates are exact. Most GPUs of this "
        "part of the trace are idle, and draw most of the energy."
    )
    return rows, text
