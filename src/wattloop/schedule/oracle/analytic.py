"""Time and power from `predict`: no measurement of the job is needed, nor of the GPU."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.hardware.gpus import Gpu
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.oracle.options import Options
from wattloop.schedule.oracle.oracle import Oracle
from wattloop.schedule.oracle.placements import Placements, placements_of

if TYPE_CHECKING:
    from wattloop.predict.models.model import Model
    from wattloop.predict.prediction import Placement
    from wattloop.predict.workload.workload import Workload

__all__ = ["AnalyticOracle"]

Floats = NDArray[np.float64]


class AnalyticOracle(Oracle):
    """All placements of a kind on a cluster, predicted at once; those that fit into memory.

    Args:
        cluster: where jobs run.
        estimator: one of `predict`'s models: `kernels`, `adept` or `roofline`.
        calibrations: GPU type name -> file of constants; others have what `predict` knows.
    """

    name = "analytic"

    def __init__(
        self,
        cluster: Cluster,
        *,
        estimator: str = "kernels",
        calibrations: Mapping[str, str] | None = None,
    ) -> None:
        self.cluster = cluster
        self.estimator = estimator
        self.calibrations = dict(calibrations or {})
        self._options: dict[JobKind, Options] = {}
        self._workloads: dict[tuple[str, str, int | None, int], Workload] = {}
        self._models: dict[int, Model] = {}

    def options(self, kind: JobKind) -> Options:
        """Every placement that fits into memory.

        Raises:
            ConfigError: the model is not known and cannot be traced here, or the estimator has no
                constants for a GPU of the cluster.
        """
        if kind not in self._options:
            self._options[kind] = self._predicted(kind)
        return self._options[kind]

    def fingerprint(self, kind: JobKind) -> Sequence[str] | None:
        """Kind, machines, constants, workloads and code."""
        from wattloop.schedule.oracle.fingerprint import analytic_fingerprint

        return analytic_fingerprint(kind, self.cluster, self.estimator, self.calibrations)

    def _predicted(self, kind: JobKind) -> Options:
        rows = placements_of(kind, self.cluster)
        workloads = {batch: self._workload(kind, batch) for batch in np.unique(rows.batch).tolist()}
        step_s, power_w = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        sources = []
        for type_index in np.unique(rows.type_index).tolist():
            mine = rows.type_index == type_index
            found = self._of_type(type_index, rows, mine, workloads)
            step_s[mine], power_w[mine] = found.step_s, found.power_w
            sources.append(found.source)
        fits = np.isfinite(step_s)
        samples = np.array([workloads[batch].samples for batch in rows.batch.tolist()])
        return Options(
            type_index=rows.type_index[fits],
            gpus=rows.gpus[fits],
            batch=rows.batch[fits],
            cap_w=rows.cap_w[fits],
            spread=rows.spread[fits],
            sample_s=step_s[fits] / (samples * rows.gpus)[fits],
            power_w=(power_w * rows.gpus)[fits],
            step_s=step_s[fits],
            source="; ".join(dict.fromkeys(sources)),
        )

    def _of_type(
        self,
        type_index: int,
        rows: Placements,
        mine: NDArray[np.bool_],
        workloads: Mapping[int, "Workload"],
    ) -> "_Found":
        """Figures of the rows of one GPU type; not a number where it cannot run."""
        from wattloop.predict.memory import memory_fit
        from wattloop.schedule.oracle.step_figures import step_figures

        gpu = self.cluster.types[type_index].gpu
        batches = list(workloads)
        columns: dict[Placement, int] = {}
        at = [
            columns.setdefault(self._placement(type_index, *row), len(columns))
            for row in zip(
                rows.gpus[mine].tolist(),
                rows.spread[mine].tolist(),
                rows.cap_w[mine].tolist(),
                strict=True,
            )
        ]
        model = self._model(type_index)
        figures = step_figures(model, list(workloads.values()), list(columns))
        counts = np.unique(rows.gpus[mine]).tolist()
        fitting = {
            (batch, gpus): _runs(workloads[batch], gpu)
            and memory_fit(workloads[batch], gpu, gpus).fits
            for batch in batches
            for gpus in counts
        }
        pairs = zip(rows.batch[mine].tolist(), rows.gpus[mine].tolist(), strict=True)
        fits = np.array([fitting[pair] for pair in pairs])
        place = np.searchsorted(batches, rows.batch[mine]), np.array(at)
        step_s = np.where(fits, figures.step_s[place], np.nan)
        return _Found(step_s, figures.power_w[place], figures.source)

    def _workload(self, kind: JobKind, batch: int) -> "Workload":
        from wattloop.schedule.oracle.workloads import workload_of

        key = (kind.model, kind.precision, kind.sequence, batch)
        if key not in self._workloads:
            self._workloads[key] = workload_of(kind, batch)
        return self._workloads[key]

    def _model(self, type_index: int) -> "Model":
        from wattloop.predict.estimators import estimator_for

        if type_index not in self._models:
            gpu_type = self.cluster.types[type_index]
            calibration = self.calibrations.get(gpu_type.name)
            model = estimator_for(gpu_type.gpu, self.estimator, calibration)
            self._models[type_index] = model
        return self._models[type_index]

    def _placement(self, type_index: int, gpus: int, spread: bool, cap_w: float) -> "Placement":
        from wattloop.predict.prediction import Placement

        gpu_type = self.cluster.types[type_index]
        return Placement(
            gpu=gpu_type.gpu,
            gpus=gpus,
            cap_w=cap_w,
            link_bytes_s=gpu_type.link_bytes_s,
            # spread, any two neighbours of the ring may be on different nodes
            gpus_per_node=1 if spread else self.cluster.gpus_per_node(type_index),
            network_bytes_s=self.cluster.network_bytes_s,
        )


def _runs(workload: "Workload", gpu: Gpu) -> bool:
    """Without bfloat16 units torch emulates them, at a speed that `predict` does not know."""
    return workload.precision != "bf16" or "bf16" in gpu.matrix_flops


class _Found(NamedTuple):
    step_s: Floats
    power_w: Floats
    source: str
