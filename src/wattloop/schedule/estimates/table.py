"""Table oracle: time and power from measured tables.

    T(model, type, k, cap) = samples / throughput(model, type, k) x stretch(cap / TDP)
    P(model, type, k, cap) = k x TDP x power(cap / TDP)

Throughput comes from one table, stretch and power from another, for the program most similar to the
model, because few sources measured both.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import nearest
from wattloop.schedule.cluster.cluster import Cluster, GpuType
from wattloop.schedule.estimates.cap_curves import CapCurves
from wattloop.schedule.estimates.oracle import Oracle, PlacementOptions, placements_of
from wattloop.schedule.estimates.throughputs import Throughputs, ThroughputSeries
from wattloop.schedule.jobs.kind import JobKind

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class TableOracle(Oracle):
    """Oracle of the placements for which the table has a throughput and the curves a power.

    Args:
        curves: effect of power limits. Without curves, the table must have the power of GPUs at
            their factory limit, and the curve of a typical program of that power is used.
    """

    name = "table"

    def __init__(
        self, cluster: Cluster, throughputs: Throughputs, curves: CapCurves | None = None
    ) -> None:
        self.cluster = cluster
        self.throughputs = throughputs
        self.curves = curves
        self._options: dict[JobKind, PlacementOptions] = {}

    def options(self, kind: JobKind) -> PlacementOptions:
        if kind not in self._options:
            self._options[kind] = self._looked_up(kind)
        return self._options[kind]

    def _looked_up(self, kind: JobKind) -> PlacementOptions:
        self._check(kind)
        rows = placements_of(kind, self.cluster)
        sample_s, power_w = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        sources = []
        groups = np.stack([rows.type_index, rows.batch, rows.spread.astype(np.int64)], axis=1)
        for group in np.unique(groups, axis=0):
            mine = (groups == group).all(axis=1)
            type_index, batch, spread = group.tolist()
            found = self._found(
                kind, type_index, batch, bool(spread), rows.gpus[mine], rows.cap_w[mine]
            )
            if found is not None:
                sample_s[mine], power_w[mine] = found.sample_s, found.power_w
                sources.append(found.source)
        source = "; ".join((self.throughputs.source, *dict.fromkeys(sources)))
        step_s = np.asarray(sample_s * rows.gpus * rows.batch, dtype=np.float64)
        return rows.options(sample_s, power_w, step_s, source)

    def _found(
        self, kind: JobKind, type_index: int, batch: int, spread: bool, gpus: Ints, cap_w: Floats
    ) -> "_Found | None":
        """Return one type, batch and spread over GPU counts and caps; None without measurements."""
        gpu_type = self.cluster.types[type_index]
        packed, apart = (self._series(kind, gpu_type, batch, spread=each) for each in (False, True))
        here = apart if spread else packed
        if here is None:
            return None
        counts = gpus.astype(np.float64)
        samples_s, full_w = here.at(counts), here.power_at(counts)
        if apart is not None and not spread:
            # more GPUs than a node has use the network, even when packed
            beyond = gpus > self.cluster.gpus_per_node(type_index)
            samples_s = np.where(beyond, apart.at(counts), samples_s)
        stretch, power_w, source = self._limited(kind, gpu_type, batch, full_w, cap_w)
        return _Found(stretch / samples_s, power_w * gpus, source)

    def _limited(
        self, kind: JobKind, gpu_type: GpuType, batch: int, full_w: Floats, cap_w: Floats
    ) -> tuple[Floats, Floats, str]:
        """Return stretch and power of one GPU under each cap; `full_w` is its uncapped power."""
        if self.curves is not None:
            curve = self.curves.curve(kind.model, gpu_type.gpu, gpu_type.name, batch)
            stretch, power_w = curve.under(cap_w / gpu_type.tdp_w, full_w / gpu_type.tdp_w)
            return stretch, power_w * gpu_type.tdp_w, f"caps of {curve.source}"
        if not np.isfinite(full_w).all():
            raise ConfigError(
                f"model {kind.model} on {gpu_type.name}: {self.throughputs.source} does not say "
                "what a GPU draws; give cap curves, or a column power_w"
            )
        from wattloop.predict.cap_curve import cap_curve

        powers_w, at = np.unique(full_w, return_inverse=True)
        caps_w, under = np.unique(cap_w, return_inverse=True)
        typical = cap_curve(1.0, powers_w, caps_w, gpu_type.gpu)
        return typical.step_s[at, under], typical.power_w[at, under], "caps of a typical program"

    def _series(
        self, kind: JobKind, gpu_type: GpuType, batch: int, *, spread: bool
    ) -> ThroughputSeries | None:
        for name in _names(gpu_type):
            found = self.throughputs.series(kind.model, kind.precision, name, batch, spread=spread)
            if found is not None:
                return found
        return None

    def _check(self, kind: JobKind) -> None:
        table = self.throughputs
        if kind.model not in table.models:
            raise ConfigError(
                f"model {kind.model}: not in {table.source}: {nearest(kind.model, [*table.models])}"
            )
        batches = table.models[kind.model]
        if not set(kind.batches) & set(batches):
            known = ", ".join(f"{batch:g}" for batch in batches)
            raise ConfigError(
                f"model {kind.model}: {table.source} has batches {known} (per GPU), not "
                f"{', '.join(map(str, kind.batches))}"
            )
        precisions = table.precisions(kind.model)
        if kind.precision and not {kind.precision, ""} & set(precisions):
            raise ConfigError(
                f"model {kind.model}: {table.source} has it in {', '.join(precisions)}, not in "
                f"{kind.precision}"
            )
        gpus = table.gpus(kind.model)
        if not any(name in gpus for each in self.cluster.types for name in _names(each)):
            raise ConfigError(
                f"model {kind.model}: {table.source} has it on {', '.join(gpus)}; the cluster "
                f"{self.cluster.name} has {', '.join(each.name for each in self.cluster.types)}"
            )


class _Found(NamedTuple):
    sample_s: Floats
    power_w: Floats
    source: str


def _names(gpu_type: GpuType) -> tuple[str, ...]:
    """Return the names that a table may use for a type: the cluster's, or the GPU's."""
    name = gpu_type.gpu.name
    return tuple(dict.fromkeys((gpu_type.name.lower(), name, name.partition("-")[0])))
