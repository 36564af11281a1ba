"""Executor of trainings on the machines and GPUs of a Ray cluster."""

import os
import platform
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from wattloop.core.errors import ConfigError, WattloopError
from wattloop.core.settings import Settings
from wattloop.measure.job import JOB_VARIABLE, RUN_VARIABLE
from wattloop.measure.session import Session
from wattloop.tune.executors.base import ExecutorFactory, Resumable, TrainedSoFar, TrialExecutor
from wattloop.tune.segment import Progress, Segment, Status
from wattloop.tune.segment_meter import scope_energy
from wattloop.version import __version__

# Actors on the workers. A `RayBundle` reserves devices for the whole search and reads their energy
# all the time, so idle energy and the energy of a crashed worker are measured too. A
# `WorkerTraining` is a process on the devices of its bundle.

VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that tell a process which GPUs it may use."""
FOREIGN = (JOB_VARIABLE, RUN_VARIABLE, "SLURM_STEP_ID")
"""Job variables under which only one process is counted; each training of a search is counted."""


@dataclass(frozen=True, slots=True)
class Lap:
    """Energy of the devices of a bundle since the previous lap."""

    time_s: float = 0.0
    energy_j: float | None = 0.0
    uncertainty_j: float = 0.0
    provenance: str = ""

    def plus(self, other: "Lap") -> "Lap":
        known = self.energy_j is not None and other.energy_j is not None
        energy_j = (self.energy_j or 0.0) + (other.energy_j or 0.0) if known else None
        return Lap(self.time_s + other.time_s, energy_j)


@dataclass(frozen=True, slots=True)
class RayBundleFacts:
    """Location and devices of a bundle.

    Attributes:
        node: the worker machine, as Ray names it.
        visible: variables that restrict a process to the GPUs of the bundle.
        devices: domains that are read; empty for all of the machine.
    """

    node: str
    host: str
    visible: Mapping[str, str]
    devices: tuple[str, ...]
    scratch: str
    version: str = __version__
    python: str = platform.python_version()


class RayBundle:
    """Devices that are reserved for the search, and their meters."""

    def __init__(self, settings: Settings, scope: str, gpus: float) -> None:
        self._settings, self._scope, self._gpus = settings, scope, gpus

    def open(self) -> RayBundleFacts:
        """Start to measure and return the location of the bundle."""
        import ray

        _count_alone()
        visible = {name: os.environ[name] for name in VISIBLE if name in os.environ}
        if self._scope == "gpu" and self._gpus:
            self._settings = self._settings._replace(devices=_gpu_domains(visible))
        self._session = Session.open(self._settings, name="held", in_process=False, keep=False)
        self._since_s = self._session.clock.now_s()
        self._scratch = tempfile.mkdtemp(prefix="wattloop-slot-")
        node = ray.get_runtime_context().get_node_id()
        return RayBundleFacts(node, platform.node(), visible, self._settings.devices, self._scratch)

    def close(self) -> None:
        self._session.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def lap(self) -> Lap:
        since_s, self._since_s = self._since_s, self._session.clock.now_s()
        result = self._session.between(since_s, self._since_s)
        joules = scope_energy(result, self._scope, self._settings)
        return Lap(result.duration_s, joules.energy_j, joules.uncertainty_j, joules.provenance)


class WorkerTraining:
    """Training of one candidate, paused between its segments."""

    def __init__(
        self,
        facts: RayBundleFacts,
        make: ExecutorFactory,
        settings: Settings,
        pasts: Mapping[str, TrainedSoFar],
    ) -> None:
        _count_alone()
        self._facts = facts
        self._make = make
        self._pasts = pasts
        # The search alone writes runs; its store does not read journals of this machine.
        self._scratch = Path(tempfile.mkdtemp(dir=facts.scratch))
        self._settings = settings._replace(
            devices=facts.devices, store=str(self._scratch / "runs.db")
        )
        self._executor: TrialExecutor | None = None

    def ready(self) -> int:
        return os.getpid()

    def run(self, segment: Segment) -> Progress:
        # Before each call Ray hides all GPUs from a process for which it counts none.
        os.environ.update(self._facts.visible)
        if self._executor is None:
            self._executor = self._make(self._settings)
            if self._pasts and isinstance(self._executor, Resumable):
                self._executor.recall(self._pasts)
        try:
            return replace(self._executor.run(segment), run_id=None)
        finally:
            if isinstance(self._executor, _Rests):  # other candidates train on the same devices
                self._executor.rest()

    def end(self) -> None:
        if self._executor is not None:
            self._executor.close()
            self._executor = None
        shutil.rmtree(self._scratch, ignore_errors=True)


@runtime_checkable
class _Rests(Protocol):
    """Executor that can restore its levers between segments."""

    def rest(self) -> None: ...


def _count_alone() -> None:
    for name in FOREIGN:
        os.environ.pop(name, None)


def _gpu_domains(visible: Mapping[str, str]) -> tuple[str, ...]:
    """Return `gpu:N` of each visible GPU, numbered as by NVML (CUDA_DEVICE_ORDER=PCI_BUS_ID)."""
    words = [w.strip() for w in next(iter(visible.values()), "").split(",") if w.strip()]
    if all(word.isdigit() for word in words):
        return tuple(f"gpu:{word}" for word in words)
    from wattloop.cap.gpus import job_gpus
    from wattloop.control.registry import find_levers

    levers = [x for x in find_levers() if x.name.endswith("/power_limit")]
    return tuple(f"gpu:{number}" for number in (job_gpus(levers) or "").split(",") if number)


REMEDY = "pip install 'wattloop[ray]'"
RESERVE_S = 60.0
"""Longest wait for devices; an autoscaler starts machines in about this time."""
ANSWER_S = 30.0
"""A bundle answers within milliseconds; one that does not answer by then is lost."""
CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Bundle:
    """Resources of one slot, in Ray's units."""

    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)

    def amounts(self) -> dict[str, float]:
        named = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        return {name: amount for name, amount in named.items() if amount}


