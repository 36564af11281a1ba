"""Spreads trainings over the machines and GPUs of a Ray cluster.

bench = RayBench(lambda settings: FunctionBench(train, problem, settings), gpus=1)

A *slot* is a bundle of devices that is held for the whole search. Candidates are trained on slots,
one at a time on each; every candidate is a process of its own (a Ray actor) that stays where it
began, so a paused training is alive until it is let go. Our strategy decides, the store is written
by the search alone; Ray only carries segments there and progress back.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from wattloop.core.errors import ConfigError, WattloopError
from wattloop.core.settings import Settings
from wattloop.tune.bench import Bench, Past
from wattloop.tune.engines.ray_slots import Bundle, Slot, connected, first_line, reserved, room
from wattloop.tune.engines.ray_worker import Lap
from wattloop.tune.progress import Progress, Status
from wattloop.tune.segment import Segment

__all__ = ["RayBench"]

END_S = 10.0
"""How long a paused training may take to let go of its devices."""


@dataclass(frozen=True, slots=True)
class _Idle:
    """What held devices took while they waited; energy None when it could not be read."""

    time_s: float = 0.0
    energy_j: float | None = 0.0

    def plus(self, lap: Lap) -> "_Idle":
        """With another lap."""
        known = self.energy_j is not None and lap.energy_j is not None
        joules = (self.energy_j or 0.0) + (lap.energy_j or 0.0)
        return _Idle(self.time_s + lap.time_s, joules if known else None)


class RayBench:
    """A bench whose trainings run on a Ray cluster.

    Args:
        make: builds the bench of one candidate on its worker, from the settings to measure with;
            it is pickled, so it may be a lambda, and what it names must be installed there.
        settings: how workers measure; their devices are those of their slot.
        slots: how many segments run at once; unless given, as many as the cluster has room for.
        cpus, gpus, resources: what one slot holds, as Ray counts.
        scope: whose energy counts (`gpu`, `cpu`, `dram`, `node`).
        address: of the cluster; unless given that of RAY_ADDRESS, or one that is started here and
            listens on this machine only.

    Raises:
        ConfigError: Ray is not installed, the cluster has no room, its workers run another
            Wattloop, or slots would share what is read per machine.
    """

    def __init__(
        self,
        make: Callable[[Settings], Bench],
        settings: Settings | None = None,
        *,
        slots: int | None = None,
        cpus: float = 1.0,
        gpus: float = 0.0,
        resources: Mapping[str, float] | None = None,
        scope: str = "gpu",
        address: str | None = None,
    ) -> None:
        self._ray = connected(address)
        self._settings = settings or Settings()
        self._scope = scope
        self._bundle = Bundle(cpus, gpus, resources or {})
        self._make = self._ray.put(make)
        self._changed = threading.Condition()
        self._homes: dict[str, Slot] = {}
        self._pasts: dict[str, Past] = {}
        self._idle = _Idle()
        self._closed = False
        count = slots or room(self._ray, self._bundle)
        self._slots = self._more(count)

    @property
    def slots(self) -> int:
        """How many segments can run at once."""
        return len(self._slots)

    def recall(self, pasts: Mapping[str, Past]) -> None:
        """How far candidates were when an earlier process was killed; their benches are told."""
        self._pasts.update(pasts)

    def run(self, segment: Segment) -> Progress:
        """Train on the candidate's worker. One that dies is `killed`; the others go on."""
        slot = self._taken(segment.candidate)
        try:
            return self._charged(self._trained(slot, segment))
        finally:
            with self._changed:
                slot.busy.release()
                self._changed.notify_all()

    def let_go(self, candidate: str) -> None:
        """End its worker."""
        with self._changed:
            slot = self._homes.pop(candidate, None)
            training = None if slot is None else slot.trainings.pop(candidate, None)
        if training is not None:
            self._end([training])

    def close(self) -> None:
        """End all workers and give the devices back; the cluster goes on."""
        with self._changed:
            self._closed = True
            slots, self._slots, self._homes = self._slots, [], {}
            self._changed.notify_all()
        self._end([t for slot in slots if not slot.busy.locked() for t in slot.trainings.values()])
        for slot in slots:
            slot.abandon()

    # -- inside ----------------------------------------------------------------------------

    def _more(self, count: int) -> list[Slot]:
        return reserved(self._ray, self._bundle, count, self._settings, self._scope)

    def _taken(self, candidate: str) -> Slot:
        """The candidate's own slot, or a free one for a candidate that begins; ours alone."""
        with self._changed:
            while True:
                home = self._homes.get(candidate)
                free = [s for s in self._slots if not s.busy.locked() and home in (None, s)]
                if free:
                    slot = min(free, key=lambda s: len(s.trainings))
                    slot.busy.acquire()
                    self._homes[candidate] = slot
                    return slot
                if self._closed:
                    raise ConfigError("ray: the search has ended, and its workers with it")
                self._changed.wait()

    def _trained(self, slot: Slot, segment: Segment) -> Progress:
        name = segment.candidate
        training = slot.trainings.get(name) or self._begun(slot, name)
        try:
            self._ray.get(training.ready.remote())
            with self._changed:
                self._note_idle(slot)
            progress: Progress = self._ray.get(training.run.remote(segment))
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, WattloopError):
                raise error.cause from None
            message = f"{type(error.cause).__name__}: {error.cause}"
            return _ended(Status.FAILED, slot.lap(), message)
        except self._ray.exceptions.RayError as error:
            return self._died(slot, name, error)
        slot.lap()  # what follows is idle again
        self._pasts[name] = self._pasts.get(name, Past()).after(segment, progress)
        return progress

    def _begun(self, slot: Slot, candidate: str) -> Any:
        past = self._pasts.get(candidate)
        pasts = {} if past is None else {candidate: past}
        return slot.begin(candidate, self._make, self._settings, pasts)

    def _died(self, slot: Slot, candidate: str, error: Exception) -> Progress:
        lap = slot.lap()
        with self._changed:
            slot.trainings.pop(candidate, None)
            self._homes.pop(candidate, None)
        if lap is None and not self._closed:  # nobody answers there: the machine is lost
            self._replace(slot)
        # Ray ends a worker before its machine has no memory left, and says so in these words only.
        memory = "running low on memory" in str(error)
        ended = _ended(
            Status.OUT_OF_MEMORY if memory else Status.KILLED,
            lap,
            f"its worker on {slot.facts.host} died: {first_line(error)}",
        )
        past = self._pasts.get(candidate, Past())
        return replace(ended, epochs=past.epochs, quality=past.quality, best=past.best)

    def _replace(self, slot: Slot) -> None:
        """What was trained there is gone; the other slots go on, or a new one is waited for."""
        slot.abandon()
        with self._changed:
            self._homes = {name: home for name, home in self._homes.items() if home is not slot}
            self._slots.remove(slot)
            if not self._slots:
                self._slots += self._more(1)

    def _note_idle(self, slot: Slot) -> None:
        lap = slot.lap()
        if lap is not None:
            self._idle = self._idle.plus(lap)

    def _charged(self, progress: Progress) -> Progress:
        """With what slots that wait took so far: it is paid for by whoever ends first."""
        with self._changed:
            for slot in self._slots:
                if not slot.busy.locked():
                    self._note_idle(slot)
            idle, self._idle = self._idle, _Idle()
        return replace(progress, idle_s=idle.time_s, idle_j=idle.energy_j)

    def _end(self, trainings: list[Any]) -> None:
        """Let them put back what they have set, then end their processes."""
        leaving = [training.end.remote() for training in trainings]
        if leaving:
            with suppress(self._ray.exceptions.RayError):
                self._ray.wait(leaving, num_returns=len(leaving), timeout=END_S)
        for training in trainings:
            self._ray.kill(training)


def _ended(status: Status, lap: Lap | None, message: str) -> Progress:
    if lap is None:
        return Progress(status=status, message=f"{message}; nobody could read its energy")
    return Progress(
        status=status,
        time_s=lap.time_s,
        energy_j=lap.energy_j,
        uncertainty_j=lap.uncertainty_j,
        provenance=lap.provenance,
        message=message,
    )
