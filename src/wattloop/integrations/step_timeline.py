"""Timelines on which the edges of steps lie: the host's clock, and a GPU's own by CUDA events."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol


class Edge:
    """An instant between two steps.

    Attributes:
        host_s: when the host passed it; parts that the host drives (CPU, DRAM) are cut here.
        time_s: when the device passed it, on the host's clock; None until that is known.
        blur_s: half-width of `time_s`.
        event: what the time line waits for, if anything.
        scalars: values that are on their way from the device: (where, name, slot).
    """

    __slots__ = ("blur_s", "event", "host_s", "scalars", "time_s")

    def __init__(self, host_s: float, *, known: bool = True) -> None:
        self.host_s = host_s
        self.time_s: float | None = host_s if known else None
        self.blur_s = 0.0
        self.event: Any = None
        self.scalars: list[tuple[dict[str, float], str, int]] | None = None


class Timeline(Protocol):
    """Marks edges. `mark` costs microseconds and never waits for a device."""

    def mark(self, values: dict[str, Any] | None = None) -> Edge:
        """An edge here and now; numbers among `values` become floats, at once or later."""
        ...

    def poll(self) -> None:
        """Fill in the times of edges that the device has passed by now."""
        ...

    def wait(self, edge: Edge) -> None:
        """Wait until the device has passed `edge`; called only when its energy is read."""
        ...

    def finish(self) -> None:
        """The training is over: wait for every edge."""
        ...


class HostTimeline:
    """Edges are host times.

    Args:
        now_s: the clock.
        settle: called before the clock is read: where the work is done elsewhere, it waits for
            it, so that the edge is exact (and costs the caller the waiting).
    """

    def __init__(
        self, now_s: Callable[[], float], settle: Callable[[], None] | None = None
    ) -> None:
        self._now_s = now_s
        self._settle = settle

    def mark(self, values: dict[str, Any] | None = None) -> Edge:
        """An edge here and now."""
        if self._settle is not None:
            self._settle()
        edge = Edge(self._now_s())
        if values:
            for name in list(values):
                number = as_number(values[name], may_wait=self._settle is not None)
                if number is None:
                    del values[name]
                else:
                    values[name] = number
        return edge

    def poll(self) -> None:
        """Nothing is ever pending."""

    def wait(self, edge: Edge) -> None:
        """Every edge is known when it is marked."""

    def finish(self) -> None:
        """Nothing is ever pending."""


def as_number(value: Any, *, may_wait: bool = False) -> float | None:
    """A float of a number or a one-element tensor in host memory; None of anything else.

    A value in a device's memory is taken only where waiting for the device is allowed.
    """
    device = getattr(getattr(value, "device", None), "type", "cpu")
    if device != "cpu" and not may_wait:
        return None
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except Exception:  # noqa: BLE001 - the user's object may do anything; it is not a number
        return None


# A device's clock mapped to the host's, from bounds alone.
#
# An event cannot have happened on the device before the host asked for it, and it has happened
# when the host first sees that it has. Each event so bounds the offset between the two clocks;
# bounds are carried forward, widened by what the clocks may have drifted apart, and cut by the
# next ones. No thread has to wait for the device.

DRIFT_LIMIT = 50e-6
"""Crystals agree to 50 ppm; 4.5 ppm were seen between an H200 and its host."""
DRIFT_FLOOR = 0.5e-6
"""However well the rate was known, it changes a little with temperature."""
TIGHT_S = 100e-6
"""Bounds narrower than this tell the rate of the drift."""
BASE_LINE_S = 5.0
"""Two tight bounds at least this far apart give a rate."""


class ClockMap:
    """Host time of a device time, with a half-width."""

    def __init__(self) -> None:
        self._device_s = 0.0
        self._low_s = 0.0
        self._high_s = 0.0
        self._rate = 0.0
        self._rate_error = DRIFT_LIMIT
        self._base: tuple[float, float, float] | None = None
        self._started = False

    @property
    def rate(self) -> float:
        """Seconds that the host's clock gains on the device's, per second."""
        return self._rate

    def observe(self, device_s: float, after_s: float, by_s: float) -> tuple[float, float]:
        """An event at `device_s` happened within host times `[after_s, by_s]`.

        Returns:
            Host time of the event, and its half-width.
        """
        low_s, high_s = after_s - device_s, by_s - device_s
        if self._started:
            elapsed_s = device_s - self._device_s
            spread_s = abs(elapsed_s) * self._rate_error
            carried_low_s = self._low_s + elapsed_s * self._rate - spread_s
            carried_high_s = self._high_s + elapsed_s * self._rate + spread_s
            if carried_low_s <= high_s and low_s <= carried_high_s:
                low_s, high_s = max(low_s, carried_low_s), min(high_s, carried_high_s)
            else:
                self._forget()  # a clock was disturbed (suspend, a stopped process): start again
        self._started = True
        self._device_s, self._low_s, self._high_s = device_s, low_s, high_s
        self._learn_rate(device_s, low_s, high_s)
        return device_s + (low_s + high_s) / 2, (high_s - low_s) / 2

    def _forget(self) -> None:
        self._rate, self._rate_error, self._base = 0.0, DRIFT_LIMIT, None

    def _learn_rate(self, device_s: float, low_s: float, high_s: float) -> None:
        if high_s - low_s > TIGHT_S:
            return
        middle_s, half_s = (low_s + high_s) / 2, (high_s - low_s) / 2
        if self._base is None:
            self._base = (device_s, middle_s, half_s)
            return
        base_s, base_middle_s, base_half_s = self._base
        length_s = device_s - base_s
        if length_s < BASE_LINE_S:
            return
        error = (half_s + base_half_s) / length_s + DRIFT_FLOOR
        if error < self._rate_error:
            self._rate = (middle_s - base_middle_s) / length_s
            self._rate_error = error


# Losses on their way from the GPU, without waiting for them.
#
# `loss.item()` waits for everything queued before it. Here the value is copied into page-locked
# memory by the stream itself, in order, and read when the event behind it has completed.

SLOTS = 2_048
"""More than a GPU's queue holds; a value that finds no slot is left out, never waited for."""


