"""Facts about one GPU during a run: traces of power and signals, limits, idle intervals."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.core.results import DomainEnergy
from wattloop.hardware.gpus import Gpu, gpu_of_table


class TraceInterval(NamedTuple):
    """From one moment to another, in seconds since the run began."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return max(0.0, self.end_s - self.begin_s)


class SignalTrace(NamedTuple):
    """Readings in the order of their times; each holds half-way to its neighbours.

    Times are seconds since the run began. What could not be read is not in it.
    """

    times_s: tuple[float, ...]
    values: tuple[float, ...]

    @classmethod
    def of(
        cls, times_s: Sequence[float], values: Sequence[float], begin_s: float = 0.0
    ) -> "SignalTrace":
        """Without gaps, and without times that went backwards."""
        kept_s: list[float] = []
        kept: list[float] = []
        for time_s, value in zip(times_s, values, strict=True):
            if math.isfinite(value) and (not kept_s or time_s - begin_s > kept_s[-1]):
                kept_s.append(time_s - begin_s)
                kept.append(value)
        return cls(tuple(kept_s), tuple(kept))

    def within(self, span: TraceInterval) -> "SignalTrace":
        low = bisect_left(self.times_s, span.begin_s)
        high = bisect_right(self.times_s, span.end_s)
        return SignalTrace(self.times_s[low:high], self.values[low:high])

    def mean(self) -> float | None:
        """Each value weighted with the time it holds."""
        weights = self._weights()
        total_s = sum(weights)
        if not self.values:
            return None
        if total_s <= 0:
            return self.values[-1]
        return sum(w * v for w, v in zip(weights, self.values, strict=True)) / total_s

    def quantile(self, share: float) -> float | None:
        """The value that this share of the readings does not exceed."""
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None

    def where(
        self, holds: Callable[[float], bool], end_s: float | None = None
    ) -> list[TraceInterval]:
        """The stretches in which every reading holds."""
        return list(self._stretches(holds, end_s))

    def _stretches(
        self, holds: Callable[[float], bool], end_s: float | None
    ) -> Iterator[TraceInterval]:
        times_s, last = self.times_s, len(self.times_s) - 1
        begin: int | None = None
        for place, value in enumerate(self.values):
            if holds(value):
                begin = place if begin is None else begin
                if place < last:
                    continue
                until_s = times_s[last] if end_s is None else max(end_s, times_s[last])
            elif begin is None:
                continue
            else:
                until_s = times_s[place]
            assert begin is not None
            yield TraceInterval(times_s[begin], until_s)
            begin = None

    def _weights(self) -> list[float]:
        times_s = self.times_s
        if len(times_s) < 2:
            return [1.0] * len(times_s)
        halves = [(b - a) / 2 for a, b in pairwise(times_s)]
        return [a + b for a, b in zip([0.0, *halves], [*halves, 0.0], strict=True)]


IDLE_UTILISATION = 0.02
"""A GPU at or below this utilisation is idle; NVML counts in per cent."""
IDLE_ROOM = 0.08
"""Without a utilisation, a GPU is idle this near to its idle power, as a part of the room from
there to its limit. A clock that ramps up with a context open takes about that much."""
ASSUMED_IDLE = 0.15
"""Of the limit, where nothing better is known: the median of `predict.static_power` with HBM."""
FEW = 3
"""Readings that it takes to believe an idle power seen in the run."""


