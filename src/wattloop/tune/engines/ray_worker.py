"""What runs on the workers of a cluster: a place that holds devices, and trainings on them.

Both are plain objects; `ray_bench` makes actors of them. A place reserves devices for the whole
search and reads their energy all the time, so that idle watts, and what a worker had used when it
died, are measured too. A training is a process of its own on the devices of its place.
"""

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from wattloop.core.settings import Settings
from wattloop.measure.job import JOB_VARIABLE, RUN_VARIABLE
from wattloop.measure.session import Session
from wattloop.tune.bench import Bench, Past, Remembers
from wattloop.tune.metering import scoped
from wattloop.tune.progress import Progress
from wattloop.tune.segment import Segment
from wattloop.version import __version__

__all__ = ["Lap", "Place", "PlaceFacts", "WorkerTraining"]

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
class PlaceFacts:
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


class Place:
    """Devices that are held for the search, and their meters.

    Args:
        settings: how to measure.
        scope: whose energy counts.
        gpus: how many of them are held.
    """

    def __init__(self, settings: Settings, scope: str, gpus: float) -> None:
        self._settings, self._scope, self._gpus = settings, scope, gpus

    def open(self, node: str) -> PlaceFacts:
        """Begin to measure; where this is, on the worker machine that Ray calls `node`."""
        _count_alone()
        visible = {name: os.environ[name] for name in VISIBLE if name in os.environ}
        if self._scope == "gpu" and self._gpus:
            self._settings = self._settings._replace(devices=_gpu_domains(visible))
        self._session = Session.open(self._settings, name="held", in_process=False, keep=False)
        self._since_s = self._session.clock.now_s()
        self._scratch = tempfile.mkdtemp(prefix="wattloop-slot-")
        return PlaceFacts(node, platform.node(), visible, self._settings.devices, self._scratch)

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
        facts: PlaceFacts,
        make: Callable[[Settings], Bench],
        settings: Settings,
        pasts: Mapping[str, Past],
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
        self._bench: Bench | None = None

    def ready(self) -> int:
        """The process it trains in."""
        return os.getpid()

    def run(self, segment: Segment) -> Progress:
        """Train on; what comes of it."""
        # The engine hides every GPU from a process for which it counts none, before each call.
        os.environ.update(self._facts.visible)
        if self._bench is None:
            self._bench = self._make(self._settings)
            if self._pasts and isinstance(self._bench, Remembers):
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
    from wattloop.characterize.cap_visible import job_gpus
    from wattloop.control.registry import find_levers

    levers = [x for x in find_levers() if x.name.endswith("/power_limit")]
    return tuple(f"gpu:{number}" for number in (job_gpus(levers) or "").split(",") if number)
