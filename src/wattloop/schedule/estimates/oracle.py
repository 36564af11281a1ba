"""Oracle interface: time and power of a job on every allowed placement."""

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.core.cache import FileCache
from wattloop.core.files import cache_folder
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.jobs.kind import JobKind

Shape = tuple[int, int, bool]
"""Resources of a placement: GPU type (index), number of GPUs, and spread or packed."""


@dataclass(frozen=True, eq=False)
class PlacementOptions:
    """Placements of one kind of job, one row each, ordered by shape.

    Placements that do not fit into memory are not among them. Batch and cap vary within a shape:
    whether machines are free for a placement depends on its shape only.

    Attributes:
        type_index: GPU type, index into the cluster's types.
        batch: samples per GPU and step.
        cap_w: power limit of each GPU.
        spread: on more nodes than necessary, connected by the network.
        sample_s: seconds per sample of the whole placement (step time / samples per step).
        power_w: of all its GPUs together while it runs.
    """

    type_index: NDArray[np.int64]
    gpus: NDArray[np.int64]
    batch: NDArray[np.int64]
    cap_w: NDArray[np.float64]
    spread: NDArray[np.bool_]
    sample_s: NDArray[np.float64]
    power_w: NDArray[np.float64]
    step_s: NDArray[np.float64]
    source: str = ""

    def __len__(self) -> int:
        return len(self.gpus)

    @cached_property
    def samples(self) -> NDArray[np.float64]:
        """Return the samples of one step, of all GPUs together."""
        return np.rint(self.step_s / np.maximum(self.sample_s, 1e-300))

    def shape(self, option: int) -> Shape:
        return self._shapes[option]

    def shapes(self) -> list[Shape]:
        """Return the shape of every option; the same list object every time."""
        return self._shapes

    @cached_property
    def _shapes(self) -> list[Shape]:
        columns = (self.type_index.tolist(), self.gpus.tolist(), self.spread.tolist())
        return list(zip(*columns, strict=True))

    def __post_init__(self) -> None:
        shapes = self.shapes()
        if shapes != sorted(shapes):
            raise ValueError("options are ordered by GPU type, GPUs and spread")


class Factors(NamedTuple):
    """Estimates of one job relative to the true values, per option."""

    time: NDArray[np.float64]
    power: NDArray[np.float64]


class Oracle(ABC):
    """Interface of oracles: time and power of all placements of a kind at once."""

    name: str = ""

    @abstractmethod
    def options(self, kind: JobKind) -> PlacementOptions:
        """Return all placements of the kind on this oracle's cluster; the same object every time.

        The table is empty if the kind fits no GPU of the cluster.

        Raises:
            ConfigError: the kind is unknown to the oracle; the message lists known ones.
        """

    def factors(self, job: int, kind: JobKind) -> Factors | None:
        """Return the estimates of this job relative to `options`; None when they are equal."""
        del job, kind
        return None

    def factors_of(self, jobs: Sequence[int], kind: JobKind) -> Factors | None:
        """Return the factors of many jobs of one kind: arrays (jobs, options)."""
        found = [each for job in jobs if (each := self.factors(job, kind)) is not None]
        if not found:
            return None
        return Factors(np.stack([f.time for f in found]), np.stack([f.power for f in found]))

    def fingerprint(self, kind: JobKind) -> Sequence[str] | None:
        """Return all inputs of `options`, for a cache on disk; None when they are unknown."""
        del kind
        return None

    @property
    def power_error(self) -> float:
        """Return the most by which true power may exceed the estimate, as a share of it."""
        return 0.0

    @property
    def time_error(self) -> float:
        """Return the most by which true time may exceed the estimate, as a share of it."""
        return 0.0


Row = tuple[int, int, bool, int, float]


@dataclass(frozen=True, slots=True, eq=False)
class Placements:
    """Placements, ordered by type, GPUs, spread, batch, and cap from high to low."""

    type_index: NDArray[np.int64]
    gpus: NDArray[np.int64]
    spread: NDArray[np.bool_]
    batch: NDArray[np.int64]
    cap_w: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.gpus)

    def options(
        self,
        sample_s: NDArray[np.float64],
        power_w: NDArray[np.float64],
        step_s: NDArray[np.float64],
        source: str,
    ) -> PlacementOptions:
        """Add figures of all GPUs together; placements without a time or a power are left out."""
        known = np.isfinite(sample_s) & np.isfinite(power_w)
        return PlacementOptions(
            type_index=self.type_index[known],
            gpus=self.gpus[known],
            batch=self.batch[known],
            cap_w=self.cap_w[known],
            spread=self.spread[known],
            sample_s=sample_s[known],
            power_w=power_w[known],
            step_s=step_s[known],
            source=source,
        )


