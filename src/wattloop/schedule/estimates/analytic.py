"""Analytic oracle: time and power of placements from `predict`, without measurements."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.hardware.gpus import Gpu
from wattloop.predict.cap_curve import cap_curve, static_power
from wattloop.predict.communication import exchange, ring_of
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.models.model import Model
from wattloop.predict.models.roofline import Roofline
from wattloop.predict.prediction import HOP_S, Placement
from wattloop.predict.workload.workload import Workload
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.oracle import Oracle, PlacementOptions, Placements, placements_of
from wattloop.schedule.jobs.kind import JobKind, ServiceLoad
from wattloop.version import __version__

if TYPE_CHECKING:
    from wattloop.predict.parallel.model import ParallelModel
    from wattloop.predict.request import Question
    from wattloop.predict.serving import DecoderShape


SHIPPED = Path(__file__).with_name("saved_workloads")
"""Folder of workloads saved by scripts/make_workloads.py."""


def kind_workload(kind: JobKind, batch: int) -> "Workload":
    """Return one training step of the kind with this batch per GPU: shipped, cached or traced.

    Raises:
        ConfigError: it cannot be traced; the message says what is missing.
    """
    from wattloop.predict.request import request_workload
    from wattloop.predict.workload.files import load_workload

    path = shipped_workload(kind, batch)
    if path.is_file():
        return load_workload(path)
    try:
        return request_workload(predict_question(kind, batch), cache=True)
    except ConfigError as error:
        raise ConfigError(f"job kind {kind.label}, batch {batch}: {error}") from None


def shipped_workload(kind: JobKind, batch: int) -> Path:
    """Return the path of the kind's shipped workload, which may not exist."""
    words = [kind.model.removeprefix("hf:").rpartition("/")[2], kind.precision, f"b{batch}"]
    if kind.sequence is not None:
        words.append(f"s{kind.sequence}")
    return SHIPPED / f"{re.sub(r'[^a-z0-9]+', '-', '-'.join(words).lower())}.json.gz"


def predict_question(kind: JobKind, batch: int) -> "Question":
    from wattloop.predict.request import Question

    return Question(
        model=kind.model, batch=batch, seq=kind.sequence, precision=kind.precision or None
    )


CODE = (Path(__file__).parents[2] / "predict", Path(__file__).parent)
SUFFIXES = (".py", ".yaml", ".json", ".gz")


def analytic_fingerprint(
    kind: JobKind, cluster: Cluster, estimator: str, calibrations: Mapping[str, str]
) -> list[str] | None:
    """Return version, code, kind, machines, constants and workloads; None when unknown."""
    workloads = [_configuration(kind.model)] if kind.is_laid_out else _workloads(kind)
    if workloads is None:
        return None
    machines = [
        f"{each.name} {each.gpu} {each.limit_w} {each.link_bytes_s} {each.exchange_w} "
        f"{each.exchange_hop_s} {each.idle_w} "
        f"{cluster.gpus_by_type[number]} {cluster.gpus_per_node(number)} "
        f"{sum(group.nodes for group in cluster.groups if group.type_name == each.name)}"
        for number, each in enumerate(cluster.types)
    ]
    constants = [_constants(each.name, each.gpu.name, calibrations) for each in cluster.types]
    network = f"{cluster.network_bytes_s} {cluster.hop_s}"
    return [
        *("analytic", __version__, *_code(), repr(kind), estimator),
        *(network, *machines, *constants, *workloads),
    ]


def _configuration(model: str) -> str:
    """Return the content of a configuration that is a file; those of names are part of the code."""
    path = user_path(model.removeprefix("hf:"))
    return _content(path / "config.json" if path.is_dir() else path)


def _workloads(kind: JobKind) -> list[str] | None:
    found: list[str] = []
    for batch in kind.batches:
        path = shipped_workload(kind, batch)
        if path.is_file():
            found.append(path.name)
        elif kind.model.endswith((".json", ".json.gz")):
            found.append(_content(user_path(kind.model)))
        else:
            from wattloop.predict.request import trace_key

            try:
                parts = trace_key(predict_question(kind, batch))
            except ConfigError:  # the prediction reports the error
                return None
            if parts is None:
                return None
            found += parts
    return found


