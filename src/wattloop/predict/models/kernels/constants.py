"""Constants of the kernels model for one GPU: defaults, values by name, residuals, file, lookup."""

import gzip
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.core.files import config_folder, is_trusted
from wattloop.hardware.gpus import Gpu, gpu_named
from wattloop.predict.models.kernels.operation_table import Floats, OperationTable, family_of
from wattloop.predict.workload.operation import Phase


class Values:
    """Numbers by dotted name, `stream.efficiency.norm.batch.backward.bf16`.

    `find("stream.efficiency", "norm.batch.backward.bf16")` takes the finest name that is known:
    it leaves off parts from the end until one is found, down to `stream.efficiency` itself.
    """

    def __init__(self, numbers: Mapping[str, float]) -> None:
        self.numbers = dict(numbers)

    def __getitem__(self, name: str) -> float:
        return self.numbers[name]

    def find(self, name: str, scope: str = "") -> float:
        """Return the most specific constant called `name` for this `scope`."""
        asked = f"{name}.{scope}" if scope else name
        while asked:
            value = self.numbers.get(asked)
            if value is not None:
                return value
            asked = asked.rpartition(".")[0]
        raise KeyError(f"{name}.{scope}")

    def column(self, name: str, scopes: Iterable[str]) -> Floats:
        """Return `find` for many scopes at once; each distinct one is looked up once."""
        scopes = list(scopes)
        found = {scope: self.find(name, scope) for scope in set(scopes)}
        return np.array([found[scope] for scope in scopes], dtype=np.float64)

    def with_changes(self, changes: Mapping[str, float]) -> "Values":
        return Values({**self.numbers, **changes})


