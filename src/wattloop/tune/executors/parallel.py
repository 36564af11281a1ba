"""Executor of several trainings at once, each in its own process on its own GPUs."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from wattloop.core.errors import ConfigError, WattloopError
from wattloop.core.process import stops_raise
from wattloop.core.settings import Settings
from wattloop.measure.job import JOB_VARIABLE, RUN_VARIABLE
from wattloop.measure.session import Session
from wattloop.tune.executors.base import ExecutorFactory, Resumable, TrainedSoFar, TrialExecutor
from wattloop.tune.segment import Progress, Segment, Status
from wattloop.tune.segment_meter import scope_energy

END_S = 20.0
"""Longest time that a worker may take to end its trainings and restore levers."""
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


class DeviceWorker:
    """Worker process and the pipe to it."""

    def __init__(
        self, make: ExecutorFactory, settings: Settings, group: Sequence[str], now_s: float
    ) -> None:
        self._make, self._settings, self.group = make, settings, tuple(group)
        self.busy = False
        self.idle_from_s = now_s
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=serve_requests,
            args=(theirs, self._make, self._settings, self.group),
            name=f"wattloop-gpu-{'-'.join(self.group)}",
            daemon=False,
        )
        self._process.start()
        theirs.close()

    def asked(self, *words: Any) -> Any:
        """Return the answer to a request; raises the worker's error, EOFError when it died."""
        try:
            self._pipe.send(words)
            kind, answer = self._pipe.recv()
        except (BrokenPipeError, ConnectionResetError, OSError):
            raise EOFError from None
        if kind == "refused":
            raise ConfigError(answer)
        if kind == "failed":
            raise RuntimeError(f"the worker of GPU {','.join(self.group)}: {answer}")
        return answer

    def end(self) -> None:
        with suppress(OSError):
            if self.busy:
                self._process.terminate()  # it is training
            else:
                self._pipe.send(("end",))
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


def group_settings(settings: Settings, group: Sequence[str]) -> Settings:
    return settings._replace(devices=tuple(f"gpu:{number}" for number in group))


def serve_requests(
    pipe: Connection, make: ExecutorFactory, settings: Settings, group: Sequence[str]
) -> None:
    """Serve requests from the pipe until it is closed, then restore levers.

    A killed search closes its end of the pipe, so the worker ends by itself.
    """
    for variable in VISIBLE:
        os.environ[variable] = ",".join(group)
    for variable in (JOB_VARIABLE, RUN_VARIABLE):
        os.environ.pop(variable, None)
    # Ctrl-C reaches every process of the terminal; the search ends its own workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    executor: TrialExecutor | None = None
    with stops_raise(), ExitStack() as stack:
        while True:
            try:
                word, *details = pipe.recv()
            except EOFError:
                return
            if word == "end":
                return
            try:
                if executor is None:
                    executor = make(group_settings(settings, group))
                    stack.callback(executor.close)
                answer: tuple[str, Any] = ("ok", _done(executor, word, details))
            except WattloopError as error:
                answer = ("refused", str(error))
            except Exception as error:  # noqa: BLE001 - the search raises it where it is asked for
                answer = ("failed", f"{type(error).__name__}: {error}")
            with suppress(BrokenPipeError, OSError):
                pipe.send(answer)


def _done(executor: TrialExecutor, word: str, details: list[Any]) -> Any:
    if word == "release":
        executor.release(details[0])
        return None
    segment, past = details
    if past is not None and isinstance(executor, Resumable):
        executor.recall({segment.candidate: past})
    return executor.run(segment)


# Power is read per device, so the energy of a segment is that of its own devices. The energy of
# idle devices is charged to the search.