@dataclass(eq=False, slots=True)
class Slot:
    """One bundle, and the trainings on its machine."""

    ray: Any
    place: Any
    facts: RayBundleFacts
    trainings: dict[str, Any] = field(default_factory=dict)
    busy: threading.Lock = field(default_factory=threading.Lock)

    def lap(self) -> Lap | None:
        """Return the energy of its devices since the last lap; None without an answer."""
        try:
            lap: Lap = self.ray.get(self.place.lap.remote(), timeout=ANSWER_S)
        except self.ray.exceptions.RayError:
            return None
        return lap

    def begin(self, candidate: str, *arguments: Any) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(self.facts.node, soft=False)
        actor = self.ray.remote(WorkerTraining).options(
            num_cpus=0, num_gpus=0, max_restarts=0, scheduling_strategy=there
        )
        self.trainings[candidate] = actor.remote(self.facts, *arguments)
        return self.trainings[candidate]

    def abandon(self) -> None:
        """Kill all its processes at once; the watchdogs restore levers."""
        for training in self.trainings.values():
            self.ray.kill(training)
        self.trainings.clear()
        self.ray.wait([self.place.close.remote()], timeout=CLOSE_S)
        self.ray.kill(self.place)


LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch for "listen on the loopback interface only", when it is "0"; read at import."""


def connect_ray(address: str | None, **options: object) -> Any:
    """Return Ray, connected to a cluster, with usage reports disabled.

    Args:
        address: of the cluster; None for that of RAY_ADDRESS, or one that is started here.
        options: of `ray.init`, for a cluster that is started here.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    alone = address is None and "RAY_ADDRESS" not in os.environ
    if alone:
        os.environ.setdefault(LOOPBACK_VARIABLE, "0")
    try:
        import ray
    except ImportError:
        raise ConfigError(f"the Ray engine needs ray, which is not installed: {REMEDY}") from None
    if ray.is_initialized():
        return ray
    if alone and os.environ[LOOPBACK_VARIABLE] == "0":
        # A program that imported Ray earlier has read the switch before it was set.
        ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        ray.init(
            address=address,
            include_dashboard=False if alone else None,
            log_to_driver=False,
            logging_level="warning",
            **options,
        )
    except Exception as error:  # noqa: BLE001 - Ray has no type for a node that starts too slowly
        raise ConfigError(
            f"ray: no cluster at {address or os.environ.get('RAY_ADDRESS', 'this machine')}: "
            f"{first_line(error)}; start one with 'ray start --head', or leave the address out"
        ) from None
    return ray


