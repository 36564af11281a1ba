"""Trainings spread over the machines and GPUs of a Ray cluster."""

import os
import platform
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from wattloop.core.errors import ConfigError, WattloopError
from wattloop.core.settings import Settings
from wattloop.measure.job import JOB_VARIABLE, RUN_VARIABLE
from wattloop.measure.session import Session
from wattloop.tune.executors.base import Resumable, TrainedSoFar, TrialExecutor
from wattloop.tune.progress import Progress, Status
from wattloop.tune.segment import Segment
from wattloop.tune.segment_meter import scoped
from wattloop.version import __version__

# What runs on the workers of a cluster: a place that holds devices, and trainings on them.
#
# Both are plain objects; `ray_bench` makes actors of them. A place reserves devices for the whole
# search and reads their energy all the time, so that idle watts, and what a worker had used when
# it died, are measured too. A training is a process of its own on the devices of its place.

VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


"""How a process is told which GPUs are its own."""


FOREIGN = (JOB_VARIABLE, RUN_VARIABLE, "SLURM_STEP_ID")


"""Names of a job in which one process counts for all; trainings of a search each count alone."""


@dataclass(frozen=True, slots=True)
class Lap:
    """What the devices of a place took since the lap before."""

    time_s: float
    energy_j: float | None
    uncertainty_j: float = 0.0
    provenance: str = ""


@dataclass(frozen=True, slots=True)
class RayBundleFacts:
    """Where a place is.

    Attributes:
        node: the worker machine, as Ray names it.
        host: the machine's own name.
        visible: variables that show a process the place's GPUs and no others.
        devices: domains that are read; empty for all of the machine.
        scratch: a folder there for what trainings need while they run.
        version: of Wattloop there.
        python: its version.
    """

    node: str
    host: str
    visible: Mapping[str, str]
    devices: tuple[str, ...]
    scratch: str
    version: str = __version__
    python: str = platform.python_version()


class RayBundle:
    """Devices that are held for the search, and their meters.

    Args:
        settings: how to measure.
        scope: whose energy counts.
        gpus: how many of them are held.
    """

    def __init__(self, settings: Settings, scope: str, gpus: float) -> None:
        self._settings, self._scope, self._gpus = settings, scope, gpus

    def open(self, node: str) -> RayBundleFacts:
        """Begin to measure; where this is, on the worker machine that Ray calls `node`."""
        _count_alone()
        visible = {name: os.environ[name] for name in VISIBLE if name in os.environ}
        if self._scope == "gpu" and self._gpus:
            self._settings = self._settings._replace(devices=_gpu_domains(visible))
        self._session = Session.open(self._settings, name="held", in_process=False, keep=False)
        self._since_s = self._session.clock.now_s()
        self._scratch = tempfile.mkdtemp(prefix="wattloop-slot-")
        return RayBundleFacts(node, platform.node(), visible, self._settings.devices, self._scratch)

    def close(self) -> None:
        """End measuring, and leave nothing behind."""
        self._session.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def lap(self) -> Lap:
        """What the devices took since the last call."""
        since_s, self._since_s = self._since_s, self._session.clock.now_s()
        result = self._session.between(since_s, self._since_s)
        joules = scoped(result, self._scope, self._settings)
        return Lap(result.duration_s, joules.energy_j, joules.uncertainty_j, joules.provenance)


class WorkerTraining:
    """The training of one candidate, paused between its segments.

    Args:
        facts: of the place it trains at.
        make: builds a bench on this machine from the settings it shall measure with.
        settings: those of the search.
        pasts: how far the candidate was when an earlier process trained it.
    """

    def __init__(
        self,
        facts: RayBundleFacts,
        make: Callable[[Settings], TrialExecutor],
        settings: Settings,
        pasts: Mapping[str, TrainedSoFar],
    ) -> None:
        _count_alone()
        self._facts = facts
        self._make = make
        self._pasts = pasts
        # Runs are kept by the search alone: journals of this machine are not its store's.
        self._scratch = Path(tempfile.mkdtemp(dir=facts.scratch))
        self._settings = settings._replace(
            devices=facts.devices, store=str(self._scratch / "runs.db")
        )
        self._bench: TrialExecutor | None = None

    def ready(self) -> int:
        """The process it trains in."""
        return os.getpid()

    def run(self, segment: Segment) -> Progress:
        """Train on; what comes of it."""
        # The engine hides every GPU from a process for which it counts none, before each call.
        os.environ.update(self._facts.visible)
        if self._bench is None:
            self._bench = self._make(self._settings)
            if self._pasts and isinstance(self._bench, Resumable):
                self._bench.recall(self._pasts)
        try:
            return replace(self._bench.run(segment), run_id=None)
        finally:
            if isinstance(self._bench, _Rests):  # other candidates train on the same devices
                self._bench.rest()

    def end(self) -> None:
        """Let go of everything; levers are put back."""
        if self._bench is not None:
            self._bench.close()
            self._bench = None
        shutil.rmtree(self._scratch, ignore_errors=True)


