"""Waiting times by user under Themis and Hades, as the thesis says and as it prints (ADR 0032).

    python benchmarks/fairness.py [--seeds 30] [--quick] [--json FILE]

The thesis's imbalanced scenario, where one of five users submits half of all jobs, at its own load
and at two higher ones.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bars import Bar, Page, Table, arguments, publish
from wattloop.core.errors import WattloopError
from wattloop.schedule.engine import Simulation, SimulationResult
from wattloop.schedule.metrics.metrics import jain
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.scenarios.file import load_scenario

RATES_PER_S = (0.005, 0.006, 0.008)
POLICIES = ("pollux", "themis", "themis-as-printed", "zeus", "hades", "hades-as-printed")
HEADER = ("policy", "wait of the busy user, min", "wait of the others, min", "longest wait, min",
          "GPU time of the busy user, %", "Jain of JCT", "jobs/h")  # fmt: skip
TEXT = """
One user of five submits half of all jobs. The thesis says that who has consumed little is to go
first, and prints a formula by which who has consumed much does. Waits run from arrival to first
start, or to the end of the ten hours for who has not started by then. Simulated.
"""


class Served(NamedTuple):
    """One simulation's treatment of its users; means over jobs, then over seeds."""

    busy_wait_min: float
    other_wait_min: float
    longest_wait_min: float
    busy_share_pct: float
    jain_jct: float
    jobs_per_h: float


def main(words: Sequence[str] | None = None) -> int:
    parser = arguments("who waits for whom under Themis and Hades, as said and as printed")
    parser.add_argument("--seeds", type=int, default=30, help="simulations of each kind")
    args = parser.parse_args(words)
    rates = RATES_PER_S[1:2] if args.quick else RATES_PER_S
    seeds = range(2 if args.quick else args.seeds)
    try:
        found = {rate: {name: mean(name, rate, seeds) for name in POLICIES} for rate in rates}
    except WattloopError as error:
        print(error, file=sys.stderr)
        return 2
    tables = [
        Table(f"{rate * 3600:g} jobs an hour", HEADER, [(name, *by[name]) for name in POLICIES])
        for rate, by in found.items()
    ]
    text = f"{TEXT.strip()} Means of {len(seeds)} seeds."
    publish(Page("fairness", "Fairness as said and as printed", bars(found), tables, text), args)
    return 0


def bars(found: dict[float, dict[str, Served]]) -> list[Bar]:
    """Judge if users with few jobs wait less than under a policy that ignores users."""
    rows = []
    for rate, by in found.items():
        for fair, blind in (("themis", "pollux"), ("hades", "zeus")):
            printed = by[f"{fair}-as-printed"].other_wait_min
            rows.append(
                Bar(
                    f"others_wait_{fair}_at_{rate:g}",
                    by[fair].other_wait_min,
                    "min",
                    bar=round(by[blind].other_wait_min, 2),
                    baselines={"as printed": printed, "blind": by[blind].other_wait_min},
                    note=f"the bar is what they wait under {blind}, which knows no users",
                )
            )
    return rows


def mean(policy: str, rate_per_s: float, seeds: Sequence[int]) -> Served:
    """Return the mean over seeds."""
    scenario = load_scenario("thesis-imbalanced", {"jobs.generate.rate_per_s": rate_per_s})
    rows = []
    for seed in seeds:
        world = scenario.world(seed)
        result = Simulation(
            world.cluster,
            world.jobs,
            policy_from(policy),
            truth=world.truth,
            oracle=world.oracle,
            settings=world.settings,
        ).run()
        rows.append(served(result))
    return Served(*(float(each) for each in np.nanmean(rows, axis=0)))


def served(result: SimulationResult) -> Served:
    """Return the figures of one simulation."""
    jobs = result.jobs
    came = jobs.arrival_s <= result.end_s
    busy = jobs.user == np.argmax(np.bincount(jobs.user[came]))
    started_s = np.where(np.isnan(result.started_s), result.end_s, result.started_s)
    wait_min = (started_s - jobs.arrival_s) / 60
    jct_s = result.finished_s - jobs.arrival_s
    done = [jct_s[result.is_done & (jobs.user == user)] for user in range(len(jobs.users))]
    fairness = jain(np.array([each.mean() for each in done if len(each)]))
    return Served(
        float(wait_min[came & busy].mean()),
        float(wait_min[came & ~busy].mean()),
        float(wait_min[came].max()),
        float(100 * result.gpu_s[busy].sum() / result.gpu_s.sum()),
        np.nan if fairness is None else fairness,
        float(result.is_done.sum() / (result.end_s / 3600)),
    )


if __name__ == "__main__":
    sys.exit(main())
