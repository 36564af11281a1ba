"""Rule: a GPU that is always busy and draws little: kernels too small to fill it."""

from wattloop.advise.advice import Advice
from wattloop.advise.facts import RunFacts
from wattloop.advise.gpu_facts import GpuFacts, TraceInterval
from wattloop.core.units import format_bytes, format_power

HAS_WORK = 0.5
"""Utilisation: a kernel is there more often than not."""
HARDLY_FILLED = 0.3
"""Power above idle while it works, as a part of the room up to the limit."""
FILLED = 0.5
"""What a larger batch is assumed to reach; a well filled GPU gets to 0.7 and more."""
QUIET_MEMORY = 0.3
"""Work bound by memory draws little, too, but keeps the memory busy."""
FREE_MEMORY = 0.5
"""With more in use, a larger batch may not fit."""
SLOW_CLOCK = 0.6
"""Below this part of the highest clock, a lock or a low cap slows the card on purpose."""
SHORTEST_S = 10.0
SHOWN = 2
"""GPUs in the evidence; the others are like them."""
BATCHES = ("--batch-size", "--batch_size", "--per_device_train_batch_size", "--batch", "-b", "--bs")


def launch_bound(facts: RunFacts) -> Advice | None:
    """Small batches or kernels, and what a fuller GPU would save."""
    span = facts.working
    if span is None or span.length_s < SHORTEST_S:
        return None
    gpus = facts.used_gpus
    if not gpus or not all(_hardly_filled(gpu, span) for gpu in gpus):
        return None
    filled = sum(gpu.power_share(span) for gpu in gpus) / len(gpus)
    # Static power is paid per second, arithmetic per operation: with the same work in less time
    # the GPU saves its idle power over the time that is gone.
    gone = 1 - max(filled, 0.05) / FILLED
    idle_w = sum(gpu.idle.watts for gpu in gpus)
    saving_j = gone * idle_w * span.length_s
    return Advice(
        rule="launch-bound",
        title="The GPU had work all the time, but little of it",
        text=(
            f"Kernels ran {gpus[0].busy_share(span):.0%} of the time and drew only {filled:.0%} "
            "of the room between idle and the power limit: they are too small to fill the GPU, "
            "and launching them takes the time. Use a larger batch, torch.compile or CUDA graphs, "
            "or run several trainings side by side."
        ),
        saving_j=saving_j,
        saving_share=saving_j / facts.energy_j,
        time_change_share=-gone * span.length_s / facts.duration_s,
        evidence=tuple(_evidence(gpu, span) for gpu in gpus[:SHOWN]),
        source=f"by prediction: the same work at {FILLED:.0%} of that room, in less time",
        command=facts.run_again(more=facts.scaled_argument(BATCHES, 4)),
    )


def _hardly_filled(gpu: GpuFacts, span: TraceInterval) -> bool:
    """Return True if what is known of it says so; utilisation and memory traffic must be known."""
    if gpu.busy_share(span) < HAS_WORK or gpu.power_share(span) > HARDLY_FILLED:
        return False
    memory = gpu.mean("memory_utilisation", span)
    if "utilisation" not in gpu.signals or memory is None or memory > QUIET_MEMORY:
        return False
    if gpu.card is None:
        return True
    used_b, clock_mhz = gpu.mean("memory_used", span), gpu.mean("sm_clock", span)
    if used_b is not None and used_b > FREE_MEMORY * gpu.card.memory_bytes:
        return False
    return clock_mhz is None or clock_mhz >= SLOW_CLOCK * gpu.card.boost_clock_mhz


def _evidence(gpu: GpuFacts, span: TraceInterval) -> str:
    used_b = gpu.mean("memory_used", span)
    used = "" if used_b is None else f", {format_bytes(used_b)} of memory in use"
    power_w = gpu.power.within(span).mean() or 0.0
    return (
        f"{gpu.label}: utilisation {gpu.busy_share(span):.0%}, {format_power(power_w)} of "
        f"{format_power(gpu.limit_w)} (idle {format_power(gpu.idle.watts)}, {gpu.idle.source}), "
        f"memory busy {gpu.mean('memory_utilisation', span) or 0.0:.0%}{used}"
    )