class GpuIdlePower(NamedTuple):
    """Watts without work, and how they are known."""

    watts: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU.

    Attributes:
        card: its figures, where the table of GPUs has it.
        limit_w: power limit when the run began.
        signals: `utilisation`, `memory_utilisation`, `sm_clock`, `memory_used`, ...
    """

    name: str
    product: str
    card: Gpu | None
    limit_w: float
    energy_j: float
    power: SignalTrace
    signals: Mapping[str, SignalTrace]
    idle: GpuIdlePower
    duration_s: float
    load: SignalTrace = field(default=SignalTrace((), ()))

    @property
    def label(self) -> str:
        return self.name.replace("gpu:", "GPU ")

    @property
    def room_w(self) -> float:
        return max(1.0, self.limit_w - self.idle.watts)

    @property
    def busy_stretches(self) -> list[TraceInterval]:
        return self.load.where(lambda share: share > IDLE_UTILISATION, self.duration_s)

    def idle_stretches(self, span: TraceInterval) -> list[TraceInterval]:
        """When it had none, within a part of the run."""
        return self.load.within(span).where(lambda share: share <= IDLE_UTILISATION, span.end_s)

    def idle_share(self, span: TraceInterval) -> float:
        """Share of that part's readings in which it had no work."""
        shares = self.load.within(span).values
        return sum(share <= IDLE_UTILISATION for share in shares) / len(shares) if shares else 0.0

    def power_while_idle_w(self, span: TraceInterval) -> float:
        """Mean power in those stretches; its idle power where none was read."""
        rests = self.idle_stretches(span)
        means = [(self.power.within(s).mean(), s.length_s) for s in rests if s.length_s > 0]
        known = [(mean, length_s) for mean, length_s in means if mean is not None]
        total_s = sum(length_s for _, length_s in known)
        return sum(m * s for m, s in known) / total_s if total_s > 0 else self.idle.watts

    @property
    def load_by_power(self) -> SignalTrace:
        """1 where its power is above idle, else 0: read ten times as often as the utilisation."""
        return _from_power(self.power, self.idle.watts, self.limit_w)

    def mean(self, signal: str, span: TraceInterval) -> float | None:
        trace = self.signals.get(signal)
        return None if trace is None else trace.within(span).mean()

    def busy_share(self, span: TraceInterval) -> float:
        return self.load.within(span).mean() or 0.0

    def power_share(self, span: TraceInterval) -> float:
        """Mean power above idle while it works, as a part of the room up to its limit.

        Mean power of the span is idle + busy share x that, so it is known also where readings are
        too slow to see single steps.
        """
        power_w = self.power.within(span).mean()
        busy = self.busy_share(span)
        if power_w is None or busy <= 0:
            return 0.0
        return max(0.0, (power_w - self.idle.watts) / (busy * self.room_w))


def gpu_facts(
    domain: DomainEnergy,
    power: SignalTrace,
    signals: Mapping[str, SignalTrace],
    duration_s: float,
    application: Mapping[str, Any] | None,
) -> GpuFacts | None:
    """Return everything of one GPU; None where its limit or its power curve is unknown."""
    limit_w = domain.tdp_w
    if not limit_w or domain.energy_j is None or len(power.values) < FEW:
        return None
    card = _card(domain.device)
    utilisation = signals.get("utilisation")
    idle = _idle(power, utilisation, card, limit_w, application, duration_s)
    load = utilisation if utilisation is not None else _from_power(power, idle.watts, limit_w)
    return GpuFacts(
        name=domain.name,
        product=domain.device,
        card=card,
        limit_w=limit_w,
        energy_j=domain.energy_j,
        power=power,
        signals=signals,
        idle=idle,
        duration_s=duration_s,
        load=load,
    )


def _card(product: str) -> Gpu | None:
    try:
        return gpu_of_table(product.removeprefix("virtual ")) if product else None
    except ConfigError:  # not in the table
        return None


def _idle(
    power: SignalTrace,
    utilisation: SignalTrace | None,
    card: Gpu | None,
    limit_w: float,
    application: Mapping[str, Any] | None,
    duration_s: float,
) -> GpuIdlePower:
    """From the machine's idle line, the run itself, the table of GPUs, or an assumption."""
    if application and application.get("idle_j") and duration_s > 0:
        return GpuIdlePower(float(application["idle_j"]) / duration_s, "this machine's idle line")
    if utilisation is not None:
        rests = utilisation.where(lambda share: share <= IDLE_UTILISATION)
        # Power falls with a delay, and work begins between two readings of the utilisation: most
        # of what was read in a short rest is not idle power, but some of it is.
        seen = sorted(v for rest in rests for v in power.within(rest).values)
        if len(seen) >= FEW:
            return GpuIdlePower(seen[len(seen) // 5], "this run while the GPU had no work")
    if card is not None:
        from wattloop.predict.cap_curve import static_power

        known = static_power(card)
        # a cooler card, or one without a context, draws less than the table says
        lowest_w = power.quantile(0.02) or known.watts
        return GpuIdlePower(min(known.watts, lowest_w), known.source)
    lowest_w = power.quantile(0.02) or limit_w
    share_w = ASSUMED_IDLE * limit_w
    return GpuIdlePower(min(share_w, lowest_w), f"assumed: {ASSUMED_IDLE:.0%} of the limit")


def _from_power(power: SignalTrace, idle_w: float, limit_w: float) -> SignalTrace:
    threshold_w = idle_w + IDLE_ROOM * max(0.0, limit_w - idle_w)
    return SignalTrace(power.times_s, tuple(float(value > threshold_w) for value in power.values))