def count_free_slots(ray: Any, bundle: Bundle) -> int:
    """Return how many bundles fit into the free resources, at least one."""
    free = ray.available_resources()
    counts = [int(free.get(name, 0.0) / amount) for name, amount in bundle.amounts().items()]
    return max(1, min(counts, default=1))


def reserve_slots(
    ray: Any, bundle: Bundle, count: int, settings: Settings, scope: str
) -> list[Slot]:
    """Reserve so many bundles."""
    actor = ray.remote(RayBundle).options(
        num_cpus=bundle.cpus, num_gpus=bundle.gpus, resources=dict(bundle.resources), max_restarts=0
    )
    places = [actor.remote(settings, scope, bundle.gpus) for _ in range(count)]
    try:
        waiting = [place.open.remote() for place in places]
        _, late = ray.wait(waiting, num_returns=count, timeout=RESERVE_S)
        if late:
            raise ConfigError(
                f"ray: {len(late)} of {count} slots with {_text(bundle.amounts())} found no room "
                f"within {RESERVE_S:g} s; the cluster has {_text(ray.cluster_resources())}: ask "
                "for fewer or smaller slots, or start more workers"
            )
        facts: list[RayBundleFacts] = ray.get(waiting)
    except BaseException as error:
        for place in places:
            ray.kill(place)
        if not isinstance(error, ray.exceptions.RayError):
            raise
        cause = getattr(error, "cause", None)
        if isinstance(cause, WattloopError):
            raise cause from None
        said = first_line(error)
        if cause is not None:
            said = f"{type(cause).__name__}: {cause}; is the same Wattloop installed there?"
        raise ConfigError(f"ray: a worker could not begin: {said}") from None
    slots = [Slot(ray, *found) for found in zip(places, facts, strict=True)]
    try:
        _check(facts, scope)
    except ConfigError:
        for slot in slots:
            slot.abandon()
        raise
    return slots


def _check(places: Sequence[RayBundleFacts], scope: str) -> None:
    for facts in places:
        if facts.version != __version__:
            raise ConfigError(
                f"ray: {facts.host} has Wattloop {facts.version}, this is {__version__}; install "
                "the same on every worker"
            )
    nodes = [facts.node for facts in places]
    apart = scope == "gpu" and all(facts.devices for facts in places)
    for facts in places:
        if not apart and nodes.count(facts.node) > 1:
            raise ConfigError(
                f"ray: {nodes.count(facts.node)} slots on {facts.host} would share its energy, "
                f"which is read once per machine in scope '{scope}'; use scope 'gpu' with a GPU "
                "or more per slot, or one slot per machine"
            )


def first_line(error: BaseException) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)


def _text(amounts: Mapping[str, float]) -> str:
    shown = {n: a for n, a in amounts.items() if ":" not in n and not n.endswith("memory")}
    return ", ".join(f"{amount:g} {name}" for name, amount in shown.items()) or "nothing"


# A *slot* is a bundle of devices reserved for the whole search. Each slot trains one candidate at a
# time. Every candidate is a process (a Ray actor) that stays on its slot, so a paused training
# stays in memory until it is released. The strategy decides and the search writes the store; Ray
# only transports segments and progress.

END_S = 10.0
"""Longest time that a paused training may take to release its devices."""


