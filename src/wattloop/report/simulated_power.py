"""One policy on one seed of a stored campaign, simulated again for power over time."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.predict.sources.source import is_saved_workload
from wattloop.report.document import Block, Chart, Note
from wattloop.report.figures.campaign import over_time_figures
from wattloop.schedule.campaigns.campaign import PolicyChoice
from wattloop.schedule.campaigns.workers import simulate
from wattloop.schedule.metrics.curves import power_curve
from wattloop.schedule.metrics.metrics import metrics_of
from wattloop.schedule.policies.registry import POLICIES
from wattloop.schedule.scenarios.scenario import Scenario, stored_scenario

IN_WORDS = {"power": "Power of the cluster", "gpus": "Which job had which GPU"}
LONGEST_S = 10.0
"""Of what simulating it took: a page is not the place for more."""


class Shown(NamedTuple):
    """The curves of one simulation.

    Attributes:
        policy, seed: which one.
        times_s, mean_w, budget_w: power of the cluster in equal spans; the budget where there is.
        same: whether it is, event by event, what the campaign had.
        charts: power and who had which GPU.
    """

    policy: str
    seed: int
    times_s: list[float]
    mean_w: list[float]
    budget_w: list[float | None]
    same: bool
    charts: dict[str, Any]


def over_time(
    spec: Mapping[str, Any], outcome: Mapping[str, Any], given: str, policy: str, seed: int
) -> Shown:
    """Simulate one cell of a stored campaign again.

    Where the scenario names files, it is shown only if it comes out as it did then: so a stored
    text cannot make a server show what is in a file that its author has not read.

    Args:
        spec: of the campaign, as stored.
        outcome: what came of this cell then.
        given: the policy as it was written.
        policy: what it is called.
        seed: which seed.

    Raises:
        ConfigError: too large for a page, of a variant, or of a policy that is not ours.
    """
    said = f"wattloop simulate {spec['scenario']['name']} --plot FOLDER"
    if spec.get("variants"):
        raise ConfigError(f"the store does not hold the variants of this scenario; see: {said}")
    if given.partition("{")[0].strip() not in POLICIES:
        raise ConfigError(
            f"{policy}: not a policy of Wattloop, and its file is not run; see: {said}"
        )
    if float(outcome.get("wall_s") or 0.0) > LONGEST_S:
        raise ConfigError(f"too large to be simulated again for a page; see: {said}")
    scenario = stored_scenario(spec["scenario"])
    try:
        world = scenario.world(seed)
        result = simulate(world, PolicyChoice.named(given))
    except ConfigError:
        if _names_files(scenario):  # the message could quote them
            raise ConfigError(
                f"its files cannot be used here as they were then; see: {said}"
            ) from None
        raise
    same = metrics_of(result).to_dict().get("event_hash") == outcome.get("event_hash")
    if _names_files(scenario) and not same:
        raise ConfigError(f"simulated again from its files, it comes out otherwise; see: {said}")
    curve = power_curve(result)
    about = f"{scenario.name}, simulated, seed {seed}"
    budget_w = [None if w == float("inf") else w for w in curve.budget_w.tolist()]
    return Shown(
        policy,
        seed,
        curve.times_s.tolist(),
        curve.mean_w.tolist(),
        budget_w,
        same,
        over_time_figures({policy: result}, world.truth, about),
    )


def _names_files(scenario: Scenario) -> bool:
    oracle = scenario.oracle
    models = (model.model for model in scenario.jobs.models)
    return (
        scenario.jobs.trace is not None
        or bool(oracle.calibrations or oracle.throughputs or oracle.cap_curves)
        or any(is_saved_workload(model) for model in models)
    )


def over_time_blocks(shown: Shown) -> list[Block]:
    blocks: list[Block] = [
        Chart(name, chart, f"{IN_WORDS[name.partition('-')[0]]} under {shown.policy}")
        for name, chart in shown.charts.items()
    ]
    if not shown.same:
        text = "Wattloop has changed since this campaign: simulated again, it comes out otherwise."
        blocks.insert(0, Note(text, tone="warning", title="Beware:"))
    return blocks