@runtime_checkable
class _Rests(Protocol):
    """A bench that can let go of its levers between segments."""

    def rest(self) -> None:
        """Put them back."""


def _count_alone() -> None:
    for name in FOREIGN:
        os.environ.pop(name, None)


def _gpu_domains(visible: Mapping[str, str]) -> tuple[str, ...]:
    """`gpu:N` of each visible GPU; numbers are taken as NVML's (CUDA_DEVICE_ORDER=PCI_BUS_ID)."""
    words = [w.strip() for w in next(iter(visible.values()), "").split(",") if w.strip()]
    if all(word.isdigit() for word in words):
        return tuple(f"gpu:{word}" for word in words)
    from wattloop.cap.levers import job_gpus
    from wattloop.control.registry import find_levers

    levers = [x for x in find_levers() if x.name.endswith("/power_limit")]
    return tuple(f"gpu:{number}" for number in (job_gpus(levers) or "").split(",") if number)


REMEDY = "pip install 'wattloop[ray]'"


RESERVE_S = 60.0


"""How long to wait for devices; an autoscaler starts machines in about this time."""


ANSWER_S = 30.0


"""A place answers within milliseconds; one that does not by then is lost."""


CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Bundle:
    """What one slot holds, as Ray counts."""

    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)

    def amounts(self) -> dict[str, float]:
        """Everything it needs, by Ray's names."""
        named = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        return {name: amount for name, amount in named.items() if amount}


@dataclass(eq=False, slots=True)
class Slot:
    """One bundle, and the trainings that live on its machine."""

    ray: Any
    place: Any
    facts: RayBundleFacts
    trainings: dict[str, Any] = field(default_factory=dict)
    busy: threading.Lock = field(default_factory=threading.Lock)

    def lap(self) -> Lap | None:
        """What its devices took since the lap before; None when nobody is there to tell."""
        try:
            lap: Lap = self.ray.get(self.place.lap.remote(), timeout=ANSWER_S)
        except self.ray.exceptions.RayError:
            return None
        return lap

    def begin(self, candidate: str, *arguments: Any) -> Any:
        """A process of its own for a candidate; the devices are the slot's already."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(self.facts.node, soft=False)
        actor = self.ray.remote(WorkerTraining).options(
            num_cpus=0, num_gpus=0, max_restarts=0, scheduling_strategy=there
        )
        self.trainings[candidate] = actor.remote(self.facts, *arguments)
        return self.trainings[candidate]

    def abandon(self) -> None:
        """End whatever is there at once; levers are put back by their guardians."""
        for training in self.trainings.values():
            self.ray.kill(training)
        self.trainings.clear()
        self.ray.wait([self.place.close.remote()], timeout=CLOSE_S)
        self.ray.kill(self.place)


def connected(address: str | None) -> Any:
    """Ray, with a cluster; it sends nothing to its makers.

    Raises:
        ConfigError: it is not installed, or there is no cluster at `address`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    alone = address is None and "RAY_ADDRESS" not in os.environ
    if alone:
        # Ray's switch for "listen on the loopback interface only"; read when it is imported.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError(f"the Ray engine needs ray, which is not installed: {REMEDY}") from None
    if ray.is_initialized():
        return ray
    try:
        ray.init(
            address=address,
            include_dashboard=False if alone else None,
            log_to_driver=False,
            logging_level="warning",
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"ray: no cluster at {address or os.environ.get('RAY_ADDRESS', 'this machine')}: "
            f"{first_line(error)}; start one with 'ray start --head', or leave the address out"
        ) from None
    return ray


