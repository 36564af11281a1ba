"""Helios, Zeus and AuraChronos against Pollux on a trace that nothing was tuned on, at three loads.

    python benchmarks/policies_traces.py [--quick] [--json FILE] [--keep FILE]

Needs the traces in the folder that WATTLOOP_SHARED_DATA names. With `--keep` a call continues with
the table after those of an earlier one.
"""

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from bars import Page, Table, arguments, publish
from engine_worlds import FOLDER, PHILLY_FILES, missing, philly
from wattloop.schedule.cluster import Cluster, SleepState
from wattloop.schedule.engine import Simulation
from wattloop.schedule.jobs import JobTable
from wattloop.schedule.metrics.metrics import Metrics, metrics_of
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.scenarios.file import load_scenario
from wattloop.schedule.scenarios.scenario import World

FIRST, LAST = 4_000, 8_000
"""Jobs of the trace: those before arrive over 24 days, too few for a load."""
LOADS = (0.3, 0.6, 0.9)
"""Chosen before any policy was run."""
POLICIES = (
    "pollux", "pollux{sleep: true}", "zeus", "aurachronos", "helios", "helios{sleep: true}",
    "helios{max_delay: 10%, sleep: true}",
)  # fmt: skip
INTERFERENCE = 0.05
"""Slowdown of a job for each other job on its node, for the tables of isolated jobs."""
PACKED = ("pollux", "pollux{isolate: true}", "helios", "helios{isolate: true}")
SLEEP_W, ENTER_S, EXIT_S = 5.0, 5.0, 10.0
TEXT = """
No setting of any policy was chosen on these jobs; Helios' were chosen on jobs 8,000 to 12,000.

**Measured jobs**: jobs {first:,} to {last:,} of
Philly's trace as they arrived, with throughputs that Gavel measured and cap curves of the Zeus
library. **Predicted jobs**: the same arrivals with the models, times and powers of the scenario
`philly`, which are predicted. At its own rate the trace leaves most of its 2,490 GPUs idle. So each
table takes as many nodes of each type as Pollux keeps busy to about 30, 60 and 90%; arrivals stay
as they were recorded. Simulations end when the last job arrives; the age of a job that is not done
by then ends there. Every GPU is given the states of `thesis-sleep`: {watts:g} W, {enter:g} s to
fall asleep, {exit:g} s to wake (assumed). Savings are against Pollux on GPUs that never sleep;
`pollux{{sleep: true}}` shows what sleeping has alone. Hosts and switches, which no policy turns
off, count. One seed each.

Helios holds the mean age of jobs to 15% above Pollux's (`mean_delay`), and with `max_delay: 10%` to
10%. Asleep, jobs miss deadlines that leave less time than a GPU takes to wake; the share of such
deadlines is with each table.

**Isolated jobs**: the measured jobs, {interference:.0%} slower for each other job on a node.
`isolate: true` gives a job the node with the most free GPUs. The bound of this freedom is the same
policy where neighbours cost nothing: no choice of nodes gains more.
"""


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--keep", metavar="FILE", type=Path, help="tables of an earlier call")
    parser.add_argument("--kept-only", action="store_true", help="publish what --keep has")
    args = parser.parse_args()
    if absent := missing():
        raise SystemExit(f"{', '.join(absent)} not found; WATTLOOP_SHARED_DATA names the folder")
    last, loads = (FIRST + 300, LOADS[-1:]) if args.quick else (LAST, LOADS)
    measured, foretold = part(philly(1.0, last)), part(predicted(last))
    wanted = [
        *(partial(_table, "Measured jobs", measured, load) for load in loads),
        *(partial(_table, "Predicted jobs", foretold, load) for load in loads),
        *(partial(_isolated, measured, load) for load in loads),
    ]
    tables: list[Table] = []
    if args.keep and args.keep.exists():
        tables = pickle.loads(args.keep.read_bytes())
    for make in () if args.kept_only else wanted[len(tables) :]:
        tables.append(make())
        if args.keep:
            args.keep.write_bytes(pickle.dumps(tables))
    text = TEXT.format(
        first=FIRST,
        last=LAST,
        watts=SLEEP_W,
        enter=ENTER_S,
        exit=EXIT_S,
        interference=INTERFERENCE,
    )
    if len(tables) < len(wanted):
        text += f"\nOnly {len(tables)} of the {len(wanted)} tables were made in this run.\n"
    title = "Helios on traces that it was not tuned on"
    publish(Page("policies_traces", title, [], tables, text), args)
    return 0


def part(world: World, first: int = FIRST) -> World:
    """Return the world without its first jobs; time begins with the next one."""
    jobs, begin_s = world.jobs, float(world.jobs.arrival_s[first])
    rest = JobTable(
        kinds=jobs.kinds,
        users=jobs.users,
        arrival_s=jobs.arrival_s[first:] - begin_s,
        kind=jobs.kind[first:],
        user=jobs.user[first:],
        work=jobs.work[first:],
        deadline_s=jobs.deadline_s[first:] - begin_s,
        priority=jobs.priority[first:],
    )
    settings = replace(world.settings, horizon_s=float(rest.arrival_s[-1]))
    return world._replace(jobs=rest, settings=settings, cluster=_asleep(world.cluster))