class CudaScalars:
    """Slots of page-locked memory, one per value under way."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._slots: list[Any] = []
        self._free: list[int] = []

    def send(self, value: Any) -> int | None:
        """Queue a copy of a one-element tensor; the slot it goes to, None when it cannot."""
        if value.numel() != 1:
            return None
        if not self._slots:
            self._allocate()
        if not self._free:
            return None
        slot = self._free.pop()
        self._slots[slot].copy_(value.detach().reshape(()), non_blocking=True)
        return slot

    def arrived(self, scalars: list[tuple[dict[str, float], str, int]]) -> None:
        """The event behind these has completed: put them where they belong."""
        for target, name, slot in scalars:
            target[name] = float(self._slots[slot])
            self._free.append(slot)

    def _allocate(self) -> None:
        memory = self._torch.empty(SLOTS, dtype=self._torch.float32, pin_memory=True)
        self._slots = list(memory.unbind())
        self._free = list(range(SLOTS))


# Edges on a GPU's own time line: CUDA events, recorded and never waited for.
#
# An event recorded on the stream of the training completes when the GPU gets there, milliseconds
# after the host went on. Later, when it has completed, its time is read and mapped to the host's
# clock (`clock_map`). Recording takes a few microseconds, asking a quarter of one; synchronising
# at every step would cost the training 2%.
#
# All CUDA calls are made by the thread that trains, inside `mark`: a background thread that asks
# for an event would break a CUDA graph being captured.

ANCHOR_TRIES = 5
IDLE_QUERIES = 12
"""An event on an idle GPU completes within a few microseconds: asking this often sees it."""
LOST_BLUR_S = 0.05
"""How far off the host's time of an edge may be when the GPU can no longer be asked."""
REBASE_S = 8.0
"""`elapsed_time` is a 32-bit float of milliseconds: after 8 s its step is still below 1 us."""


def cuda_in_use() -> Any:
    """The torch module if this process works on a GPU, else None. Never starts CUDA itself."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    return torch


class TorchTimeline:
    """The host's time line until the program starts to use a GPU, that GPU's from then on.

    A process that has not touched CUDA yet may still choose its device; looking must not do it
    for it.

    Args:
        now_s: the host's monotonic clock.
        device: CUDA device number; the current one when not given.
        exact: synchronise at every edge instead; exact, and slows the training by some percent.
    """

    def __init__(
        self, now_s: Callable[[], float], device: int | None = None, *, exact: bool = False
    ) -> None:
        self._now_s = now_s
        self._device = device
        self._cuda: CudaTimeline | None = None
        self._host = HostTimeline(now_s, self._synchronise if exact else None)
        self._look_for_cuda = not exact

    @property
    def cuda(self) -> CudaTimeline | None:
        """The GPU's time line, once it is in use."""
        return self._cuda

    def mark(self, values: dict[str, Any] | None = None) -> Edge:
        """An edge here and now."""
        if self._look_for_cuda:
            torch = cuda_in_use()
            # The clocks are tied by a synchronisation, which would break a graph being captured.
            if torch is not None and not torch.cuda.is_current_stream_capturing():
                self._look_for_cuda = False
                self._cuda = CudaTimeline(torch, self._now_s, self._device)
        if self._cuda is None:
            return self._host.mark(values)
        try:
            return self._cuda.mark(values)
        except RuntimeError:  # a broken CUDA context is the user's to notice, not ours to report
            self._cuda.abandon()
            self._cuda = None
            return self._host.mark(values)

    def poll(self) -> None:
        """Fill in the times of edges that the device has passed by now."""
        torch = cuda_in_use() if self._cuda is not None else None
        if torch is None or not torch.cuda.is_current_stream_capturing():
            self._current.poll()

    def wait(self, edge: Edge) -> None:
        """Wait until the device has passed `edge`."""
        self._current.wait(edge)

    def finish(self) -> None:
        """Wait for every edge; one that never comes gets the host's time."""
        try:
            self._current.finish()
        except RuntimeError:
            if self._cuda is not None:
                self._cuda.abandon()

    @property
    def _current(self) -> Timeline:
        return self._host if self._cuda is None else self._cuda

    def _synchronise(self) -> None:
        torch = cuda_in_use()
        if torch is not None:
            torch.cuda.synchronize(self._device)


