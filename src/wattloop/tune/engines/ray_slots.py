"""Slots of a Ray cluster: bundles of devices that are held for a whole search."""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattloop.core.errors import ConfigError, WattloopError
from wattloop.core.settings import Settings
from wattloop.tune.engines.ray_worker import Lap, Place, PlaceFacts, WorkerTraining
from wattloop.version import __version__

__all__ = ["Bundle", "Slot", "connected", "first_line", "reserved", "room"]

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
    facts: PlaceFacts
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


class _RayPlace(Place):
    """A place that knows which worker machine it is on."""

    def facts(self) -> PlaceFacts:
        import ray

        return self.open(ray.get_runtime_context().get_node_id())


def _all(ray: Any, waiting: Sequence[Any]) -> list[PlaceFacts]:
    try:
        facts: list[PlaceFacts] = ray.get(waiting)
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


def _check(places: Sequence[PlaceFacts], scope: str) -> None:
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