# Default constants, before any calibration. Times are in seconds, energies in joules; everything
# else is a share of the data sheet's figures, so that one set serves every GPU as a first estimate.
# `calibrate fit` replaces them.
DEFAULTS: dict[str, float] = {
    # GPU time of an empty kernel.
    "kernel.minimum_s": 1.8e-6,
    # The same where a CUDA graph launches it, and the share of the host's time for a forward pass
    # that records nothing for gradients. Both were chosen on generation by a Llama of 1.1B on an
    # H200 (benchmarks/predict_serving.py).
    "kernel.replayed_s": 1.7e-6,
    "host.untracked": 0.83,
    # Logarithm of a factor on the time of a class, as training steps ask for it.
    "scale": 0.0,
    # Products: share of the peak within a tile, and the overhead of a tile.
    "product.efficiency": 0.72,
    "product.efficiency.gemm.fp32": 0.80,
    "product.efficiency.conv": 0.55,
    "product.efficiency.conv.weight": 0.45,
    "product.efficiency.conv.forward.fp32": 0.75,
    "product.efficiency.conv.data.fp32": 0.70,
    "product.efficiency.conv.weight.fp32": 0.60,
    "product.efficiency.grouped": 0.20,
    "product.tile_s": 1.5e-6,
    "product.splits": 32.0,  # parts that the sum over K may be cut into
    "product.l2_share": 2.5,  # bytes a second from L2 into the tiles, against the memory's
    "product.misaligned": 2.2,  # slower when rows do not start at 16 bytes
    "product.misaligned.gemm.fp32": 1.05,
    "product.layout_passes": 1.0,  # cuDNN converts NCHW operands before and after
    "product.layout_passes.conv.forward.fp32": 0.0,
    "product.layout_passes.conv.data.fp32": 0.0,
    "product.layout_passes.conv.weight.fp32": 0.0,
    # Depthwise convolution: bytes at this share of the memory's bandwidth.
    "depthwise.efficiency": 0.25,
    "depthwise.efficiency.weight": 0.08,
    "depthwise.start_s": 1.0e-6,
    # Attention: share of the peak of its units.
    "attention.efficiency": 0.45,
    "attention.efficiency.flash.backward": 0.35,
    "attention.efficiency.efficient": 0.30,
    "attention.efficiency.efficient.backward": 0.20,
    "attention.block_s": 2.0e-6,
    # Factors of a mask and of random numbers in cuDNN's kernel, seen on an H200 (cuDNN 9.19).
    "attention.hidden": 1.1,
    "attention.hidden.flash.forward": 1.35,
    "attention.dropout": 1.3,
    "attention.dropout.flash.forward": 2.0,
    # Recurrent nets: efficiency of their products, and latency of one time step of a layer.
    "rnn.efficiency": 0.35,
    "rnn.step_s": 6.0e-6,
    "rnn.step_s.persistent": 1.0e-6,
    # Memory-bound classes.
    "stream.efficiency": 0.82,
    "stream.efficiency.norm.batch": 0.60,
    "stream.efficiency.norm.batch.backward": 0.55,
    "stream.efficiency.norm.layer.backward": 0.60,
    "stream.efficiency.softmax": 0.70,
    "stream.efficiency.loss": 0.60,
    "stream.efficiency.pool": 0.50,
    "stream.efficiency.embedding": 0.60,
    "stream.efficiency.embedding.backward": 0.30,
    "stream.efficiency.copy.strided": 0.50,
    "stream.efficiency.index": 0.50,
    "stream.efficiency.foreach": 0.80,
    # Kernels that Inductor generates: rows in one pass, columns against the order of memory.
    "stream.efficiency.fused": 0.85,
    "stream.efficiency.fused.columns": 0.60,
    "stream.efficiency.fused.joined": 0.35,
    "stream.efficiency.fused.long_rows": 0.40,
    "stream.start_s": 1.0e-7,  # beyond the minimum of its kernels
    "stream.l2_speed": 2.0,  # times the memory's bandwidth when all of it stays in L2
    "stream.l2_share": 0.5,  # usable share of L2 for an operation
    # hit rate of data that could be in L2: some tensors were written long ago
    "stream.l2_use": 0.5,
    # Host: seconds of one dispatched operation by phase and kind, of a launch beyond the first of
    # a call, of a recurrent layer, of a tensor in a list, of a module call, and of a phase.
    "host.call_s": 8.0e-6,
    "host.call_s.forward": 9.0e-6,
    "host.call_s.forward.view": 2.5e-6,
    "host.call_s.forward.conv": 2.5e-5,
    "host.call_s.forward.norm": 2.0e-5,
    "host.call_s.forward.attention": 2.5e-5,
    "host.call_s.forward.rnn": 8.0e-5,
    "host.call_s.backward": 9.0e-6,
    "host.call_s.backward.view": 2.0e-6,
    "host.call_s.backward.conv": 3.0e-5,
    "host.call_s.backward.norm": 2.0e-5,
    "host.call_s.backward.attention": 3.0e-5,
    "host.call_s.backward.rnn": 8.0e-5,
    # 31 microbenchmarks of an H200's host: 130 to 340 us, the calibrated host is a quarter quicker.
    "host.call_s.backward.sorting": 1.75e-4,
    "host.call_s.optimizer": 5.0e-6,
    "host.call_s.optimizer.foreach": 2.0e-5,
    "host.launch_s": 3.0e-6,
    "host.launch_s.rnn.forward": 1.5e-5,
    "host.launch_s.rnn.backward": 2.0e-5,
    "host.layer_s.forward": 1.0e-4,
    "host.layer_s.backward": 5.0e-4,
    "host.tensor_s": 1.0e-6,
    "host.module_s": 4.0e-6,
    "host.step_s.forward": 1.0e-4,
    "host.step_s.backward": 1.0e-4,
    "host.step_s.optimizer": 1.0e-4,
    # Host of a compiled step: a pass of the generated code, one of its kernels, a call of a
    # library; the replay of a CUDA graph, and a parameter of a graph that is replayed. Fitted to
    # 24 networks on a virtual Xeon (benchmarks/predict_compiled.py).
    "host.compiled.graph_s": 4.0e-5,
    "host.compiled.triton_s": 1.84e-5,
    "host.compiled.library_s": 6.0e-5,
    "host.compiled.convolution_s": 1.42e-4,
    "host.compiled.replay_s": 5.0e-4,
    "host.compiled.parameter_s": 2.0e-5,
    "host.overlap": 12.0,  # sharpness of max(GPU, host)
    # Power: watts that flow whatever runs, and joules of work.
    "power.idle_w": 80.0,
    "power.static_w": 35.0,
    "power.busy_w": 220.0,
    "power.joule_per_flop.bf16": 9.0e-13,
    "power.joule_per_flop.fp16": 9.0e-13,
    "power.joule_per_flop.tf32": 2.0e-12,
    "power.joule_per_flop.fp32": 6.5e-12,
    "power.joule_per_flop.fp64": 1.2e-11,
    "power.joule_per_flop.vector": 4.0e-11,
    "power.joule_per_byte": 6.2e-11,
    "power.cap_share": 0.985,  # what the mean settles at under a cap
    "power.voltage_floor": 0.70,  # of the voltage at full clock, at and below the knee
    "power.voltage_knee": 0.60,
}


