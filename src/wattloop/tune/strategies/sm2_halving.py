"""Which half goes on: the objective of document 003 over those that are left."""

from collections.abc import Mapping, Sequence

from wattloop.tune.sm2_score import sm2_scores
from wattloop.tune.strategies.sm2_course import Course

__all__ = ["cost", "halving_scores", "kept_half"]


def halving_scores(
    courses: Sequence[Course], *, alpha: float, beta: float, maximize: bool
) -> dict[str, float]:
    """Equation 2 for each, by name; larger is better."""
    energy_j = [course.explored_energy_j for course in courses]
    if any(energy is None for energy in energy_j):
        # Nothing is metered here: what takes long is taken to cost much.
        energy_j = [course.explored_time_s for course in courses]
    quality = [course.explored_quality for course in courses]
    if all(value is None for value in quality):
        quality = [0.0 for _ in courses]  # sweeps of this bench do not say: the rest decides
    rates = [course.rate for course in courses]
    scores = sm2_scores(quality, energy_j, rates, alpha=alpha, beta=beta, maximize=maximize)
    return {course.name: score for course, score in zip(courses, scores, strict=True)}


def cost(course: Course) -> float:
    """What an epoch takes, for ties."""
    known = course.explored_energy_j
    return course.explored_time_s if known is None else known


def kept_half(scores: Mapping[str, float], costs: Mapping[str, float]) -> list[str]:
    """The better half, one more of an odd number; ties to the cheaper, then to the earlier."""
    order = {name: number for number, name in enumerate(scores)}
    ranked = sorted(scores, key=lambda n: (-scores[n], costs[n], order[n]))
    kept = set(ranked[: (len(ranked) + 1) // 2])
    return [name for name in scores if name in kept]
