"""Rule: a GPU that was idle for most of the run."""

from wattloop.advise.advice import Advice
from wattloop.advise.facts import RunFacts
from wattloop.advise.gpu_facts import GpuFacts
from wattloop.advise.signal_trace import TraceInterval
from wattloop.core.units import format_energy, format_power

MOSTLY = 0.5
"""Idle for more than half of the working time."""
LONG_REST_S = 30.0
"""The only GPU of a run may wait for data between steps, which is another rule; a rest this long
is not part of a step."""
UNUSED = 0.05
"""Work below this part of what the busiest GPU had."""
SHORTEST_S = 10.0
"""A run this short is mostly the start of a program."""


def idle_gpu(facts: RunFacts) -> Advice | None:
    """GPUs that were idle, their energy meanwhile, and how to leave them to others."""
    if facts.duration_s < SHORTEST_S or not facts.gpus or facts.waits_on_purpose:
        return None
    span = facts.working
    if span is None:
        return _advice(facts, list(facts.gpus), facts.whole)  # the program did not use them
    if span.length_s < SHORTEST_S:
        return None
    idle = [g for g in facts.gpus if g.idle_share(span) >= MOSTLY]
    if len(idle) == len(facts.gpus):  # they all wait, for data or for something else
        busiest = max(g.busy_share(span) for g in idle)
        rest = [g for g in idle if _typical_rest_s(g, span) >= LONG_REST_S]
        unused = [g for g in idle if g.busy_share(span) < UNUSED * busiest]
        idle = unused or rest
    return _advice(facts, idle, span) if idle else None


def _typical_rest_s(gpu: GpuFacts, span: TraceInterval) -> float:
    """Half of the idle time lies in rests at least this long."""
    rests = sorted((s.length_s for s in gpu.idle_stretches(span)), reverse=True)
    half, so_far = sum(rests) / 2, 0.0
    for length_s in rests:
        so_far += length_s
        if so_far >= half:
            return length_s
    return 0.0


def _advice(facts: RunFacts, idle: list[GpuFacts], span: TraceInterval) -> Advice:
    shares = {gpu.label: gpu.idle_share(span) for gpu in idle}
    saving_j = sum(gpu.power_while_idle_w(span) * span.length_s * shares[gpu.label] for gpu in idle)
    names = _listed([gpu.label for gpu in idle])
    lowest, highest = min(shares.values()), max(shares.values())
    share = f"{highest:.0%}" if highest - lowest < 0.02 else f"{lowest:.0%} to {highest:.0%}"
    several = len(idle) > 1
    return Advice(
        rule="idle-gpu",
        title=f"{names} idle {share} of the time",
        text=(
            f"{names} {'were' if several else 'was'} idle {share} of the time and drew "
            f"{format_energy(saving_j)} meanwhile. Ask for as many GPUs as the program uses, or "
            "give it work for all of them; what another job does on "
            f"{'them' if several else 'it'} is not wasted any more."
        ),
        saving_j=saving_j,
        saving_share=saving_j / facts.energy_j,
        time_change_share=0.0,
        evidence=tuple(
            f"{gpu.label}: no work in {shares[gpu.label]:.0%} of "
            f"{len(gpu.load.within(span).values)} readings, "
            f"{format_power(gpu.power_while_idle_w(span))} meanwhile"
            for gpu in idle
        ),
        source="by the readings of this run",
        command=_confirm(facts, idle),
    )


def _confirm(facts: RunFacts, idle: list[GpuFacts]) -> str:
    """The same program with the GPUs that it uses."""
    used = [g.name.removeprefix("gpu:") for g in facts.gpus if g not in idle]
    visible = ",".join(used)
    devices = ",".join(["cpu", *(f"gpu:{number}" for number in used)])
    again = facts.run_again(options=["--devices", devices])
    return f"CUDA_VISIBLE_DEVICES={visible} {again}" if again else ""


def _listed(labels: list[str]) -> str:
    """`GPU 1`, `GPUs 1, 2 and 5`, `GPUs 1 to 7`."""
    numbers = [label.removeprefix("GPU ") for label in labels]
    if len(numbers) == 1:
        return labels[0]
    whole = [int(n) for n in numbers if n.isdecimal()]
    if len(whole) == len(numbers) > 2 and whole == list(range(whole[0], whole[0] + len(whole))):
        return f"GPUs {whole[0]} to {whole[-1]}"
    return f"GPUs {', '.join(numbers[:-1])} and {numbers[-1]}"
