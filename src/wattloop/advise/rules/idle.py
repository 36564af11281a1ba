"""Rules: GPUs idle for most of the run or after its work, and a machine idle after the run."""

from wattloop.advise.advice import Advice
from wattloop.advise.facts import RunFacts
from wattloop.advise.gpu_facts import GpuFacts, TraceInterval
from wattloop.core.units import format_duration, format_energy, format_power

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
        return _idle_gpu_advice(
            facts, list(facts.gpus), facts.whole
        )  # the program did not use them
    if span.length_s < SHORTEST_S:
        return None
    idle = [g for g in facts.gpus if g.idle_share(span) >= MOSTLY]
    if len(idle) == len(facts.gpus):  # they all wait, for data or for something else
        busiest = max(g.busy_share(span) for g in idle)
        rest = [g for g in idle if _typical_rest_s(g, span) >= LONG_REST_S]
        unused = [g for g in idle if g.busy_share(span) < UNUSED * busiest]
        idle = unused or rest
    return _idle_gpu_advice(facts, idle, span) if idle else None


def _typical_rest_s(gpu: GpuFacts, span: TraceInterval) -> float:
    """Half of the idle time lies in rests at least this long."""
    rests = sorted((s.length_s for s in gpu.idle_stretches(span)), reverse=True)
    half, so_far = sum(rests) / 2, 0.0
    for length_s in rests:
        so_far += length_s
        if so_far >= half:
            return length_s
    return 0.0


def _idle_gpu_advice(facts: RunFacts, idle: list[GpuFacts], span: TraceInterval) -> Advice:
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
        command=_without_idle_gpus(facts, idle),
    )


def _without_idle_gpus(facts: RunFacts, idle: list[GpuFacts]) -> str:
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


TAIL_SHARE = 0.08
"""Of the run. Writing a checkpoint and ending a program take a few per cent of a short run."""
WORKED_SHARE = 0.1
"""The GPUs worked for this share of the run; else they are idle GPUs, not a tail."""


def idle_tail(facts: RunFacts) -> Advice | None:
    """The time after the last work of any GPU, and what the GPUs drew in it."""
    span = facts.working
    if span is None or span.length_s < WORKED_SHARE * facts.duration_s:
        return None
    tail = TraceInterval(span.end_s, facts.duration_s)
    share = tail.length_s / facts.duration_s
    if tail.length_s < SHORTEST_S or share < TAIL_SHARE:
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


LONG_PAUSE_S = 3_600.0
"""Shorter pauses are people at work."""
LONGEST_PAUSE_S = 7 * 86_400.0
"""After a week the machine may have been switched off, or used without Wattloop."""


def idle_node(facts: RunFacts) -> Advice | None:
    """The hours until the next run on the machine, at its idle power."""
    node = facts.node
    if node is None or not LONG_PAUSE_S <= node.waited_s <= LONGEST_PAUSE_S or node.power_w <= 0:
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
