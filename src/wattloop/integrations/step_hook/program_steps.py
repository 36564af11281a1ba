"""Recorder of steps inside the program; the hooks of all frameworks write through it.

Edges of steps on a GPU are CUDA events that are recorded and never waited for, as in
`EnergyMeter`. Nothing here raises into the program, draws a random number or waits for a device.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..step_timeline import Edge, TorchTimeline
from .step_file import EVALUATION, STEP, StepFileWriter

EXIT_WAIT_S = 2.0
"""At exit, edges that the GPU has not passed within this time get the host's time."""


class ProgramSteps:
    """Steps of this process; a forked child starts again with none."""

    _shared: ProgramSteps | None = None

    @classmethod
    def shared(cls) -> ProgramSteps:
        """Return the recorder of this process."""
        if cls._shared is None:
            cls._shared = cls(os.environ["WATTLOOP_STEPS"])
        return cls._shared

    def __init__(self, folder: str) -> None:
        self.before_exit: list[Callable[[], None]] = []
        """Called before the last records are written."""
        self._folder = folder
        self._reset()
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self._finish)

    def _reset(self) -> None:
        self.count = 0
        """Steps so far."""
        self._writer: StepFileWriter | None = None
        self._timeline: TorchTimeline | None = None
        self._lock = threading.Lock()
        self._off = False
        self._pending: deque[tuple[Edge, float, float, float]] = deque()
        self._evaluating_since_s: float | None = None
        self._batches: dict[int, list[float]] = {}
        """Iterator -> begin of the first wait, seconds of waiting, samples since the last step."""
        self._last_iterator = self._training_iterator = 0

    def step(self, time_s: float | None = None) -> None:
        """A step has ended here and now, or earlier on the host's clock."""
        if self._off or not self._lock.acquire(blocking=False):
            return
        try:
            self._mark_step(time_s)
        except Exception:  # noqa: BLE001 - the training matters more than its steps
            self._off = True
        finally:
            self._lock.release()

    def batch(self, iterator: int, begin_s: float, samples: float) -> None:
        """A batch of the loader's `iterator` was asked for at `begin_s` and has arrived.

        Trainers fetch a batch ahead, before or during the evaluation that precedes its step:
        batches are told apart by their iterator.
        """
        batches = self._batches.setdefault(iterator, [begin_s, 0.0, 0.0])
        batches[1] += time.monotonic() - begin_s
        batches[2] += samples
        self._last_iterator = iterator

    def begin_evaluation(self) -> None:
        if self._evaluating_since_s is None:
            self._evaluating_since_s = time.monotonic()

    def end_evaluation(self) -> None:
        begin_s, self._evaluating_since_s = self._evaluating_since_s, None
        if begin_s is not None:
            self.span(EVALUATION, begin_s)

    def span(self, kind: float, begin_s: float) -> None:
        """An evaluation, checkpoint or compilation that began at `begin_s` has ended."""
        self._add(kind, begin_s, time.monotonic())

    def metric(self, kind: float, value: Any) -> None:
        """A loss, a number of tokens or an epoch, as of the last step."""
        if isinstance(value, (int, float)) and math.isfinite(value):
            self._add(kind, self.count, value)

    def _add(self, kind: float, *values: float) -> None:
        if self._off:
            return
        try:
            with self._lock:
                self._file().add(kind, *values)
        except Exception:  # noqa: BLE001 - see step()
            self._off = True

    def _mark_step(self, time_s: float | None) -> None:
        if "wattloop.integrations.training_meter" in sys.modules:
            self._off = True  # the program records its steps itself
            return
        if self._timeline is None:
            self._timeline = TorchTimeline(time.monotonic)
        edge = self._timeline.mark() if time_s is None else Edge(time_s)
        self.count += 1
        self._pending.append((edge, *self._take_batches()))
        self._timeline.poll()
        self._write_known()

    def _take_batches(self) -> tuple[float, float, float]:
        """Return begin and length of the wait for this step's batches, and their samples."""
        if not self._batches:
            return math.nan, 0.0, math.nan
        if self._training_iterator not in self._batches:
            self._training_iterator = self._last_iterator
        begin_s, wait_s, samples = self._batches[self._training_iterator]
        self._batches.clear()
        return begin_s, wait_s, samples

    def _write_known(self) -> None:
        writer = self._file()
        while self._pending and self._pending[0][0].time_s is not None:
            edge, wait_begin_s, wait_s, samples = self._pending.popleft()
            assert edge.time_s is not None
            writer.add(STEP, edge.host_s, edge.time_s, edge.blur_s, wait_begin_s, wait_s, samples)

    def _finish(self) -> None:
        """Write what is left, at exit."""
        if self._off:
            return
        try:
            for call in self.before_exit:
                call()
            if self._writer is None:
                return
            self.end_evaluation()
            end_s = time.monotonic() + EXIT_WAIT_S
            while self._pending and self._timeline is not None:
                self._timeline.poll()
                if time.monotonic() > end_s and self._timeline.cuda is not None:
                    self._timeline.cuda.abandon()
                self._write_known()
                if self._pending:
                    time.sleep(0.0005)
            self._writer.flush()
        except Exception:  # noqa: BLE001 - the program has ended; its exit code is its own
            self._off = True

    def _file(self) -> StepFileWriter:
        if self._writer is None:
            self._writer = StepFileWriter(self._folder)
        return self._writer
