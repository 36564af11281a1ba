"""Comparison of strategies on measured tables, and its figures.

In units of D, one training with the default batch size at the highest cap (mean over training
seeds), and of the oracle, the least mean energy to the target over batch sizes and caps. Energies
are true ones; strategies see them through the meter's noise.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from wattloop.tune.replay.executor import CapScripts, ReplayExecutor
from wattloop.tune.replay.recurring_jobs import CLOSE, ReplayPolicy, ServedRun, make_policy
from wattloop.tune.replay.tables import RecordedWorkload

FIGURES = {
    "explore_d": "energy of the first search that did not train its winner, in D",
    "one_shot_d": "all energy until the first search is over and the target is reached, in D",
    "final_over_oracle": "mean energy to the target of the winner, over the oracle's",
    "within_5pct_share": "share of seeds whose winner is at most 5% above the oracle",
    "failures": "runs that did not reach the target, and trainings of a settled job that did not",
    "cum20_over_oracle": "energy of the first 20 runs of the job, the search included, over that "
    "of 20 oracle runs",
    "cum50_over_oracle": "the same for 50 runs",
    "close_d": "energy until the choice was within 5% of the oracle, in D; median of the seeds "
    "in which it came to that",
}
"""Name -> meaning. Means over seeds, unless stated otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayEntry:
    """One workload on one GPU; see `FIGURES`. None: fewer runs were replayed, or never."""

    gpu: str
    dataset: str
    network: str
    optimizer: str
    default_batch_size: int
    default_energy_j: float
    oracle_energy_j: float
    explore_d: float
    one_shot_d: float
    final_over_oracle: float | None
    within_5pct_share: float
    failures: int
    cum20_over_oracle: float | None
    cum50_over_oracle: float | None
    close_d: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def replay(
    workload: RecordedWorkload,
    name: str,
    *,
    seeds: int = 20,
    recurrences: int = 50,
    scripts: CapScripts | None = None,
    make: Callable[[RecordedWorkload, int], ReplayPolicy] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> ReplayEntry:
    """Replay one strategy on one workload.

    `make`: builds an unnamed one, in its place.
    `seeds`: independent repetitions; each draws its own training seeds and readings.
    `recurrences`: runs of the job in each.
    `scripts`: searches for caps, shared by strategies, with the noise of the meter.
    """
    scripts = scripts or CapScripts()
    served: list[list[ServedRun]] = []
    for seed in range(seeds):
        one = make_policy(name, workload, seed) if make is None else make(workload, seed)
        served.append(
            [
                one.serve(ReplayExecutor(workload, scripts, [seed, run]))
                for run in range(recurrences)
            ]
        )
        advance()
    return _entry(workload, served)


def medians(entries: Sequence[ReplayEntry]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in FIGURES:
        values = [value for e in entries if (value := getattr(e, name)) is not None]
        found[name] = median(values) if values else None
    return found


def _entry(workload: RecordedWorkload, served: Sequence[Sequence[ServedRun]]) -> ReplayEntry:
    whole_j, oracle_j = workload.default_energy_j, workload.oracle_energy_j
    first = [runs[0] for runs in served]
    final = [
        workload.energy_j(run.batch_size, run.cap_w) / oracle_j
        for run in first
        if run.batch_size is not None and run.cap_w is not None
    ]
    close = [run.close_j / whole_j for run in first if run.close_j is not None]
    return ReplayEntry(
        gpu=workload.gpu,
        dataset=workload.dataset,
        network=workload.network,
        optimizer=workload.optimizer,
        default_batch_size=workload.default,
        default_energy_j=whole_j,
        oracle_energy_j=oracle_j,
        explore_d=fmean((run.energy_j - run.winner_j) / whole_j for run in first),
        one_shot_d=fmean(run.energy_j / whole_j for run in first),
        final_over_oracle=fmean(final) if final else None,
        within_5pct_share=sum(ratio <= CLOSE + 1e-9 for ratio in final) / len(first),
        failures=sum(max(run.failures, not run.reached) for runs in served for run in runs),
        cum20_over_oracle=_cumulated(served, 20, oracle_j),
        cum50_over_oracle=_cumulated(served, 50, oracle_j),
        close_d=median(close) if close else None,
    )


def _cumulated(served: Sequence[Sequence[ServedRun]], runs: int, oracle_j: float) -> float | None:
    if any(len(each) < runs for each in served):
        return None
    spent_j = [math.fsum(run.energy_j for run in each[:runs]) for each in served]
    return fmean(spent_j) / (runs * oracle_j)