def _constants(type_name: str, gpu_name: str, calibrations: Mapping[str, str]) -> str:
    """Return the user's file of constants for a GPU; shipped constants are part of the code."""
    if type_name in calibrations:
        return _content(user_path(calibrations[type_name]))
    from wattloop.predict.models.kernels.constants import user_constants_path

    return _content(user_constants_path(gpu_name))


def _content(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "none"


@lru_cache(maxsize=1)
def _code() -> tuple[str, ...]:
    """Return sizes and times of code and constants: a clone changes without a new version."""
    files = sorted(path for folder in CODE for path in folder.rglob("*.*"))
    return tuple(
        f"{path.name}:{stat.st_size}:{stat.st_mtime_ns}"
        for path, stat in ((path, path.stat()) for path in files if path.suffix in SUFFIXES)
    )


BACKWARD_SHARE = 2 / 3
"""Share of a step: the backward pass does each product of the forward pass twice."""


class StepFigures(NamedTuple):
    """Step time and mean power of one GPU of every workload (rows) on every placement (columns)."""

    step_s: NDArray[np.float64]
    power_w: NDArray[np.float64]
    source: str


def step_figures(
    model: Model, workloads: Sequence[Workload], placements: Sequence[Placement]
) -> StepFigures:
    """Compute figures with one of `predict`'s models; all placements have its GPU type.

    `kernels` models caps and rings. For the other models, caps are added by the curve of a typical
    program, and for `roofline` the exchange of gradients is added as well.
    """
    if isinstance(model, KernelModel):
        found = model.predict_many(workloads, placements)
        source = model.predict(workloads[0], placements[0]).model
        return StepFigures(found.step_s, found.power_w, source)
    return _by_points(model, placements[0].gpu, workloads, placements)


def _by_points(
    model: Model, gpu: Gpu, workloads: Sequence[Workload], placements: Sequence[Placement]
) -> StepFigures:
    """Predict each workload and ring once, and apply the cap curve of a typical program."""
    shape = (len(workloads), len(placements))
    step_s, power_w = np.empty(shape), np.empty(shape)
    rings: dict[Placement, list[int]] = {}
    for column, placement in enumerate(placements):
        rings.setdefault(replace(placement, cap_w=None), []).append(column)
    source = ""
    for ring, columns in rings.items():
        points = [_point(model, workload, ring) for workload in workloads]
        caps_w = [placements[column].cap_w or gpu.tdp_w for column in columns]
        curve = cap_curve([p[0] for p in points], [p[1] for p in points], caps_w, gpu)
        step_s[:, columns], power_w[:, columns] = curve
        source = points[0][2]
    return StepFigures(step_s, power_w, source)


def _point(model: Model, workload: Workload, placement: Placement) -> tuple[float, float, str]:
    """Return step time, power and source without a cap."""
    found = model.predict(workload, placement)
    if placement.gpus == 1 or not isinstance(model, Roofline):
        return found.step_s, found.power_w, found.model
    ring, backward_s = ring_of(placement), BACKWARD_SHARE * found.step_s
    exposed_s = float(exchange(workload.gradient_bytes, backward_s, ring).exposed_s)
    exchange_w = placement.exchange_w or static_power(placement.gpu).watts
    energy_j = found.step_s * found.power_w + exposed_s * exchange_w
    step_s = found.step_s + exposed_s
    return step_s, energy_j / step_s, found.model


class LaidOut(NamedTuple):
    """Figures of all GPUs of a layout or a service; its true time is within a factor `time_x`."""

    sample_s: float
    power_w: float
    step_s: float
    source: str
    time_x: float = 1.0


@lru_cache(maxsize=4096)
def laid_out_figures(kind: JobKind, where: Placement, batch: int, idle_w: float) -> LaidOut:
    """Return the figures of a layout or a service, from the sizes of its decoder.

    Raises:
        ConfigError: it does not divide or fit, or answers too slowly; with what would work.
    """
    from wattloop.predict.serving import decoder_named

    shape = decoder_named(kind.model)
    if kind.service is not None:
        return _service_figures(kind.service, shape, where, idle_w)
    return _layout_figures(kind, shape, where, batch)


@lru_cache(maxsize=16)
def _layout_model(gpu: Gpu) -> "ParallelModel":
    from wattloop.predict.parallel.model import ParallelModel

    return ParallelModel(gpu)


def _layout_figures(kind: JobKind, shape: "DecoderShape", where: Placement, batch: int) -> LaidOut:
    from wattloop.predict.parallel.layout import Layout, Links
    from wattloop.predict.parallel.model import ParallelQuestion, usual_sequence

    gpu, layout = where.gpu, Layout.parse(kind.parallel, where.gpus)
    asked = ParallelQuestion(
        model=shape,
        gpu=gpu.name,
        layout=replace(layout, zero=kind.zero) if kind.zero else layout,
        seq=kind.sequence or usual_sequence(shape),
        micro_batch=batch,
        global_batch=kind.global_batch,
        precision=kind.precision or "bf16",
        checkpointing=kind.checkpointing,
        cap_w=where.cap_w,
        exchange_w=where.exchange_w,
        links=Links.of(
            gpu,
            gpus_per_node=where.gpus_per_node,
            network_bytes_s=where.network_bytes_s,
            link_bytes_s=where.link_bytes_s,
            hop_s=None if where.link_latency_s == HOP_S else where.link_latency_s,
        ),
    )
    found = _layout_model(gpu).forecast(asked)
    if not found.fits:
        raise ConfigError(
            f"{found.layout} on {where.gpus} x {gpu.product} needs "
            f"{found.memory_bytes / 2**30:.0f} of {found.available_bytes / 2**30:.0f} GiB per GPU; "
            "more GPUs, sharding: fsdp or checkpointing: full take less on each"
        )
    samples = found.tokens_s * found.step_s / asked.seq
    time_x = found.step_interval.high / found.step_s
    power_w = found.power_w * where.gpus
    return LaidOut(found.step_s / samples, power_w, found.step_s, found.source, time_x)


def _service_figures(
    load: ServiceLoad, shape: "DecoderShape", where: Placement, idle_w: float
) -> LaidOut:
    """Return a second of a service: its time is given, its power follows from its load."""
    from wattloop.predict.serving import ServingModel, ServingQuestion, load_at_rate

    gpu, gpus = where.gpu, where.gpus
    copies, left = divmod(gpus, load.tp)
    if left or not copies:
        raise ConfigError(
            f"{gpus} GPUs cannot be divided into copies of {load.tp}; use multiples of serve.tp"
        )
    if load.tp > where.gpus_per_node:
        raise ConfigError(f"the {load.tp} GPUs of serve.tp, which share layers, need one node")
    model = ServingModel(gpu)
    asked = ServingQuestion(
        model=shape.name, gpu=gpu.name, prompt=load.prompt, output=load.output,
        weights=load.weights, tp=load.tp, cap_w=where.cap_w,
    )  # fmt: skip
    steady = load_at_rate(
        lambda requests: model.forecast(replace(asked, concurrency=requests), shape),
        load.requests_per_s / copies,
        load.tp * idle_w,
    )
    if steady.token_s > load.most_token_s:
        raise ConfigError(
            f"{load.requests_per_s:g} requests/s on {gpus} x {gpu.product}: a token every "
            f"{1e3 * steady.token_s:.3g} ms, not within {1e3 * load.most_token_s:g}; use more GPUs"
        )
    return LaidOut(1.0, steady.power_w * copies, 1.0, model.source)


Floats = NDArray[np.float64]


class AnalyticOracle(Oracle):
    """Oracle that predicts all placements of a kind at once, without those that exceed memory.

    Args:
        estimator: one of `predict`'s models: `kernels`, `adept` or `roofline`.
        calibrations: GPU type name -> file of constants; by default those of `predict`.
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
        self._options: dict[JobKind, PlacementOptions] = {}
        self._workloads: dict[tuple[str, str, int | None, int], Workload] = {}
        self._models: dict[int, Model] = {}

    def options(self, kind: JobKind) -> PlacementOptions:
        if kind not in self._options:
            self._options[kind] = self._predicted(kind)
        return self._options[kind]

    def fingerprint(self, kind: JobKind) -> Sequence[str] | None:
        return analytic_fingerprint(kind, self.cluster, self.estimator, self.calibrations)

    def _predicted(self, kind: JobKind) -> PlacementOptions:
        rows = placements_of(kind, self.cluster)
        if kind.is_laid_out:
            return self._laid_out(kind, rows)
        workloads = {batch: self._workload(kind, batch) for batch in np.unique(rows.batch).tolist()}
        step_s, power_w = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        sources = []
        for type_index in np.unique(rows.type_index).tolist():
            mine = rows.type_index == type_index
            found = self._of_type(kind, type_index, rows, mine, workloads)
            step_s[mine], power_w[mine] = found.step_s, found.power_w
            sources.append(found.source)
        samples = np.array([workloads[batch].samples for batch in rows.batch.tolist()])
        source = "; ".join(dict.fromkeys(sources))
        return rows.options(step_s / (samples * rows.gpus), power_w * rows.gpus, step_s, source)

    def _of_type(
        self,
        kind: JobKind,
        type_index: int,
        rows: Placements,
        mine: NDArray[np.bool_],
        workloads: Mapping[int, "Workload"],
    ) -> StepFigures:
        """Return the figures of one GPU type; NaN where the kind cannot run."""
        from wattloop.predict.memory import memory_fit

        gpu = self.cluster.types[type_index].gpu
        batches = list(workloads)
        columns: dict[Placement, int] = {}
        at = [
            columns.setdefault(
                replace(self._placement(type_index, *row), zero=kind.zero), len(columns)
            )
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
            # without bfloat16 units: `predict` does not model torch's emulation
            (batch, gpus): (workloads[batch].precision != "bf16" or "bf16" in gpu.matrix_flops)
            and memory_fit(workloads[batch], gpu, gpus, kind.zero).fits
            for batch in batches
            for gpus in counts
        }
        pairs = zip(rows.batch[mine].tolist(), rows.gpus[mine].tolist(), strict=True)
        fits = np.array([fitting[pair] for pair in pairs])
        place = np.searchsorted(batches, rows.batch[mine]), np.array(at)
        step_s = np.where(fits, figures.step_s[place], np.nan)
        return StepFigures(step_s, figures.power_w[place], figures.source)

    def _laid_out(self, kind: JobKind, rows: Placements) -> PlacementOptions:
        """Return layouts or services; the source of an empty table is why the first fails."""
        from wattloop.predict.serving import decoder_named

        try:
            decoder_named(kind.model)
        except ConfigError as error:
            raise ConfigError(f"job kind {kind.label}: {error}") from None
        figures = np.full((3, len(rows)), np.nan)
        sources: dict[str, None] = {}
        faults: list[str] = []
        columns = (rows.type_index, rows.gpus, rows.spread, rows.cap_w, rows.batch)
        for row, (number, gpus, spread, cap_w, batch) in enumerate(
            zip(*(each.tolist() for each in columns), strict=True)
        ):
            where = self._placement(number, gpus, spread, cap_w)
            try:
                found = laid_out_figures(kind, where, batch, self.cluster.types[number].idle_w)
            except ConfigError as error:
                faults.append(str(error))
                continue
            figures[:, row] = found[:3]
            sources[f"decoder ({where.gpu.name}, {found.source})"] = None
        source = "; ".join(sources) or next(iter(faults), "")
        return rows.options(figures[0], figures[1], figures[2], source)

    def _workload(self, kind: JobKind, batch: int) -> "Workload":
        key = (kind.model, kind.precision, kind.sequence, batch)
        if key not in self._workloads:
            self._workloads[key] = kind_workload(kind, batch)
        return self._workloads[key]

    def _model(self, type_index: int) -> "Model":
        from wattloop.predict.forecaster import estimator_for

        if type_index not in self._models:
            gpu_type = self.cluster.types[type_index]
            calibration = self.calibrations.get(gpu_type.name)
            model = estimator_for(gpu_type.gpu, self.estimator, calibration)
            self._models[type_index] = model
        return self._models[type_index]

    def _placement(self, type_index: int, gpus: int, spread: bool, cap_w: float) -> "Placement":
        gpu_type = self.cluster.types[type_index]
        return Placement(
            gpu=gpu_type.gpu,
            gpus=gpus,
            cap_w=cap_w,
            link_bytes_s=gpu_type.link_bytes_s,
            exchange_hop_s=gpu_type.exchange_hop_s,
            # if spread, any two neighbours of the ring may be on different nodes
            gpus_per_node=1 if spread else self.cluster.gpus_per_node(type_index),
            network_bytes_s=self.cluster.network_bytes_s,
            exchange_w=gpu_type.exchange_w,
            link_latency_s=self.cluster.hop_s or HOP_S,
        )