class RayExecutor:
    """Executor whose trainings run on a Ray cluster.

    Args:
        make: builds the executor of one candidate on its worker, from its settings;
            it is pickled, so it may be a lambda, and what it names must be installed there.
        settings: how workers measure; their devices are those of their slot.
        slots: how many segments run at once; unless given, as many as fit into the cluster.
        cpus, gpus, resources: of one slot, in Ray's units.
        address: of the cluster; unless given that of RAY_ADDRESS, or one that is started here and
            listens on this machine only.

    Raises:
        ConfigError: Ray is not installed, the cluster has too few free resources, its workers run
            another version of Wattloop, or slots would share a meter of the machine.
    """

    def __init__(
        self,
        make: ExecutorFactory,
        settings: Settings | None = None,
        *,
        slots: int | None = None,
        cpus: float = 1.0,
        gpus: float = 0.0,
        resources: Mapping[str, float] | None = None,
        scope: str = "gpu",
        address: str | None = None,
    ) -> None:
        self._ray = connect_ray(address)
        self._settings = settings or Settings()
        self._scope = scope
        self._bundle = Bundle(cpus, gpus, resources or {})
        self._make = self._ray.put(make)
        self._changed = threading.Condition()
        self._homes: dict[str, Slot] = {}
        self._pasts: dict[str, TrainedSoFar] = {}
        self._idle = Lap()
        self._closed = False
        count = slots or count_free_slots(self._ray, self._bundle)
        self._slots = reserve_slots(self._ray, self._bundle, count, self._settings, scope)

    @property
    def slots(self) -> int:
        return len(self._slots)

    def recall(self, pasts: Mapping[str, TrainedSoFar]) -> None:
        self._pasts.update(pasts)

    def run(self, segment: Segment) -> Progress:
        """Train on the candidate's worker. One that dies is `killed`; the others continue."""
        slot = self._taken(segment.candidate)
        try:
            return self._charged(self._trained(slot, segment))
        finally:
            with self._changed:
                slot.busy.release()
                self._changed.notify_all()

    def release(self, candidate: str) -> None:
        with self._changed:
            slot = self._homes.pop(candidate, None)
            training = None if slot is None else slot.trainings.pop(candidate, None)
        if training is not None:
            self._end([training])

    def close(self) -> None:
        with self._changed:
            self._closed = True
            slots, self._slots, self._homes = self._slots, [], {}
            self._changed.notify_all()
        self._end([t for slot in slots if not slot.busy.locked() for t in slot.trainings.values()])
        for slot in slots:
            slot.abandon()

    def _taken(self, candidate: str) -> Slot:
        """Return the candidate's slot, or a free one, locked for this thread."""
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
        training = slot.trainings.get(name)
        if training is None:
            past = self._pasts.get(name)
            pasts = {} if past is None else {name: past}
            training = slot.begin(name, self._make, self._settings, pasts)
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
        self._pasts[name] = self._pasts.get(name, TrainedSoFar()).after(segment, progress)
        return progress

    def _died(self, slot: Slot, candidate: str, error: Exception) -> Progress:
        lap = slot.lap()
        with self._changed:
            slot.trainings.pop(candidate, None)
            self._homes.pop(candidate, None)
        if lap is None and not self._closed:  # the bundle does not answer: its machine is lost
            self._replace(slot)
        # Ray kills a worker before its machine runs out of memory; only this text tells the cause.
        memory = "running low on memory" in str(error)
        ended = _ended(
            Status.OUT_OF_MEMORY if memory else Status.KILLED,
            lap,
            f"its worker on {slot.facts.host} died: {first_line(error)}",
        )
        past = self._pasts.get(candidate, TrainedSoFar())
        return replace(ended, epochs=past.epochs, quality=past.quality, best=past.best)

    def _replace(self, slot: Slot) -> None:
        """Replace a lost slot; the other slots continue. Its trainings are lost."""
        slot.abandon()
        with self._changed:
            self._homes = {name: home for name, home in self._homes.items() if home is not slot}
            self._slots.remove(slot)
            if not self._slots:
                self._slots += reserve_slots(
                    self._ray, self._bundle, 1, self._settings, self._scope
                )

    def _note_idle(self, slot: Slot) -> None:
        lap = slot.lap()
        if lap is not None:
            self._idle = self._idle.plus(lap)

    def _charged(self, progress: Progress) -> Progress:
        """Add the energy of idle slots so far, which is charged to the segment that ends first."""
        with self._changed:
            for slot in self._slots:
                if not slot.busy.locked():
                    self._note_idle(slot)
            idle, self._idle = self._idle, Lap()
        return replace(progress, idle_s=idle.time_s, idle_j=idle.energy_j)

    def _end(self, trainings: list[Any]) -> None:
        leaving = [training.end.remote() for training in trainings]
        if leaving:
            with suppress(self._ray.exceptions.RayError):
                self._ray.wait(leaving, num_returns=len(leaving), timeout=END_S)
        for training in trainings:
            self._ray.kill(training)


def _ended(status: Status, lap: Lap | None, message: str) -> Progress:
    if lap is None:
        return Progress(status=status, message=f"{message}; its energy could not be read")
    return Progress(
        status=status,
        time_s=lap.time_s,
        energy_j=lap.energy_j,
        uncertainty_j=lap.uncertainty_j,
        provenance=lap.provenance,
        message=message,
    )
