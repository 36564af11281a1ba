"""Rule: GPUs of one run that work unevenly."""

from statistics import median

from wattloop.advise.advice import Advice
from wattloop.advise.facts import RunFacts
from wattloop.advise.rules.idle import MOSTLY
from wattloop.core.units import format_power

UNEVEN = 0.7
"""Work of a GPU below this part of the median of the others. The insight of the same name says so
below 0.75 of the power with idling in it; above idling, three GPUs in a data-parallel job stay
within a tenth of each other."""
SHORTEST_S = 10.0


def unbalanced_gpus(facts: RunFacts) -> Advice | None:
    """A GPU that does clearly less than the others, and what its waiting costs."""
    span = facts.working
    if span is None or span.length_s < SHORTEST_S:
        return None
    working = [g for g in facts.gpus if g.idle_share(span) < MOSTLY]
    if len(working) < 2:
        return None
    powers = {g.name: g.power.within(span).mean() or 0.0 for g in working}
    above_w = {g.name: max(0.0, powers[g.name] - g.idle.watts) for g in working}
    busy = {g.name: g.busy_share(span) for g in working}
    # A GPU that meets its cap draws as much as one with twice the work; a GPU that is there half
    # the time may draw as much as a slow one. Whichever says less is right.
    part = {
        g.name: min(_relative_to_others(g.name, above_w), _relative_to_others(g.name, busy))
        for g in working
    }
    light = [g for g in working if part[g.name] < UNEVEN]
    if not light or len(light) > len(working) / 2:
        return None
    # What a GPU idles through while others do its part: its idle power over the missing share.
    saving_j = sum(g.idle.watts * span.length_s * (1 - part[g.name]) for g in light)
    names = ", ".join(g.label for g in light)
    return Advice(
        rule="unbalanced-gpus",
        title=f"{names} did less than the others",
        text=(
            f"{names} worked at "
            f"{min(part[g.name] for g in light):.0%} of what the other "
            "GPUs did, and idled or was waited for the rest of the time. Even out the batch, the "
            "layers or the experts per GPU, or look for a card that is capped or throttled."
        ),
        saving_j=saving_j,
        saving_share=saving_j / facts.energy_j,
        time_change_share=None,
        evidence=tuple(
            f"{g.label}: at work {busy[g.name]:.0%} of the time, "
            f"{format_power(above_w[g.name])} above idle"
            for g in working
        ),
        source="by the readings of this run",
        command=f"wattloop runs show {facts.record.run_id}",
    )


def _relative_to_others(name: str, values: dict[str, float]) -> float:
    """As a part of the median of the others."""
    others = median(value for other, value in values.items() if other != name)
    return values[name] / others if others > 0 else 1.0
