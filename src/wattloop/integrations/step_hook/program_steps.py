"""Recorder of steps inside the program; the hooks of all frameworks write through it.

Edges of steps on a GPU are CUDA events that are recorded and never waited for, as in
`EnergyMeter`. Nothing here raises into the program, draws a random number, waits for a device or
for a lock: a signal handler of the program may interrupt any line and come back in.
"""

from __future__ import annotations

import atexit
import functools
import json
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..step_timeline import Edge, HostTimeline, TorchTimeline
from .step_file import EVALUATION, STEP, StepFileWriter

EXIT_WAIT_S = 2.0
"""At exit, edges that the GPU has not passed within this time get the host's time."""
LOOK_EVERY_S = 1.0
"""How often to look for open runs of trackers."""
ON_HOST = -1
"""Device of a training that does not use CUDA."""

_left_to_parent: list[Any] = []
"""CUDA objects in a forked child: they belong to the parent, and destroying them here aborts."""


class ProgramSteps:
    """Steps of this process; a forked child starts again with none."""

    _shared: ProgramSteps | None = None

    @classmethod
    def shared(cls) -> ProgramSteps:
        """Return the recorder of this process."""
        if cls._shared is None:
            cls._shared = cls(os.environ.get("WATTLOOP_STEPS", ""))
            cls._shared._write_before_exit()
        return cls._shared

    def __init__(self, folder: str) -> None:
        self.before_exit: list[Callable[[], None]] = []
        """Called before the last records are written."""
        self.trackers: list[dict[str, str]] = []
        """Runs of experiment trackers that the program has opened."""
        self._folder = folder
        self._timeline: HostTimeline | TorchTimeline | None = None
        self._pending: deque[tuple[Edge, float, float, float]] = deque()
        self._reset()
        atexit.register(self._finish)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=lambda: self._flush(everything=True), after_in_child=self._reset
            )

    def _reset(self) -> None:
        _left_to_parent.extend((self._timeline, self._pending))
        self.count = 0
        """Steps so far."""
        self._pid = os.getpid()
        self._writer: StepFileWriter | None = None
        self._timeline = None
        self._pending = deque()
        self._records: deque[tuple[float, ...]] = deque()
        self._busy = threading.Lock()
        self._missed: deque[int | None] = deque()
        """Devices of steps that ended in another thread while this recorder was busy."""
        self._off = not self._folder
        self._thread: int | None = None
        self._looked_s = 0.0
        self._noted: list[dict[str, str]] = []
        self._evaluating_since_s: float | None = None
        self._batches: dict[int, list[float]] = {}
        """Iterator -> begin of the first wait, seconds of waiting, samples since the last step."""
        self._last_iterator = self._training_iterator = 0

    def record_to(self, folder: str) -> None:
        """Write what is left, and record to another folder from now on; an empty one stops."""
        self._finish()
        self._folder = folder
        self._reset()

    def step(self, time_s: float | None = None, device: int | None = None) -> None:
        """A step has ended here and now, or earlier on the host's clock.

        Args:
            time_s: when it ended, if not now.
            device: CUDA device that trains, `ON_HOST` for none; the current one when not given.
        """
        if self._pid != os.getpid():  # forked by a library, without Python's hooks
            self._reset()
        if self._off:
            return
        if not self._busy.acquire(blocking=False):
            self._missed.append(device)  # for the thread that has the lock, or the next step
            return
        try:
            self._thread = threading.get_ident()
            self._mark_step(time_s, device)
            self._mark_missed()
        except Exception as error:  # noqa: BLE001 - the training matters more than its steps
            self._give_up(error)
        finally:
            self._busy.release()

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
        """An evaluation, checkpoint or compilation that began at `begin_s` has ended.

        In another thread than the one that steps it does not hold up the training.
        """
        if self._thread in (None, threading.get_ident()):
            self._records.append((kind, begin_s, time.monotonic()))
            self._flush()

    def metric(self, kind: float, value: Any) -> None:
        """A loss, a number of tokens or an epoch, as of the last step."""
        if isinstance(value, (int, float)) and math.isfinite(value):
            self._records.append((kind, self.count, value))
            self._flush()

    def _mark_step(self, time_s: float | None, device: int | None) -> None:
        if "wattloop.integrations.training_meter" in sys.modules:
            self._off = True  # the program records its steps itself
            return
        if self._timeline is None:
            on_host = device == ON_HOST
            now_s = time.monotonic
            self._timeline = HostTimeline(now_s) if on_host else TorchTimeline(now_s, device)
        edge = self._timeline.mark() if time_s is None else Edge(time_s)
        self.count += 1
        self._pending.append((edge, *self._take_batches()))
        self._timeline.poll()
        self._collect_known()
        self._write()
        if edge.host_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = edge.host_s
            self._note_trackers()

    def _mark_missed(self) -> None:
        while self._missed and not self._off:
            self._mark_step(None, self._missed.popleft())

    def _note_trackers(self) -> None:
        """Leave the open runs of trackers for `wattloop run`, which can write the energy there."""
        from .framework_hooks import open_runs

        try:
            self.trackers += [run for run in open_runs() if run not in self.trackers]
        except Exception:  # noqa: BLE001 - a tracker of another version: nothing to note
            return
        if self.trackers != self._noted:
            self._noted = list(self.trackers)
            path = os.path.join(self._folder, f"{os.getpid()}.trackers")  # noqa: PTH118
            with open(path + "-", "w") as file:  # noqa: PTH123
                json.dump(self._noted, file)
            os.replace(path + "-", path)  # noqa: PTH105

    def _take_batches(self) -> tuple[float, float, float]:
        """Return begin and length of the wait for this step's batches, and their samples."""
        if not self._batches:
            # Trainers fetch ahead: the batches of this step were counted with an earlier one.
            return math.nan, 0.0, 0.0 if self._training_iterator else math.nan
        if self._training_iterator not in self._batches:
            self._training_iterator = self._last_iterator
        begin_s, wait_s, samples = self._batches[self._training_iterator]
        self._batches.clear()
        return begin_s, wait_s, samples

    def _collect_known(self) -> None:
        while self._pending and self._pending[0][0].time_s is not None:
            edge, wait_begin_s, wait_s, samples = self._pending.popleft()
            assert edge.time_s is not None
            self._records.append(
                (STEP, edge.host_s, edge.time_s, edge.blur_s, wait_begin_s, wait_s, samples)
            )

    def _flush(self, *, everything: bool = False) -> None:
        """Write, unless a step of this process is being recorded: that one writes.

        Before a fork everything is written: steps of the child come after those of its parent.
        """
        if self._off or self._pid != os.getpid() or not self._busy.acquire(blocking=False):
            return
        try:
            self._write(everything=everything)
        except Exception as error:  # noqa: BLE001 - see step()
            self._give_up(error)
        finally:
            self._busy.release()

    def _write(self, *, everything: bool = False) -> None:
        if self._writer is None:
            if not self._records:
                return
            self._writer = StepFileWriter(self._folder)
        while self._records:
            self._writer.add(*self._records.popleft())
        self._writer.flush(everything=everything)

    def _write_before_exit(self) -> None:
        """Write what is known before calls with which a process ends without `atexit`.

        A forked child ends with `os._exit`; the other functions of `os` that replace a program use
        these two.
        """
        for name in ("_exit", "execv", "execve"):
            original = getattr(os, name)
            writing = self._writing(original)
            # Both names: pickle looks the function up by its own module.
            for module in (os, sys.modules[original.__module__]):
                setattr(module, name, writing)

    def _writing(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return the function that writes before it calls `original`."""

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> None:
            try:
                self._finish(wait_s=0.0)
            finally:
                original(*args, **kwargs)

        return call

    def _finish(self, wait_s: float = EXIT_WAIT_S) -> None:
        """Write what is left, at exit; wait so long for edges that the GPU has not passed."""
        if self._off or self._pid != os.getpid():
            return
        try:
            for call in self.before_exit:
                call()
            self._mark_missed()
            self.end_evaluation()
            end_s = time.monotonic() + wait_s
            while self._pending and self._timeline is not None:
                self._timeline.poll()
                cuda = getattr(self._timeline, "cuda", None)
                if time.monotonic() > end_s and cuda is not None:
                    cuda.abandon()
                self._collect_known()
                if self._pending:
                    time.sleep(0.0005)
            self._flush(everything=True)
            if self.count:
                self._note_trackers()
        except Exception as error:  # noqa: BLE001 - the exit code is the program's
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Record nothing more, and leave the reason for `wattloop run`."""
        self._off = True
        try:
            path = os.path.join(self._folder, f"{os.getpid()}.note")  # noqa: PTH118
            with open(path, "a") as file:  # noqa: PTH123
                file.write(f"steps after {self.count}: {type(error).__name__}: {error}\n")
        except OSError:
            return
