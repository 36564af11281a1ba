"""Configurations of a search that may be as good as its best: differences within noise.

A search trains a configuration once, so its noise is what that one run tells: what reaching a
target took is known to within one epoch, the energy of equal epochs scatters, and so does a metric
from epoch to epoch. The error of a sensor is added where it is independent from run to run; that of
a shared model (an estimate) is the same in both, and cancels.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from wattloop.core.model_error import MODELS, ratio_error
from wattloop.core.units import format_number
from wattloop.tune.candidate_results import CandidateResult

__all__ = ["cost_j", "ties_of"]

DEGREES = {"energy": 1, "time": 1, "cost": 1, "carbon": 1, "eds": 1, "edp": 2, "ed2p": 3}
"""Objective -> by how many times the noise of energy and time it wavers."""


def cost_j(candidate: CandidateResult) -> float | None:
    """To the target where it was reached, else of the whole training where that has ended."""
    if candidate.reached:
        return candidate.to_target_j
    return candidate.energy_j if candidate.status == "ended" else None


def ties_of(
    best: CandidateResult | None, candidates: Sequence[CandidateResult], facts: Mapping[str, Any]
) -> tuple[tuple[CandidateResult, ...], str]:
    """Those that cannot be told from the best, nearest first, and a sentence about them."""
    names = (facts.get("objective") or {}).get("names") or ["energy"]
    if best is None or len(names) > 1:
        return (), ""
    name = names[0]
    compare = _qualities if name == "quality" else _costs if name in DEGREES else None
    if compare is None:
        return (), ""
    near = []
    for other in candidates:
        if other is not best and other.good:
            apart, noise = compare(best, other, name)
            if apart <= noise:
                near.append((apart, noise, other))
    near.sort(key=lambda one: one[0])
    if not near:
        return (), ""
    apart, noise, nearest = near[0]
    unit = (facts.get("quality") or {}).get("metric") if name == "quality" else name
    shown = format_number if name == "quality" else _percent
    more = f" and {len(near) - 1} more" if len(near) > 1 else ""
    return tuple(one[2] for one in near), (
        f"a tie with {nearest.candidate}{more}: {unit} differs by {shown(apart)}, within the noise "
        f"of single runs ({shown(noise)}); another seed may choose another"
    )


def _costs(one: CandidateResult, other: CandidateResult, name: str) -> tuple[float, float]:
    """Relative difference of what two trainings took, and its noise."""
    first, second = _cost(one, name), _cost(other, name)
    if not first or second is None or one.cost_noise is None or other.cost_noise is None:
        return math.inf, 0.0
    noise = math.hypot(one.cost_noise, other.cost_noise, _sensor_noise(one, other))
    return abs(second / first - 1), DEGREES[name] * noise


def _cost(candidate: CandidateResult, name: str) -> float | None:
    energy_j = cost_j(candidate)
    time_s = candidate.to_target_s if candidate.reached else candidate.time_s
    if time_s is None or (energy_j is None and name != "time"):
        return None
    if name == "time":
        return time_s if candidate.reached or candidate.status == "ended" else None
    return (energy_j or 0.0) * time_s ** (DEGREES[name] - 1)


def _sensor_noise(one: CandidateResult, other: CandidateResult) -> float:
    """Relative error of the ratio of two energies, without what is the same in both."""
    first, second = one.error, other.error
    if first is not None and second is not None and first.energy_j and second.energy_j:
        shared = first.models.keys() & second.models.keys()
        own = [error.without(shared) / error.energy_j for error in (first, second)]
        return math.hypot(*own, ratio_error(first, second))
    return math.hypot(
        *(
            candidate.uncertainty_j / candidate.energy_j
            for candidate in (one, other)
            if candidate.energy_j and candidate.provenance not in MODELS
        )
    )


def _qualities(one: CandidateResult, other: CandidateResult, _: str) -> tuple[float, float]:
    """Difference of the best metric of two trainings, and its noise."""
    if one.best is None or other.best is None:
        return math.inf, 0.0
    if one.quality_noise is None or other.quality_noise is None:
        return math.inf, 0.0
    return abs(one.best - other.best), math.hypot(one.quality_noise, other.quality_noise)


def _percent(share: float) -> str:
    return f"{share:.1%}"
