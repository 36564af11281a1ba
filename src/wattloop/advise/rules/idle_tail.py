"""Rule: a run that continues after its GPUs have finished."""

from wattloop.advise.advice import Advice
from wattloop.advise.facts import RunFacts
from wattloop.advise.signal_trace import TraceInterval
from wattloop.core.units import format_duration, format_energy

TAIL = 0.08
"""Of the run. Writing a checkpoint and ending a program take a few per cent of a short run."""
SHORTEST_S = 10.0
WORKED = 0.1
"""The GPUs worked for this share of the run; else they are idle GPUs, not a tail."""


def idle_tail(facts: RunFacts) -> Advice | None:
    """The time after the last work of any GPU, and what the GPUs drew in it."""
    span = facts.working
    if span is None or span.length_s < WORKED * facts.duration_s:
        return None
    tail = TraceInterval(span.end_s, facts.duration_s)
    share = tail.length_s / facts.duration_s
    if tail.length_s < SHORTEST_S or share < TAIL:
        return None
    powers = {gpu.label: gpu.power.within(tail).mean() or gpu.idle.watts for gpu in facts.gpus}
    saving_j = sum(powers.values()) * tail.length_s
    return Advice(
        rule="idle-tail",
        title=f"Idle for the last {format_duration(tail.length_s)}",
        text=(
            f"The last work of a GPU ended {format_duration(tail.length_s)} before the run did "
            f"({share:.0%} of it), and the GPUs drew {format_energy(saving_j)} after that. End "
            "the program, or its allocation, when the training ends: write, upload and plot "
            "elsewhere."
        ),
        saving_j=saving_j,
        saving_share=saving_j / facts.energy_j,
        time_change_share=-share,
        evidence=(
            f"no work on any GPU from {format_duration(span.end_s)} to "
            f"{format_duration(facts.duration_s)}",
            *(f"{name}: {power_w:.0f} W meanwhile" for name, power_w in powers.items()),
        ),
        source="by the readings of this run",
        command=facts.run_again(),
    )
