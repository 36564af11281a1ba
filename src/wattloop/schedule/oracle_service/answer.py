"""Answer of the oracle service: estimates of pairs, and the best placement of each job."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattloop.predict.intervals import CONFIDENCE
from wattloop.schedule.oracle_service.job_query import JobQuery
from wattloop.schedule.oracle_service.placement_estimates import COSTS, Pair, PlacementEstimate
from wattloop.schedule.oracle_service.placement_query import PlacementQuery


@dataclass(frozen=True, slots=True)
class Answer:
    """Estimates of all pairs, and the best pair of each job.

    Attributes:
        jobs, places: the queried jobs and placements.
        pairs: indices of job and placement.
        prices: estimate of each pair.
        best: index of each job's best pair; None without one.
        objective: objective of the choice.
    """

    jobs: tuple[JobQuery, ...]
    places: tuple[PlacementQuery, ...]
    pairs: tuple[Pair, ...]
    prices: tuple[PlacementEstimate, ...]
    best: tuple[int | None, ...]
    objective: str


def best_of(
    jobs: Sequence[JobQuery],
    pairs: Sequence[Pair],
    prices: Sequence[PlacementEstimate],
    objective: str,
) -> tuple[int | None, ...]:
    """Return each job's cheapest pair that meets the deadline; else the least late one."""
    best: list[tuple[float, float, int]] = [(math.inf, math.inf, -1)] * len(jobs)
    for number, ((job, _), price) in enumerate(zip(pairs, prices, strict=True)):
        time_s, power_w, late_s = price.time_s, price.power_w, 0.0
        if time_s is not None:
            late_s = max(time_s - jobs[job].deadline_s, 0.0)
        elif price.samples_s:  # unknown number of samples: compare the cost of one
            time_s = 1 / price.samples_s
        if time_s is not None and power_w is not None:
            best[job] = min(best[job], (late_s, COSTS[objective](time_s, power_w), number))
    return tuple(None if number < 0 else number for _, _, number in best)


def to_dict(answer: Answer) -> dict[str, Any]:
    """Convert to plain data for JSON (docs/oracle-service.md)."""
    return {
        "results": [
            _row(number, pair, price)
            for number, (pair, price) in enumerate(zip(answer.pairs, answer.prices, strict=True))
        ],
        "jobs": [
            {"job": number, **job.to_dict(), "best": answer.best[number]}
            for number, job in enumerate(answer.jobs)
        ],
        "placements": [place.to_dict() for place in answer.places],
        "objective": answer.objective,
        "confidence": CONFIDENCE,
        "scope": "gpu",
    }


def _row(number: int, pair: Pair, price: PlacementEstimate) -> dict[str, Any]:
    if price.error:
        return {
            "result": number,
            "job": pair[0],
            "placement": pair[1],
            "error": price.error,
            "later": price.later,
        }
    energy_j = price.energy_j
    factors = price.factors or {}
    return {
        "result": number,
        "job": pair[0],
        "placement": pair[1],
        "time_s": price.time_s,
        "power_w": price.power_w,
        "energy_j": energy_j,
        "samples_s": price.samples_s,
        "batch": price.batch,
        "cap_w": price.cap_w,
        "intervals": {
            "time_s": _interval(price.time_s, factors.get("time")),
            "power_w": _interval(price.power_w, factors.get("power"), price.most_w),
            "energy_j": _interval(energy_j, factors.get("energy")),
        },
        "provenance": price.provenance,
        "source": price.source,
    }


def _interval(
    value: float | None, factor: float | None, most: float | None = None
) -> list[float] | None:
    if value is None or factor is None:
        return None
    high = value * factor
    return [value / factor, high if most is None else min(high, max(most, value))]
