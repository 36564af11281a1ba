"""Rule: single precision on a GPU whose matrix units are several times faster in half."""

from wattloop.advise.advice import Advice
from wattloop.advise.facts import KEYS, NAMES, RunFacts
from wattloop.advise.gpu_facts import GpuFacts
from wattloop.hardware.gpus import Gpu

FILLED = 0.3
"""Power above idle while it works, as a part of the room: less is not bound by arithmetic. Of 38
pairs of training steps measured on an H200, bf16 saved 59% and more in nine tenths of the 35 above
it, and at most 25% in the three below (docs/benchmarks/advise.md)."""
BUSY = 0.3
FASTEST = 3.0
"""Peaks promise up to 16 times; the median of those pairs is 3, so no more is promised."""
TYPICAL_MEMORY = 0.5
"""Assumed share of time with memory traffic where it was not read."""
SHORTEST_S = 10.0


def fp32(facts: RunFacts) -> Advice | None:
    """A recorded fp32, and what mixed precision would save by the peaks of the GPU."""
    span, precision = facts.working, facts.precision
    if precision is None or precision.name != "fp32" or span is None:
        return None
    gpus = [
        g
        for g in facts.used_gpus
        if g.power_share(span) >= FILLED and g.busy_share(span) >= BUSY and g.card is not None
    ]
    if not gpus or span.length_s < SHORTEST_S:
        return None
    half = _half(gpus[0].card)
    if half is None:
        return None
    name, speedup = half
    memory = gpus[0].mean("memory_utilisation", span)
    memory = TYPICAL_MEMORY if memory is None else min(1.0, memory)
    # arithmetic by the ratio of the peaks, memory traffic by half the bytes
    time = (1 - memory) / min(FASTEST, speedup) + memory / 2
    saving_j = sum(_worked_j(g, facts) for g in gpus) * (1 - time)
    busy = gpus[0].busy_share(span) * span.length_s / facts.duration_s
    return Advice(
        rule="fp32",
        title=f"Computed in fp32 where {name} would do",
        text=(
            f"The run computed in fp32 ({precision.said_by}). The matrix units of the "
            f"{gpus[0].product} are {speedup:.0f} times faster in {name}; with automatic mixed "
            "precision most trainings reach the same quality. Compare the loss before you keep it."
        ),
        saving_j=saving_j,
        saving_share=saving_j / facts.energy_j,
        time_change_share=-(1 - time) * busy,
        evidence=(
            f"precision fp32, by {precision.said_by}",
            f"peaks of the {gpus[0].product}: {_peaks(gpus[0].card, name)}",
            f"memory busy {memory:.0%} of the time",
        ),
        source=f"by prediction from the published peaks, at most {FASTEST:g} times faster",
        command=facts.run_again(more=_with_half(facts.command, name)),
    )


def _half(card: Gpu | None) -> tuple[str, float] | None:
    """The half precision that its matrix units have, and how much faster its peak is."""
    single = card.vector_flops.get("fp32") if card is not None else None
    if card is None or not single:
        return None
    for name in ("bf16", "fp16"):
        if name in card.matrix_flops:
            ratio = card.matrix_flops[name] / single
            return (name, ratio) if ratio >= 1.5 else None
    return None


def _peaks(card: Gpu | None, name: str) -> str:
    assert card is not None
    half, single = card.matrix_flops[name] / 1e12, card.vector_flops["fp32"] / 1e12
    return f"{single:.0f} TFLOPS in fp32, {half:.0f} in {name} ({card.source('matrix_flops')})"


def _worked_j(gpu: GpuFacts, facts: RunFacts) -> float:
    span = facts.working
    assert span is not None
    power_w = gpu.power.within(span).mean() or 0.0
    return min(gpu.energy_j, power_w * span.length_s)


def _with_half(command: list[str], name: str) -> dict[str, str]:
    """The argument that says fp32, with the other name."""
    for place, word in enumerate(command):
        key, separator, value = word.partition("=")
        value = value if separator else (command[place + 1 : place + 2] or [""])[0]
        plain = key.lstrip("-").rpartition(".")[2].lower().replace("_", "-")
        if plain in KEYS and NAMES.get(value.lower()) == "fp32":
            return {key: name}
    return {}