def of_nodes(cluster: Cluster, share: float) -> Cluster:
    """Return a cluster with this share of the nodes of each group, and of the switches."""
    groups = tuple(replace(g, nodes=max(round(g.nodes * share), 1)) for g in cluster.groups)
    return replace(cluster, groups=groups, network_w=cluster.network_w * share)


def share_for(load: float, busy: Callable[[float], float], steps: int = 5) -> float:
    """Return the share of nodes that are busy to this load, by bisection."""
    low, high = 0.02, 1.0
    for _ in range(steps):
        share = (low * high) ** 0.5
        low, high = (share, high) if busy(share) > load else (low, share)
    return (low * high) ** 0.5


def predicted(head: int) -> World:
    """The same trace with throughputs and power that `predict` estimates."""
    changes: dict[str, object] = {
        "jobs.trace.file": str(FOLDER / PHILLY_FILES["jobs.trace.file"]),
        "jobs.trace.head": head,
    }
    return load_scenario("philly", changes).world(0)


def _asleep(cluster: Cluster) -> Cluster:
    types = tuple(
        replace(each, sleeps=(SleepState.of(each.idle_w, SLEEP_W, ENTER_S, EXIT_S),))
        for each in cluster.types
    )
    return replace(cluster, types=types)


def _run(world: World, policy: str, share: float) -> Metrics:
    simulation = Simulation(
        of_nodes(world.cluster, share),
        world.jobs,
        policy_from(policy),
        truth=world.truth,
        oracle=world.oracle,
        settings=world.settings,
    )
    return metrics_of(simulation.run())


def _tighter_than(world: World, spare_s: float) -> float:
    """Return the share of deadlines with less time to spare on the fastest GPUs."""
    jobs, options = world.jobs, [world.truth.options(kind) for kind in world.jobs.kinds]
    sample_s = np.array([each.sample_s.min(initial=np.inf) for each in options])
    slack_s = jobs.deadline_s - jobs.arrival_s - jobs.work * sample_s[jobs.kind]
    return float((slack_s[np.isfinite(slack_s)] < spare_s).mean())


def _busy(metrics: Metrics) -> float:
    return sum(metrics.utilisation.values()) / max(len(metrics.utilisation), 1)


def _isolated(world: World, load: float) -> Table:
    share = share_for(load, lambda share: _busy(_run(world, "pollux", share)))
    rules = replace(world.settings, interference=INTERFERENCE)
    slowed = world._replace(settings=rules)
    found = {name: _run(slowed, name, share) for name in PACKED}
    found |= {f"{name}, no interference": _run(world, name, share) for name in ("pollux", "helios")}
    base, rows = found["pollux"], []
    for name, each in found.items():
        print("isolated", load, name, f"{each.energy_kwh:.1f} kWh", flush=True)
        rows.append([
            name, str(each.jobs_done), f"{each.energy_kwh:,.1f} kWh",
            f"{100 * (each.energy_kwh / base.energy_kwh - 1):+.1f}%",
            f"{each.throughput_per_h / base.throughput_per_h:.3f}",
            f"{100 * (each.age_mean_s / base.age_mean_s - 1):+.1f}%",
        ])  # fmt: skip
    head = ["policy", "jobs done", "energy", "against Pollux", "throughput", "mean age of jobs"]
    return Table(f"Isolated jobs, load {100 * load:.0f}%", head, rows)


def _table(name: str, world: World, load: float) -> Table:
    share = share_for(load, lambda share: _busy(_run(world, "pollux", share)))
    found: dict[str, Metrics] = {}
    for policy in POLICIES:
        found[policy] = _run(world, policy, share)
        print(name, load, policy, f"{found[policy].energy_kwh:.1f} kWh", flush=True)
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
    head = [
        "policy",
        "jobs done",
        "energy",
        "against Pollux",
        "mean age of jobs",
        "misses",
        "asleep",
    ]
    gpus = of_nodes(world.cluster, share).gpus
    text = (
        f"{gpus:,} GPUs, busy for {100 * _busy(base):.0f}% of the time under Pollux. Of the "
        f"deadlines {100 * _tighter_than(world, EXIT_S):.1f}% leave less than {EXIT_S:g} s beyond "
        f"the best run time, and {100 * _tighter_than(world, ENTER_S + EXIT_S):.1f}% less than "
        f"{ENTER_S + EXIT_S:g} s."
    )
    return Table(f"{name}, load {100 * load:.0f}%", head, rows, text)


if __name__ == "__main__":
    raise SystemExit(main())