class CudaTimeline:
    """Edges of the work that is queued on one GPU.

    Args:
        torch: the module.
        now_s: the host's monotonic clock.
        device: CUDA device number; the current one when not given.
    """

    def __init__(self, torch: Any, now_s: Callable[[], float], device: int | None = None) -> None:
        self._cuda = torch.cuda
        self._now_s = now_s
        self.device = self._cuda.current_device() if device is None else device
        self._clocks = ClockMap()
        self._scalars = CudaScalars(torch)
        self._pool: list[Any] = []
        self._pending: deque[Edge] = deque()
        self._reference = self._event()
        self._reference_device_s = 0.0
        self._start()

    def mark(self, values: dict[str, Any] | None = None) -> Edge:
        """Record an edge on the current stream, and look after earlier ones."""
        if self._cuda.is_current_stream_capturing():
            # An event would become part of the user's graph; the host's time has to do.
            return Edge(self._now_s())
        self.poll()
        idle = not self._pending
        stream = self._cuda.current_stream(self.device)
        event = self._pool.pop() if self._pool else self._event()
        edge = Edge(self._now_s(), known=False)
        if values:
            edge.scalars = self._send(values)
            edge.host_s = self._now_s()
        event.record(stream)
        edge.event = event
        self._pending.append(edge)
        if idle:
            self._look_at_once(event)
        return edge

    def poll(self) -> None:
        """Fill in the times of edges that the GPU has passed, in order."""
        pending = self._pending
        while pending and pending[0].event.query():
            self._passed(pending.popleft(), self._now_s())

    def wait(self, edge: Edge) -> None:
        """Wait until the GPU has passed `edge`."""
        while edge.time_s is None and self._pending:
            first = self._pending.popleft()
            first.event.synchronize()
            self._passed(first, self._now_s())

    def finish(self) -> None:
        if self._pending:
            self.wait(self._pending[-1])

    def abandon(self) -> None:
        """CUDA no longer answers: edges under way get the host's time, and say how unsure it is."""
        while self._pending:
            edge = self._pending.popleft()
            edge.event, edge.scalars, edge.blur_s = None, None, LOST_BLUR_S
            edge.time_s = edge.host_s

    @property
    def drift(self) -> float:
        """Seconds per second that the host's clock gains on the GPU's."""
        return self._clocks.rate

    def _start(self) -> None:
        """Anchor both clocks: the only synchronisation there is."""
        stream = self._cuda.current_stream(self.device)
        self._cuda.synchronize(self.device)
        self._reference.record(stream)
        self._reference.synchronize()
        for _ in range(ANCHOR_TRIES):
            event = self._event()
            after_s = self._now_s()
            event.record(stream)
            event.synchronize()
            by_s = self._now_s()
            self._clocks.observe(self._reference.elapsed_time(event) / 1_000, after_s, by_s)
            self._pool.append(event)

    def _look_at_once(self, event: Any) -> None:
        """Nothing was queued: if nothing still is, this edge ties the clocks together tightly."""
        for _ in range(IDLE_QUERIES):
            if event.query():
                self._passed(self._pending.popleft(), self._now_s())
                return

    def _passed(self, edge: Edge, by_s: float) -> None:
        event, edge.event = edge.event, None
        elapsed_s = self._reference.elapsed_time(event) / 1_000
        device_s = self._reference_device_s + elapsed_s
        time_s, edge.blur_s = self._clocks.observe(device_s, edge.host_s, by_s)
        if edge.scalars is not None:
            self._scalars.arrived(edge.scalars)
            edge.scalars = None
        edge.time_s = time_s  # last: a thread that sees it sees the rest
        if elapsed_s > REBASE_S:
            self._reference, event = event, self._reference
            self._reference_device_s = device_s
        self._pool.append(event)

    def _send(self, values: dict[str, Any]) -> list[tuple[dict[str, float], str, int]] | None:
        """Start copies of values that are on the GPU; turn the others into floats now."""
        sent: list[tuple[dict[str, float], str, int]] = []
        for name in list(values):
            value = values.pop(name)
            if getattr(value, "is_cuda", False):
                slot = self._scalars.send(value)
                if slot is not None:
                    sent.append((values, name, slot))
                continue
            number = as_number(value)
            if number is not None:
                values[name] = number
        return sent or None

    def _event(self) -> Any:
        return self._cuda.Event(enable_timing=True)
