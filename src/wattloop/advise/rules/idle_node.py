"""Rule: a machine that stays on, and idle, after the run."""

from wattloop.advise.advice import Advice
from wattloop.advise.facts import RunFacts
from wattloop.core.units import format_duration, format_energy, format_power

LONG_S = 3_600.0
"""Shorter pauses are people at work."""
LONGEST_S = 7 * 86_400.0
"""After a week the machine may have been switched off, or used without Wattloop."""


def idle_node(facts: RunFacts) -> Advice | None:
    """The hours until the next run on the machine, at its idle power."""
    node = facts.node
    if node is None or not LONG_S <= node.waited_s <= LONGEST_S or node.power_w <= 0:
        return None
    saving_j = node.power_w * node.waited_s
    return Advice(
        rule="idle-node",
        title=f"The machine idled {format_duration(node.waited_s)} after the end",
        text=(
            f"The next measured run on {facts.record.host or 'this machine'} began "
            f"{format_duration(node.waited_s)} later. At {format_power(node.power_w)} idle that "
            f"is {format_energy(saving_j)}, unless it did something that was not measured: queue "
            "runs one after the other, suspend the machine, or give the node back."
        ),
        saving_j=saving_j,
        saving_share=saving_j / facts.energy_j,
        time_change_share=0.0,
        evidence=(
            f"no measured run for {format_duration(node.waited_s)} after {facts.record.run_id}",
            f"idle power {format_power(node.power_w)}",
        ),
        source=node.source,
        command="wattloop idle",
    )