# Residuals of microbenchmarks against the formulas.
#
# For each group of operations, the logarithm of measured over calculated time is a Gaussian
# process over the place of the operation (`features`): near a microbenchmark its residual applies,
# far from all of them the formula alone. #
#     r(x) = sum_i a_i k(|x - x_i| / l),   k(d) = (1 + d) exp(-d),   a = (K + s^2 I)^-1 r
#
# The kernel is a rough one (Matern 3/2): libraries switch kernels between two sizes.
MOST = 3.0
"""Limit of a correction: e to this power."""


@dataclass(frozen=True, slots=True)
class ResidualGroup:
    """Measured features of one group, their weights and length scales.

    `reach` has one length per feature, in doublings.
    """

    places: Floats
    weights: Floats
    reach: Floats

    def corrections(self, places: Floats) -> tuple[Floats, Floats]:
        """Return logarithms of factors, and distances to the nearest measurement: at most 1."""
        near = nearness(places / self.reach, self.places / self.reach)
        return np.clip(near @ self.weights, -MOST, MOST), 1 - near.max(axis=1)


def nearness(first: Floats, second: Floats) -> Floats:
    """Return 1 for the same place, falling to 0 with distance; one row per place of `first`."""
    squared = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None, :]
    squared -= 2 * first @ second.T
    distance = np.sqrt(3 * np.maximum(squared, 0.0))
    close: Floats = (1 + distance) * np.exp(-distance)
    return close


class Residuals:
    """Corrections of all groups."""

    def __init__(self, groups: Mapping[str, ResidualGroup] | None = None) -> None:
        self.groups = dict(groups or {})
        self._known: dict[int, tuple[OperationTable, Floats, Floats]] = {}

    def factors(self, table: OperationTable) -> tuple[Floats, Floats]:
        """Return the factors, and each row's distance from the nearest measurement: 0 to 1."""
        known = self._known.get(id(table))  # a fit asks for the same tables again and again
        if known is None or known[0] is not table:
            known = self._known[id(table)] = (table, *self._factors(table))
        return known[1:]

    def _factors(self, table: OperationTable) -> tuple[Floats, Floats]:
        factors, far = np.ones(len(table)), np.ones(len(table))
        members: dict[str, list[int]] = {}
        for index, name in enumerate(table.classes):
            group = name if name in self.groups else family_of(name)
            if group in self.groups:
                members.setdefault(group, []).append(index)
        for group, rows in members.items():
            places = np.array([table.places[row] for row in rows])
            correction, far[rows] = self.groups[group].corrections(places)
            factors[rows] = np.exp(correction)
        return factors, far


OLDER = {"host.layer_s.forward": 0.0, "host.layer_s.backward": 0.0}
"""Constants that files of earlier versions lack: their launches contain them."""
FORMAT = "wattloop kernels constants"
VERSION = 1
REMEDY = "make it again with 'wattloop calibrate fit'"


