"""Scenarios on the same machines need to be predicted once only."""

from collections.abc import Iterable

from wattloop.schedule.scenarios.scenario import Scenario

__all__ = ["share_truth"]


def share_truth(scenarios: Iterable[Scenario]) -> None:
    """Give scenarios of the same cluster and oracle the same truth, with all it has worked out."""
    first: list[Scenario] = []
    for scenario in scenarios:
        like = [each for each in first if _is_alike(each, scenario)]
        if like:
            # what `cached_property` would keep there, had it been asked
            scenario.__dict__["truth"] = like[0].truth
        else:
            first.append(scenario)


def _is_alike(one: Scenario, other: Scenario) -> bool:
    return one.cluster == other.cluster and one.oracle == other.oracle