def placements_of(kind: JobKind, cluster: Cluster) -> Placements:
    """Return all placements on the cluster's machines, without a check of memory.

    Power limits are clipped to the range of the GPU. Shares with the same resulting limit are one
    placement.
    """
    rows: list[Row] = []
    for type_index, gpu_type in enumerate(cluster.types):
        if kind.types and gpu_type.name not in kind.types:
            continue
        caps_w = sorted({round(gpu_type.cap_w(share), 3) for share in kind.caps}, reverse=True)
        batches = sorted(set(kind.batches))
        for gpus in sorted(set(kind.gpus)):
            for spread in _spreads(kind, cluster, type_index, gpus):
                rows += [
                    (type_index, gpus, spread, batch, cap_w)
                    for batch, cap_w in itertools.product(batches, caps_w)
                ]
    columns: list[tuple[Any, ...]] = list(zip(*rows, strict=True)) if rows else [()] * 5
    return Placements(
        type_index=np.array(columns[0], dtype=np.int64),
        gpus=np.array(columns[1], dtype=np.int64),
        spread=np.array(columns[2], dtype=np.bool_),
        batch=np.array(columns[3], dtype=np.int64),
        cap_w=np.array(columns[4], dtype=np.float64),
    )


def _spreads(kind: JobKind, cluster: Cluster, type_index: int, gpus: int) -> list[bool]:
    """Return the possible values of `spread`: packed, spread, both or neither."""
    name = cluster.types[type_index].name
    if not 1 <= gpus <= cluster.gpus_by_type[type_index]:
        return []
    nodes = sum(group.nodes for group in cluster.groups if group.type_name == name)
    fewest = -(-gpus // cluster.gpus_per_node(type_index))
    return [False, True] if kind.may_spread and gpus > 1 and nodes > fewest else [False]


# Cache of placement options in the user's cache folder.
#
# A campaign starts many processes that need the same few tables. Predicting them takes some tenths
# of a second, reading them a millisecond.

MOST = 1000
"""Most cached tables; the least recently used are removed first."""
TYPES = {"spread": np.bool_, "type_index": np.int64, "gpus": np.int64, "batch": np.int64}
"""Types of the columns that are not floats."""


class CachedOracle(Oracle):
    """Oracle that caches the options of another oracle in memory and on disk.

    Kinds without a fingerprint are cached in memory only.
    """

    def __init__(self, inner: Oracle, folder: Path | None = None) -> None:
        self.inner = inner
        self.name = inner.name
        self._files = FileCache(
            cache_folder("options") if folder is None else folder,
            suffix=".json",
            most=MOST,
            load=_load,
            dump=_dump,
        )
        self._options: dict[JobKind, PlacementOptions] = {}

    def options(self, kind: JobKind) -> PlacementOptions:
        if kind not in self._options:
            self._options[kind] = self._kept_or_asked(kind)
        return self._options[kind]

    def factors(self, job: int, kind: JobKind) -> Factors | None:
        return self.inner.factors(job, kind)

    def factors_of(self, jobs: Sequence[int], kind: JobKind) -> Factors | None:
        return self.inner.factors_of(jobs, kind)

    def fingerprint(self, kind: JobKind) -> Sequence[str] | None:
        return self.inner.fingerprint(kind)

    @property
    def power_error(self) -> float:
        return self.inner.power_error

    @property
    def time_error(self) -> float:
        return self.inner.time_error

    def _kept_or_asked(self, kind: JobKind) -> PlacementOptions:
        parts = self.inner.fingerprint(kind)
        if parts is None:
            return self.inner.options(kind)
        return self._files.get(parts, lambda: self.inner.options(kind))


def _load(data: bytes) -> PlacementOptions:
    values = json.loads(data)
    columns: dict[str, Any] = {
        name: np.array(values[name], dtype=TYPES.get(name, np.float64)) for name in _columns()
    }
    if len({len(column) for column in columns.values()}) != 1:
        raise ValueError("columns of different lengths")
    return PlacementOptions(**columns, source=str(values["source"]))


def _dump(options: PlacementOptions) -> bytes:
    values = {name: getattr(options, name).tolist() for name in _columns()}
    return json.dumps({**values, "source": options.source}).encode()


def _columns() -> list[str]:
    return [each.name for each in fields(PlacementOptions) if each.name != "source"]
