"""What a search for a power cap makes small, given what the whole search makes small."""

from wattloop.characterize.cap_finder import FINDER_METRICS
from wattloop.tune.objective import Objective

__all__ = ["cap_metric", "wants_no_cap"]


def cap_metric(objective: Objective) -> tuple[str, float]:
    """Metric and k for `CapSearch`.

    Carbon, cost of electricity, SM2 and the quotient fall with the energy. Where machine time has
    a price, energy and time are weighed by EDS. Quality does not depend on the cap.
    """
    for name in objective.names:
        if name in FINDER_METRICS:
            return name, objective.k
        if name == "cost" and objective.options.get("price_per_hour"):
            return "eds", objective.k
    return "energy", objective.k


def wants_no_cap(names: list[str]) -> bool:
    """Whether the highest cap is best whatever is found: only time counts."""
    return names == ["time"]