@dataclass(frozen=True, slots=True)
class KernelConstants:
    """Constants of one GPU and their origin.

    Attributes:
        gpu: short name of the GPU they hold for; empty for the data-sheet guess.
        values: the numbers.
        residuals: of microbenchmarks against the formulas.
        intervals: relative residuals of models that the constants had not seen, for intervals.
        made: data, date and versions of the fit.
        before: values (None: absent) before the fit to training steps; another fit starts from
            them, so that it does not depend on the former steps.
    """

    gpu: str = ""
    values: Values = field(default_factory=lambda: Values(DEFAULTS))
    residuals: Residuals = field(default_factory=Residuals)
    intervals: Mapping[str, Any] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, float | None] = field(default_factory=dict)

    def unfitted(self) -> "KernelConstants":
        """Return the constants from microbenchmarks alone, without the fit to training steps."""
        numbers: dict[str, float] = dict(self.values.numbers)
        for name, value in self.before.items():
            if value is None:
                numbers.pop(name, None)
            else:
                numbers[name] = value
        return replace(self, values=Values(numbers), before={}, intervals={})

    def fitted(self, values: Values) -> "KernelConstants":
        old = self.values.numbers
        before = {
            name: old.get(name) for name, value in values.numbers.items() if old.get(name) != value
        }
        return replace(self, values=values, before=before)

    def with_values(self, changes: Mapping[str, float]) -> "KernelConstants":
        return replace(self, values=self.values.with_changes(changes))

    def to_plain(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "gpu": self.gpu,
            "made": dict(self.made),
            "values": {name: _short(value) for name, value in self.values.numbers.items()},
            "before": {
                name: None if value is None else _short(value)
                for name, value in self.before.items()
            },
            "intervals": dict(self.intervals),
            "residuals": {
                name: {
                    "reach": [_short(length) for length in group.reach.tolist()],
                    "weights": [_short(w) for w in group.weights.tolist()],
                    "places": [[round(x, 3) for x in place] for place in group.places.tolist()],
                }
                for name, group in self.residuals.groups.items()
            },
        }

    def save(self, path: Path) -> None:
        """Write the file, compressed when its name ends in `.gz`."""
        text = json.dumps(self.to_plain(), separators=(",", ":"))
        data = text.encode("utf-8")
        path.parent.mkdir(parents=True, exist_ok=True)
        # mtime 0: equal constants give equal bytes
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)

    @classmethod
    def load(cls, path: Path) -> "KernelConstants":
        """Read a file that `save` wrote.

        Raises:
            ConfigError: the file and the field that is wrong, and how to make it again.
        """
        try:
            data = path.read_bytes()
            plain = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        except (OSError, EOFError, ValueError) as fault:
            raise ConfigError(
                f"{path}: not a readable constants file ({fault}); {REMEDY}"
            ) from None
        return cls.from_plain(plain, str(path))

    @classmethod
    def from_plain(cls, plain: Any, where: str) -> "KernelConstants":
        """Build constants from a file's content; `where` names it in errors."""
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise _fault(where, "format", f"is not '{FORMAT}'")
        if plain.get("version") != VERSION:
            raise _fault(
                where, "version", f"is {plain.get('version')!r}, this version reads {VERSION}"
            )
        if not isinstance(plain.get("gpu"), str) or not plain["gpu"]:
            raise _fault(where, "gpu", "does not name a GPU")
        numbers = plain.get("values")
        if not isinstance(numbers, dict):
            raise _fault(where, "values", "is missing")
        for name, value in numbers.items():
            if not _finite(value):
                raise _fault(where, f"values.{name}", f"is not a number: {value!r}")
        known = _by_phase(numbers)
        residuals = plain.get("residuals", {})
        if not isinstance(residuals, dict):
            raise _fault(where, "residuals", "is not a mapping")
        groups = {name: _group(where, name, group) for name, group in residuals.items()}
        return cls(
            gpu=plain["gpu"],
            values=Values({**DEFAULTS, **OLDER, **{name: float(v) for name, v in known.items()}}),
            residuals=Residuals(groups),
            intervals=_mapping(where, plain, "intervals"),
            made=_mapping(where, plain, "made"),
            before=_by_phase(_before(where, plain)),
        )


