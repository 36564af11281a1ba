"""Helios, with and without sleep, on traces that nothing was tuned on, at three arrival speeds.

    python benchmarks/policies_traces.py [--quick] [--json FILE]

Needs the traces in the folder that WATTLOOP_SHARED_DATA names.
"""

from dataclasses import replace

from bars import Page, Table, arguments, publish
from engine_worlds import FOLDER, PHILLY_FILES, missing, philly
from wattloop.schedule.cluster import Cluster, SleepState
from wattloop.schedule.engine import Simulation
from wattloop.schedule.metrics.metrics import Metrics, metrics_of
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.scenarios.file import load_scenario
from wattloop.schedule.scenarios.scenario import World

JOBS, SPEEDS = 1_000, (1.0, 8.0, 24.0)
"""Chosen before any policy was run; on so few jobs all three leave the cluster nearly empty."""
POLICIES = (
    "pollux", "pollux{sleep: true}", "zeus", "helios", "helios{sleep: true}",
    "helios{max_delay: 10%, sleep: true}",
)  # fmt: skip
SLEEP_W, ENTER_S, EXIT_S = 5.0, 5.0, 10.0
TEXT = """
No setting of any policy was chosen on these jobs. **Philly**: the first {jobs:,} jobs of the trace
on its 2,490 GPUs of three types, with throughputs that Gavel measured and cap curves of the Zeus
library, arriving once, 8 and 24 times as fast as recorded, until the last one arrives.
**Predicted jobs**: the same arrivals with the models, times and powers of the scenario `philly`,
which are predicted. Every GPU is given the states of `thesis-sleep`: {watts:g} W, {enter:g} s to
fall asleep, {exit:g} s to wake (assumed). Against Pollux on GPUs that never sleep; `pollux{{sleep:
true}}` shows what sleeping has alone. One seed each.
All six are nearly empty: the head of the trace is too short for 2,490 GPUs, so that faster arrivals
do not fill them. They say nothing about busy clusters, and jobs that are cut off at the end count
as not done.
"""


def main() -> int:
    parser = arguments(__doc__ or "")
    args = parser.parse_args()
    if absent := missing():
        raise SystemExit(f"{', '.join(absent)} not found; WATTLOOP_SHARED_DATA names the folder")
    jobs = 300 if args.quick else JOBS
    tables = [_table(f"Philly, {speed:g} times as fast", philly(speed, jobs)) for speed in SPEEDS]
    tables += [
        _table(f"Philly, predicted jobs, {speed:g} times as fast", predicted(speed, jobs))
        for speed in SPEEDS
    ]
    text = TEXT.format(jobs=JOBS, watts=SLEEP_W, enter=ENTER_S, exit=EXIT_S)
    title = "Helios on traces that it was not tuned on"
    publish(Page("policies_traces", title, [], tables, text), args)
    return 0


def predicted(speed: float, head: int) -> World:
    """The same trace with throughputs and power that `predict` estimates."""
    changes: dict[str, object] = {
        "jobs.trace.file": str(FOLDER / PHILLY_FILES["jobs.trace.file"]),
        "jobs.trace.speed": speed,
        "jobs.trace.head": head,
    }
    return load_scenario("philly", changes).world(0)


def _asleep(cluster: Cluster) -> Cluster:
    types = tuple(
        replace(each, sleeps=(SleepState.of(each.idle_w, SLEEP_W, ENTER_S, EXIT_S),))
        for each in cluster.types
    )
    return replace(cluster, types=types)


def _table(title: str, world: World) -> Table:
    cluster, settings = _asleep(world.cluster), world.settings
    settings = replace(settings, horizon_s=float(world.jobs.arrival_s[-1]))
    found: dict[str, Metrics] = {}
    for name in POLICIES:
        simulation = Simulation(
            cluster,
            world.jobs,
            policy_from(name),
            truth=world.truth,
            oracle=world.oracle,
            settings=settings,
        )
        found[name] = metrics_of(simulation.run())
        print(title, name, f"{found[name].energy_kwh:.1f} kWh", flush=True)
    base = found["pollux"]
    rows = [
        [
            name, str(each.jobs_done), f"{each.energy_kwh:,.1f} kWh",
            f"{100 * (each.energy_kwh / base.energy_kwh - 1):+.1f}%",
            f"{100 * (each.age_mean_s / base.age_mean_s - 1):+.1f}%",
            f"{100 * (each.miss_rate or 0):.1f}%", f"{100 * (each.asleep_share or 0):.0f}%",
        ]
        for name, each in found.items()
    ]  # fmt: skip
    busy = sum(base.utilisation.values()) / max(len(base.utilisation), 1)
    head = [
        "policy",
        "jobs done",
        "energy",
        "against Pollux",
        "mean age of jobs",
        "misses",
        "asleep",
    ]
    return Table(
        title, head, rows, f"GPUs are busy for {100 * busy:.0f}% of the time under Pollux."
    )


if __name__ == "__main__":
    raise SystemExit(main())
