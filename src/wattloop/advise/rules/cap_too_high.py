"""Rule: a power limit that costs energy and saves hardly any time."""

import math
import shlex
from typing import NamedTuple

from wattloop.advise.advice import Advice
from wattloop.advise.facts import SLOWER, RunFacts, TriedCap
from wattloop.advise.gpu_facts import GpuFacts, TraceInterval
from wattloop.core.units import format_power

WORTH = 0.08
"""Predicted saving of the GPUs' energy. The prediction is off by 3% in power and 5% in time
(docs/benchmarks/predict_caps.md), so less may be nothing."""
WORTH_TRIED = 0.05
"""The same where a sweep or cap search measured it."""
ALWAYS_BUSY = 0.85
"""Below this utilisation the GPU waits, and what a cap does to waiting is not known."""
FAST_CLOCK = 0.8
"""Part of the highest clock. Below it voltage has fallen as far as it will: a lower cap only
costs time (the knee of `predict.capped`)."""
HARDLY_FILLED = 0.25
"""A GPU that is not filled has another problem."""
SHORTEST_S = 10.0
LOWEST_CLOCK_SHARE = 0.1


class _BetterCap(NamedTuple):
    """A cap, what it does to the GPUs, and who says so."""

    cap_w: float
    saving_share: float
    time_change_share: float
    source: str


def cap_too_high(facts: RunFacts) -> Advice | None:
    """By a sweep or cap search of the same command if there is one, else by prediction.

    Silent where `wattloop run --save` has measured settings in this very run.
    """
    if (facts.record.saving or {}).get("state") == "applied":
        return None
    span = facts.working
    if span is None or span.length_s < SHORTEST_S:
        return None
    gpus = facts.used_gpus
    if not gpus:
        return None
    found = _tried(facts.tried, gpus) if facts.tried else _predicted(gpus, span)
    if found is None:
        return None
    saving_j = found.saving_share * sum(gpu.energy_j for gpu in gpus)
    limit_w = max(gpu.limit_w for gpu in gpus)
    names = ",".join(gpu.name.removeprefix("gpu:") for gpu in gpus)
    return Advice(
        rule="cap-too-high",
        title=f"A cap of {format_power(found.cap_w)} would do",
        text=(
            f"At {format_power(limit_w)} the GPU pays for clocks that this program hardly needs. "
            f"A cap of {format_power(found.cap_w)} ({found.cap_w / limit_w:.0%}) would save about "
            f"{found.saving_share:.0%} of the GPUs' energy for {_slower(found)}, {found.source}."
        ),
        saving_j=saving_j,
        saving_share=saving_j / facts.energy_j,
        time_change_share=found.time_change_share,
        evidence=(_evidence(max(gpus, key=lambda g: g.energy_j), span),),
        source=found.source,
        command=_command(facts, names, found),
    )


def _tried(tried: tuple[TriedCap, ...], gpus: tuple[GpuFacts, ...]) -> _BetterCap | None:
    """The newest experiment decides, also when it found nothing to save."""
    best = tried[0]
    lowest_w = min(gpu.limit_w for gpu in gpus)
    worth = best.saving_share >= WORTH_TRIED and best.beyond_noise
    if not worth or best.cap_w >= 0.97 * lowest_w:
        return None
    return _BetterCap(best.cap_w, best.saving_share, best.time_change_share, best.source)


def _predicted(gpus: tuple[GpuFacts, ...], span: TraceInterval) -> _BetterCap | None:
    """By the cap curve of the GPU that works most, from what was read of this run."""
    gpu = max(gpus, key=lambda g: g.energy_j)
    memory, busy = gpu.mean("memory_utilisation", span), gpu.busy_share(span)
    clock_mhz, power_w = gpu.mean("sm_clock", span), gpu.power.within(span).mean()
    card = gpu.card
    if card is None or memory is None or clock_mhz is None or power_w is None:
        return None
    if busy < ALWAYS_BUSY or clock_mhz < FAST_CLOCK * card.boost_clock_mhz:
        return None
    if gpu.power_share(span) <= HARDLY_FILLED or _was_lowered(gpu):
        return None
    from wattloop.predict.cap_curve import SHIPPED, cap_curve  # numpy takes a while to load

    # What follows the clock is what memory does not take; how much of low power is waiting is
    # known from the utilisation.
    share = min(1.0, max(LOWEST_CLOCK_SHARE, 1 - memory / busy))
    filled = (power_w - gpu.idle.watts) / gpu.room_w
    duty = math.log(busy) / math.log(filled) if 0 < filled < 0.999 and busy < 1 else 0.0
    constants = SHIPPED._replace(clock_share=share, duty=min(1.0, max(0.0, duty)))
    caps_w = _caps(card.cap_min_w, gpu.limit_w)
    curve = cap_curve(
        1.0, power_w, [*caps_w, gpu.limit_w], card, at_cap_w=gpu.limit_w, constants=constants
    )
    slower = [float(s / curve.step_s[0, -1] - 1) for s in curve.step_s[0, :-1]]
    saved = [float(1 - e / curve.energy_j[0, -1]) for e in curve.energy_j[0, :-1]]
    allowed = [i for i in range(len(caps_w)) if slower[i] <= SLOWER]
    if not allowed:
        return None
    best = max(allowed, key=lambda i: saved[i])
    if saved[best] < WORTH:
        return None
    return _BetterCap(caps_w[best], saved[best], slower[best], "by prediction")


def _was_lowered(gpu: GpuFacts) -> bool:
    """Return True when the limit was lowered during the run, e.g. by `cap find --apply`."""
    limit = gpu.signals.get("power_limit")
    lowest_w = None if limit is None else limit.quantile(0.0)
    return lowest_w is not None and lowest_w < 0.97 * gpu.limit_w


def _caps(lowest_w: float, limit_w: float) -> list[float]:
    """Round values below the limit, as people set them."""
    step_w = 25.0 if limit_w >= 400 else 10.0
    first = math.ceil(lowest_w / step_w)
    return [step_w * i for i in range(first, math.ceil(limit_w / step_w)) if step_w * i < limit_w]


def _evidence(gpu: GpuFacts, span: TraceInterval) -> str:
    power_w = gpu.power.within(span).mean() or 0.0
    parts = [f"{gpu.label}: {format_power(power_w)} of {format_power(gpu.limit_w)}"]
    memory, clock_mhz = gpu.mean("memory_utilisation", span), gpu.mean("sm_clock", span)
    if "utilisation" in gpu.signals:
        parts.append(f"utilisation {gpu.busy_share(span):.0%}")
    if memory is not None:
        parts.append(f"memory busy {memory:.0%}")
    if clock_mhz is not None:
        parts.append(f"{clock_mhz:.0f} MHz")
    return ", ".join(parts)


def _slower(found: _BetterCap) -> str:
    percent = round(100 * found.time_change_share)
    return f"{percent:+d}% time" if percent > 0 else "no more time"


def _command(facts: RunFacts, gpus: str, found: _BetterCap) -> str:
    """Look for the cap; where it was found already, use it."""
    if not facts.command:
        return ""
    program = shlex.join(facts.command)
    if found.source.startswith("by the"):
        return f"wattloop set gpu:{gpus}/power_limit={found.cap_w:g} -- wattloop run -- {program}"
    if facts.totals is not None and facts.totals.steps:
        return f"wattloop run --save -- {program}"
    return f"wattloop cap find --gpus {gpus} -- {program}"