def room(ray: Any, bundle: Bundle) -> int:
    """How many bundles fit into what is free now; at least one, which may be waited for."""
    free = ray.available_resources()
    counts = [int(free.get(name, 0.0) / amount) for name, amount in bundle.amounts().items()]
    return max(1, min(counts, default=1))


def reserved(ray: Any, bundle: Bundle, count: int, settings: Settings, scope: str) -> list[Slot]:
    """Hold so many bundles.

    Raises:
        ConfigError: there is no room, workers run another Wattloop, or slots would share what is
            read once per machine.
    """
    actor = ray.remote(_RayPlace).options(
        num_cpus=bundle.cpus,
        num_gpus=bundle.gpus,
        resources=dict(bundle.resources),
        max_restarts=0,
    )
    places = [actor.remote(settings, scope, bundle.gpus) for _ in range(count)]
    try:
        waiting = [place.facts.remote() for place in places]
        _, late = ray.wait(waiting, num_returns=count, timeout=RESERVE_S)
        if late:
            raise ConfigError(
                f"ray: {len(late)} of {count} slots with {_text(bundle.amounts())} found no room "
                f"within {RESERVE_S:g} s; the cluster has {_text(ray.cluster_resources())}: ask "
                "for fewer or smaller slots, or start more workers"
            )
        facts = _all(ray, waiting)
    except BaseException:
        for place in places:
            ray.kill(place)
        raise
    slots = [Slot(ray, *found) for found in zip(places, facts, strict=True)]
    try:
        _check(facts, scope)
    except ConfigError:
        for slot in slots:
            slot.abandon()
        raise
    return slots


class _RayPlace(RayBundle):
    """A place that knows which worker machine it is on."""

    def facts(self) -> RayBundleFacts:
        import ray

        return self.open(ray.get_runtime_context().get_node_id())


def _all(ray: Any, waiting: Sequence[Any]) -> list[RayBundleFacts]:
    try:
        facts: list[RayBundleFacts] = ray.get(waiting)
    except ray.exceptions.RayTaskError as error:
        raise _as_refused(error) from None
    except ray.exceptions.RayError as error:
        raise ConfigError(f"ray: a worker could not begin: {first_line(error)}") from None
    return facts


def _as_refused(error: Any) -> Exception:
    """What a worker said on purpose, as it said it."""
    if isinstance(error.cause, WattloopError):
        return error.cause
    return ConfigError(
        f"ray: a worker could not begin: {type(error.cause).__name__}: {error.cause}; is the same "
        "Wattloop installed there?"
    )


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
    """What an error of Ray says before its pages of advice."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)


def _text(amounts: Mapping[str, float]) -> str:
    shown = {n: a for n, a in amounts.items() if ":" not in n and not n.endswith("memory")}
    return ", ".join(f"{amount:g} {name}" for name, amount in shown.items()) or "nothing"


# Spreads trainings over the machines and GPUs of a Ray cluster.
#
# bench = RayBench(lambda settings: FunctionBench(train, problem, settings), gpus=1)
#
# A *slot* is a bundle of devices that is held for the whole search. Candidates are trained on
# slots, one at a time on each; every candidate is a process of its own (a Ray actor) that stays
# where it began, so a paused training is alive until it is let go. Our strategy decides, the
# store is written by the search alone; Ray only carries segments there and progress back.

END_S = 10.0


"""How long a paused training may take to let go of its devices."""


@dataclass(frozen=True, slots=True)
class _Idle:
    """What held devices took while they waited; energy None when it could not be read."""

    time_s: float = 0.0
    energy_j: float | None = 0.0

    def plus(self, lap: Lap) -> "_Idle":
        known = self.energy_j is not None and lap.energy_j is not None
        joules = (self.energy_j or 0.0) + (lap.energy_j or 0.0)
        return _Idle(self.time_s + lap.time_s, joules if known else None)


class RayExecutor:
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
        make: Callable[[Settings], TrialExecutor],
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
        self._pasts: dict[str, TrainedSoFar] = {}
        self._idle = _Idle()
        self._closed = False
        count = slots or room(self._ray, self._bundle)
        self._slots = self._more(count)

    @property
    def slots(self) -> int:
        """How many segments can run at once."""
        return len(self._slots)

    def recall(self, pasts: Mapping[str, TrainedSoFar]) -> None:
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
        self._pasts[name] = self._pasts.get(name, TrainedSoFar()).after(segment, progress)
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
        past = self._pasts.get(candidate, TrainedSoFar())
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