class ParallelExecutor:
    """Executor with one worker process per group of GPUs.

    A candidate stays with the worker that started it, which holds its model.

    Args:
        make: builds the executor of a worker from its settings; it is pickled, and so
            is a training function in it: define that at the top of a module.
        groups: numbers of the GPUs of each worker, such as `[("0",), ("1",)]`.

    Raises:
        ConfigError: the energy of one of these GPUs is not read here.
    """

    scope = "gpu"

    def __init__(
        self, make: ExecutorFactory, settings: Settings, groups: Sequence[Sequence[str]]
    ) -> None:
        self._settings = settings
        named = [number for group in groups for number in group]
        self._session = Session.open(
            group_settings(settings, named), name="devices", keep=False, in_process=False
        )
        self._check(named)
        self._changed = threading.Condition()
        self._homes: dict[str, DeviceWorker] = {}
        self._pasts: dict[str, TrainedSoFar] = {}
        """Progress of candidates."""
        self._untold: set[str] = set()
        """Candidates whose worker does not know their progress yet."""
        now_s = self._now_s()
        self._workers = [DeviceWorker(make, settings, group, now_s) for group in groups]
        self._idle_s, self._idle_j = 0.0, 0.0
        self._closed = False

    @property
    def slots(self) -> int:
        return len(self._workers)

    def recall(self, pasts: Mapping[str, TrainedSoFar]) -> None:
        self._pasts.update(pasts)
        self._untold.update(pasts)

    def run(self, segment: Segment) -> Progress:
        """Train on the candidate's devices. A worker that dies is `killed`; the others continue."""
        worker = self._taken(segment.candidate)
        try:
            with self._changed:
                name = segment.candidate
                known = self._pasts.get(name, TrainedSoFar())
                past = known if name in self._untold else None
                self._untold.discard(name)
            progress = worker.asked("run", segment, past)
            with self._changed:
                self._pasts[name] = known.after(segment, progress)
        except EOFError:
            progress = self._died(worker, segment)
        finally:
            with self._changed:
                begin_s, end_s = worker.idle_from_s, self._now_s()
                worker.busy, worker.idle_from_s = False, end_s
                self._changed.notify_all()
        return self._charged(progress, worker, begin_s, end_s)

    def release(self, candidate: str) -> None:
        with self._changed:
            worker = self._homes.pop(candidate, None)
            while worker is not None and worker.busy:
                self._changed.wait()
            if worker is None or self._closed:
                return
            worker.busy = True
        try:
            with suppress(EOFError):
                worker.asked("release", candidate)
        finally:
            with self._changed:
                worker.busy = False
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.end()
        self._session.close()

    def _check(self, named: Sequence[str]) -> None:
        read = {channel.domain.name for channel in self._session.channels}
        missing = [number for number in named if f"gpu:{number}" not in read]
        if missing:
            self._session.close()
            raise ConfigError(
                "trainings side by side need GPUs whose power is read one by one; "
                f"gpu:{missing[0]} is not read here: 'wattloop devices' says why"
            )

    def _now_s(self) -> float:
        return self._session.clock.now_s()

    def _taken(self, candidate: str) -> DeviceWorker:
        """Return the candidate's worker, or a free one, after charging its idle energy."""
        with self._changed:
            while True:
                if self._closed:
                    raise ConfigError("the search has ended, and its workers with it")
                home = self._homes.get(candidate)
                free = [w for w in self._workers if not w.busy and home in (None, w)]
                if free:
                    worker = min(free, key=lambda w: sum(h is w for h in self._homes.values()))
                    self._homes[candidate] = worker
                    self._note_idle(worker)
                    worker.busy = True
                    return worker
                self._changed.wait()

    def _note_idle(self, worker: DeviceWorker) -> None:
        now_s = self._now_s()
        waited_s = now_s - worker.idle_from_s
        if waited_s > 0:
            self._idle_s += waited_s
            self._idle_j += self._energy_j(worker, worker.idle_from_s, now_s)
        worker.idle_from_s = now_s

    def _energy_j(self, worker: DeviceWorker, begin_s: float, end_s: float) -> float:
        domains = {d.name: d.energy_j for d in self._session.between(begin_s, end_s).domains}
        return sum(domains.get(f"gpu:{number}") or 0.0 for number in worker.group)

    def _charged(
        self, progress: Progress, worker: DeviceWorker, begin_s: float, end_s: float
    ) -> Progress:
        """Add the idle energy so far, which is charged to the segment that ends first.

        Energy of its own devices outside the segment, while its process started, counts as idle.
        """
        own_s, own_j = progress.time_s + progress.repeated_s, progress.energy_j or 0.0
        beside_j = self._energy_j(worker, begin_s, end_s) - own_j - (progress.repeated_j or 0.0)
        with self._changed:
            self._idle_s += max(0.0, end_s - begin_s - own_s)
            self._idle_j += max(0.0, beside_j)
            for other in self._workers:
                if not other.busy:
                    self._note_idle(other)
            idle_s, self._idle_s = self._idle_s, 0.0
            idle_j, self._idle_j = self._idle_j, 0.0
        return replace(progress, idle_s=idle_s, idle_j=idle_j)

    def _died(self, worker: DeviceWorker, segment: Segment) -> Progress:
        begin_s = worker.idle_from_s
        end_s = self._now_s()
        window = self._session.between(begin_s, end_s)
        mine = {f"gpu:{number}" for number in worker.group}
        own = window._replace(domains=tuple(d for d in window.domains if d.name in mine))
        joules = scope_energy(own, self.scope, self._settings)
        with self._changed:
            lost = {name for name, w in self._homes.items() if w is worker}
            self._homes = {name: w for name, w in self._homes.items() if w is not worker}
            # Candidates that are asked for again are retrained to their earlier epoch, at that
            # cost.
            self._untold |= lost & self._pasts.keys()
            if not self._closed:
                worker.start()
        return Progress(
            status=Status.KILLED,
            time_s=end_s - begin_s,
            energy_j=joules.energy_j,
            uncertainty_j=joules.uncertainty_j,
            provenance=joules.provenance,
            message=f"the worker of GPU {','.join(worker.group)} died; with it all that it trained",
        )