def _by_phase(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Convert older files: they have the fixed time of a whole step, `host.step_s`, a third per
    phase.
    """
    found = dict(numbers)
    whole_s = found.pop("host.step_s", None)
    thirds = {} if whole_s is None else {f"host.step_s.{phase}": whole_s / 3 for phase in Phase}
    return {**thirds, **found}


def _group(where: str, name: str, group: Any) -> ResidualGroup:
    field_name = f"residuals.{name}"
    if not isinstance(group, dict):
        raise _fault(where, field_name, "is not a mapping")
    try:
        places = np.array(group["places"], dtype=np.float64)
        weights = np.array(group["weights"], dtype=np.float64)
        reach = np.array(group["reach"], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as fault:
        raise _fault(where, field_name, f"is incomplete ({fault})") from None
    matching = places.ndim == 2 and weights.shape == (len(places),)
    if not matching or reach.shape != places.shape[1:] or not (reach > 0).all():
        raise _fault(where, field_name, "has places, weights and reach that do not match")
    if not (np.isfinite(places).all() and np.isfinite(weights).all()):
        raise _fault(where, field_name, "has values that are not numbers")
    return ResidualGroup(places, weights, reach)


def _mapping(where: str, plain: dict[str, Any], name: str) -> dict[str, Any]:
    value = plain.get(name, {})
    if not isinstance(value, dict):
        raise _fault(where, name, "is not a mapping")
    return value


def _before(where: str, plain: dict[str, Any]) -> dict[str, float | None]:
    before = _mapping(where, plain, "before")
    for name, value in before.items():
        if value is not None and not _finite(value):
            raise _fault(where, f"before.{name}", f"is not a number: {value!r}")
    return before


def _fault(where: str, field_name: str, what: str) -> ConfigError:
    return ConfigError(f"{where}: field '{field_name}' {what}; {REMEDY}")


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


SHIPPED = Path(__file__).parents[2] / "calibrate" / "constants"
REFERENCE = "h200"
"""GPU whose constants are used for GPUs without their own."""


def constants_for(gpu: Gpu) -> tuple[KernelConstants, str]:
    """Return constants for `gpu` and their origin: `calibrated`, `shipped` or `spec-only`.

    Raises:
        ConfigError: the user's file is not readable, or belongs to another GPU.
    """
    own = user_constants_path(gpu.name)
    if own.exists() and is_trusted(own):
        constants = KernelConstants.load(own)
        if constants.gpu != gpu.name:
            raise ConfigError(
                f"{own}: field 'gpu' is '{constants.gpu}', but the file is taken for '{gpu.name}'; "
                f"rename it to {constants.gpu}.json.gz or calibrate a {gpu.name}"
            )
        return constants, "calibrated"
    shipped = SHIPPED / f"{gpu.name}.json.gz"
    if shipped.exists():
        return _shipped(shipped), "shipped"
    from wattloop.predict.models.kernels.datasheet import spec_constants

    reference, calibrated = reference_constants()
    return spec_constants(gpu, reference, calibrated), "spec-only"


def reference_constants() -> tuple[KernelConstants, Gpu]:
    """Return the reference constants for uncalibrated GPUs, and their GPU."""
    shipped = SHIPPED / f"{REFERENCE}.json.gz"
    constants = _shipped(shipped) if shipped.exists() else KernelConstants()
    return constants, gpu_named(REFERENCE)


def _shipped(path: Path) -> KernelConstants:
    """Return the constants of a file of the package, which is read once."""
    constants = _load_once(path)
    # Residuals remember the tables they were asked about: those of one model, not of all.
    return replace(constants, residuals=Residuals(constants.residuals.groups))


_load_once = cache(KernelConstants.load)


def user_constants_path(gpu_name: str) -> Path:
    """Return the path of a user's constants of a GPU, written by `calibrate fit`."""
    return config_folder() / "calibration" / f"{gpu_name}.json.gz"
