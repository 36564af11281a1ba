"""Intervals of predictions, from residuals on networks left out of the fit."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.predict.prediction import AT_REST, Interval, Placement, Prediction
from wattloop.predict.workload.operation import MATRIX_KINDS, Kind, Operation
from wattloop.predict.workload.workload import Workload

PER_DOUBLING = 0.25
PER_UNRULED = 4.0
PER_UNKNOWN_CLASS = 4.0
OTHER_GPU = 2.0
NEGLIGIBLE = 0.01
"""Smaller shares are not reported."""


@dataclass(frozen=True, slots=True)
class Distance:
    """Distance outside the range, with `reasons`, empty inside."""

    value: float
    reasons: tuple[str, ...] = ()

    @property
    def factor(self) -> float:
        return 1.0 + self.value


@dataclass(frozen=True, slots=True)
class CalibrationRange:
    """Range of the calibrated workloads.

    Attributes:
        gpu: name in the table of GPUs.
        flops_per_byte: least and most of the calibrated steps.
        unruled: largest share of work without a cost rule among them.
        classes: of operations that were calibrated, as `class_of` names them.
    """

    gpu: str
    flops_per_byte: tuple[float, float]
    unruled: float
    classes: frozenset[str]

    @classmethod
    def of(cls, gpu: str, workloads: Iterable[Workload], also: Iterable[Operation] = ()) -> Self:
        """Build the range of calibrated steps, and of operations measured alone."""
        steps = list(workloads)
        if not steps:
            raise ConfigError("a calibration's scope needs at least one measured step")
        ratios = [_flops_per_byte(step) for step in steps]
        operations = [*(op for step in steps for op in step.operations), *also]
        return cls(
            gpu,
            (min(ratios), max(ratios)),
            max(step.unruled_share for step in steps),
            frozenset(class_of(op) for op in operations if op.kind is not Kind.VIEW),
        )

    def distance(self, workload: Workload, placement: Placement) -> Distance:
        value = 0.0
        reasons = []
        low, high = self.flops_per_byte
        ratio = _flops_per_byte(workload)
        doublings = max(math.log2(low / ratio), math.log2(ratio / high), 0.0)
        if doublings:
            value += PER_DOUBLING * doublings
            reasons.append(
                f"{ratio:.3g} FLOPs per byte; calibrated steps have {low:.3g} to {high:.3g}"
            )
        unruled = max(workload.unruled_share - self.unruled, 0.0)
        value += PER_UNRULED * unruled
        if unruled > NEGLIGIBLE:
            reasons.append(
                f"{workload.unruled_share:.0%} of the bytes are in operations without rules"
            )
        unknown = {
            name: share
            for name, share in _shares(workload).items()
            if name not in self.classes and share > 0
        }
        value += PER_UNKNOWN_CLASS * min(sum(unknown.values()), 1.0)
        told = [name for name, share in unknown.items() if share > NEGLIGIBLE]
        if told:
            reasons.append(f"never calibrated: {', '.join(sorted(told))}")
        if placement.gpu.name != self.gpu:
            value += OTHER_GPU
            reasons.append(f"no calibration of {placement.gpu.name}, only of {self.gpu}")
        return Distance(value, tuple(reasons))

    def to_dict(self) -> dict[str, object]:
        return {
            "gpu": self.gpu,
            "flops_per_byte": list(self.flops_per_byte),
            "unruled": self.unruled,
            "classes": sorted(self.classes),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> Self:
        """Inverse of `to_dict`; ConfigError names the invalid field."""
        try:
            ends, classes = raw["flops_per_byte"], raw["classes"]
            if not isinstance(classes, list) or not isinstance(ends, list):
                raise TypeError("classes or flops_per_byte is not a list")
            low, high = map(float, ends)
            return cls(
                str(raw["gpu"]),
                (low, high),
                float(raw["unruled"]),  # type: ignore[arg-type] # a TypeError is caught below
                frozenset(map(str, classes)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"scope of the calibration: {error}; fit it again with `wattloop calibrate fit`"
            ) from None


def class_of(op: Operation) -> str:
    """Return the class of operations with common constants: kind, arithmetic of products, form."""
    name = str(op.kind)
    if op.kind is Kind.CONV and op.dims is not None and op.dims[0] > 1:
        name = "grouped conv"
    if op.kind is Kind.RNN:
        name = str(op.detail.get("cell", name))
    if op.kind is Kind.ATTENTION:
        name = f"{op.detail.get('algorithm', '')} {name}".strip()
    if op.kind is Kind.RNN and op.dtype == "fp16":
        return f"{name} bf16"  # as under autocast; measured as bf16
    return f"{name} {op.dtype}" if op.kind in MATRIX_KINDS else name


def _flops_per_byte(workload: Workload) -> float:
    flops = sum(op.flops * op.count for op in workload.operations)
    moved = sum(op.bytes_moved * op.count for op in workload.operations)
    return max(flops, 1.0) / max(moved, 1.0)


def _shares(workload: Workload) -> dict[str, float]:
    """Return each class's share of FLOPs or of bytes, whichever is larger."""
    flops: dict[str, float] = {}
    moved: dict[str, float] = {}
    for op in workload.operations:
        if op.kind is Kind.VIEW:
            continue
        name = class_of(op)
        flops[name] = flops.get(name, 0.0) + op.flops * op.count
        moved[name] = moved.get(name, 0.0) + op.bytes_moved * op.count
    all_flops, all_moved = sum(flops.values()) or 1.0, sum(moved.values()) or 1.0
    return {name: max(flops[name] / all_flops, moved[name] / all_moved) for name in flops}


# Spread of residuals, by traits of the step that are known in advance.
#
# Steps that load the GPU with kernels that calibration has measured are predicted best. Less
# certain are, each by its own trait of a step,
#
#     waiting       the GPU's share of waiting for the host, whose speed varies
#     unloaded      1 - power / (0.97 limit): small kernels, launches
#     convolution   share of the step; cuDNN's choice of algorithm is unknown
#     recurrence    share of the step
#     far           how far its kernels are from microbenchmarks, in tenths, at most 3
#
# The spread of a step is log-linear in them, and sizes of residuals are assumed to be
# exponentially distributed around it (a Laplace distribution of residuals):
#
#     spread = exp(base + sum of slope x trait)
#     minimise sum over steps of log(spread) + size / spread, + PULL x sum of slope^2
#
# which is convex. Large sizes are clipped, so that outliers do not dominate the spread.
TRAITS = ("waiting", "unloaded", "convolution", "recurrence", "far")
BASE = "base"
_KINDS = {"conv": "convolution", "rnn": "recurrence"}
FULL = 0.97
"""Share of its power limit that a fully loaded GPU draws."""
PULL = 0.5
"""Regularization of the slopes towards 0, against overfitting to a few steps."""
CUT = 3.0
"""Sizes beyond so many medians (and a tenth) are clipped."""
FAR_UNIT, FARTHEST = 0.1, 3.0
EXACT = 1e-6
"""Least spread of a step."""
ROUNDS = 50
Array = NDArray[np.float64]


def traits_of(prediction: Prediction, limit_w: float) -> dict[str, float]:
    """Return the traits of a step; 0 for unknown ones."""
    gpu_s = prediction.step_s if prediction.gpu_s is None else prediction.gpu_s
    found = traits_at(
        np.float64(prediction.power_w / limit_w),
        np.float64(gpu_s / prediction.step_s),
        kinds_of(prediction),
    )
    return {name: float(value) for name, value in found.items()}


def kinds_of(prediction: Prediction) -> dict[str, float]:
    """Return the traits of the GPU's work itself: shares of its time, and `far`."""
    busy = {name: s for name, s in prediction.terms_s.items() if "." in name and s > 0}
    total = sum(busy.values())
    shares = {"far": min((prediction.far or 0.0) / FAR_UNIT, FARTHEST)}
    for kind, trait in _KINDS.items():
        own = sum(seconds for name, seconds in busy.items() if name.endswith(f".{kind}"))
        shares[trait] = own / total if total else 0.0
    return shares


def traits_at(
    drawn: Array | np.float64, busy: Array | np.float64, kinds: Mapping[str, float]
) -> dict[str, Array | np.float64]:
    """Return the traits of one workload's step, or of many placements.

    Args:
        drawn: power over the limit.
        busy: GPU time over the step's.
        kinds: of `kinds_of`.
    """
    busy = np.minimum(busy, 1.0)
    found: dict[str, Array | np.float64] = {
        "waiting": 1 - busy,
        "unloaded": 1 - np.minimum(drawn / FULL, 1.0),
    }
    return found | {name: share * busy for name, share in kinds.items()}


def spreads_of(traits: Sequence[Mapping[str, float]], sizes: Sequence[float]) -> dict[str, float]:
    """Fit base and slopes to steps' traits and sizes of their residuals."""
    values = np.maximum(np.asarray(sizes, dtype=np.float64), EXACT)
    values = np.minimum(values, CUT * np.median(values) + 0.1)
    mean = float(values.mean())
    columns = np.array([[1.0, *(step.get(name, 0.0) for name in TRAITS)] for step in traits])
    found = _minimum(columns, values / mean)
    return {
        BASE: float(found[0] + np.log(mean)),
        **dict(zip(TRAITS, found[1:].tolist(), strict=True)),
    }


def spread_of(
    spreads: Mapping[str, float], traits: Mapping[str, float | Array | np.float64]
) -> Array | np.float64:
    told = sum(spreads.get(name, 0.0) * value for name, value in traits.items())
    return np.exp(spreads[BASE] + told)


def _minimum(columns: Array, sizes: Array) -> Array:
    """Minimise by Newton's method with step halving."""
    pull = 2 * PULL * np.diag([0.0, *[1.0] * (columns.shape[1] - 1)])

    def loss(at: Array) -> float:
        logs = columns @ at
        return float((logs + sizes * np.exp(-logs)).sum() + at @ pull @ at / 2)

    found = np.zeros(columns.shape[1])
    for _ in range(ROUNDS):
        over = sizes * np.exp(-(columns @ found))
        slope = columns.T @ (1 - over) + pull @ found
        bend = columns.T @ (over[:, None] * columns) + pull + 1e-9 * np.eye(len(found))
        step = np.linalg.solve(bend, slope)
        while not loss(found - step) <= loss(found) and np.abs(step).max() > 1e-9:
            step /= 2
        found = found - step
        if np.abs(step).max() < 1e-7:
            break
    return found


# Intervals of predictions, from residuals on models that were left out of the fit.
#
# Conformal: with r the logarithm of measured over predicted on every calibrated step, each
# predicted by constants that never saw its model, the interval is
#
#     prediction x exp(-+ q x spread x (1 + distance)),
#     q = the ceil((n + 1) confidence)-th smallest |r| / spread
#
# `spread` tells steps that are predicted well from others by what is known of them (see
# `spreads`);
# without it, residuals of the same bottleneck count, where there are enough of enough models.
# `distance` is 0 inside of the calibrated range (see `scope`). A GPU holds its power limit, so no
# interval of power goes further.
CONFIDENCE = 0.9
HOST_SHARE = 0.7
"""The GPU is the bottleneck when dispatching takes less than this share of the step."""
HELD = 1.02
"""Overshoot over the power limit: an H200 drew up to 708 W of 700, by its own sensor."""
ENOUGH_RESIDUALS = 20
ENOUGH_MODELS = 3
ENOUGH_HOSTS = 4
"""Hosts, the calibrated one among them, of which a spread is known."""
POOLED = "all"
PARTS = 100
"""Quantiles of an exponential distribution that stand for residuals."""
QUANTITIES = ("time", "power", "energy")


@dataclass(frozen=True, slots=True)
class Residual:
    """Residual of one prediction, for a model left out of the fit.

    Attributes:
        group: the model that was left out.
        bottleneck: `gpu` or `host`, as predicted.
        time, power: log(measured / predicted); power None when it was not measured.
        traits: of the step, by name.
    """

    group: str
    bottleneck: str
    time: float
    power: float | None = None
    traits: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        group: str,
        prediction: Prediction,
        step_s: float,
        power_w: float | None,
        placement: Placement | None = None,
    ) -> "Residual":
        """Build the residual of a measured step; without placement the GPU load is unknown."""
        power = None if power_w is None else math.log(power_w / prediction.power_w)
        time = math.log(step_s / prediction.step_s)
        traits = traits_of(prediction, _limit_w(placement)) if placement else {}
        return cls(group, bottleneck_of(prediction), time, power, traits)

    def value(self, quantity: str) -> float | None:
        if quantity == "time":
            return self.time
        if self.power is None:
            return None
        return self.power if quantity == "power" else self.time + self.power


def bottleneck_of(prediction: Prediction) -> str:
    """Return `host` when dispatching takes most of the predicted step, else `gpu`."""
    host_s = prediction.host_s or 0.0
    return "host" if host_s >= HOST_SHARE * prediction.step_s else "gpu"


class HostSpread(NamedTuple):
    """Distribution of the time that hosts need to dispatch a step, against the calibrated one.

    Attributes:
        mean, deviation: of its logarithm over hosts.
    """

    mean: float
    deviation: float

    @classmethod
    def of(cls, speeds: Iterable[float]) -> "HostSpread | None":
        """Return that of hosts at these speeds and of the calibrated one; None of too few."""
        logs = [0.0, *(-math.log(speed) for speed in speeds)]
        if len(logs) < ENOUGH_HOSTS:
            return None
        # The next host differs from the mean of these, which is uncertain itself.
        deviation = float(np.std(logs, ddof=1)) * math.sqrt(1 + 1 / len(logs))
        return cls(float(np.mean(logs)), deviation)

    def widened(
        self, quantity: str, half: Array | float, step: "HostedStep", confidence: float = CONFIDENCE
    ) -> tuple[Array, Array]:
        """Return the logarithms below and above predictions for the calibrated host.

        That host is one of those that it may be, so no end comes closer than `half`. It was the
        quickest so far: a tenth of hosts may lie beyond the slow end, not half of that.
        """
        reach = NormalDist().inv_cdf(confidence) * self.deviation
        logs = (self.mean - reach, self.mean, self.mean + reach)
        ends = np.stack([step.moved(quantity, math.exp(x)) for x in logs])
        low, middle, high = np.sort(ends, axis=0)
        below = np.maximum(half, np.hypot(half, middle - low) - middle)
        return below, np.maximum(half, np.hypot(half, high - middle) + middle)


class HostedStep(NamedTuple):
    """Steps of the calibrated host: their time, what GPU and host need, and the share of energy
    that the GPU takes whatever runs.
    """

    step_s: Array | float
    gpu_s: Array | float
    host_s: Array | float
    rest: Array | float

    def moved(self, quantity: str, slower: float) -> Array:
        """Return the logarithm by which a quantity changes on a host that takes longer."""
        longer_s = np.maximum(self.gpu_s, np.asarray(self.host_s) * slower)
        added = (longer_s - np.maximum(self.gpu_s, self.host_s)) / self.step_s
        time = np.log(np.maximum(1 + added, 1e-3))
        energy = np.log(np.maximum(1 + self.rest * added, 1e-3))
        return np.asarray({"time": time, "power": energy - time, "energy": energy}[quantity])

    @classmethod
    def of(cls, prediction: Prediction) -> "HostedStep":
        total_j = sum(prediction.terms_j.values())
        rest = prediction.terms_j.get(AT_REST, 0.0) / total_j if total_j else 0.0
        gpu_s, host_s = prediction.gpu_s or 0.0, prediction.host_s or 0.0
        return cls(prediction.step_s, gpu_s, host_s, rest)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of new predictions, from residuals.

    Attributes:
        sizes: bottleneck (`gpu`, `host`, `all`) -> quantity -> sizes of residuals, sorted.
        scope: what was calibrated; None is everything.
        spreads: quantity -> how spreads follow traits; sizes are then in units of a step's spread.
    """

    sizes: Mapping[str, Mapping[str, Sequence[float]]]
    scope: CalibrationRange | None = None
    spreads: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, residuals: Iterable[Residual], scope: CalibrationRange | None = None) -> Self:
        """Build intervals by bottleneck, from the residuals of all models left out in turn."""
        found = list(residuals)
        sizes = {POOLED: _sizes(found)}
        for bottleneck in sorted({r.bottleneck for r in found}):
            own = [r for r in found if r.bottleneck == bottleneck]
            if len(own) >= ENOUGH_RESIDUALS and len({r.group for r in own}) >= ENOUGH_MODELS:
                sizes[bottleneck] = _sizes(own)
        return cls(sizes, scope)

    @classmethod
    def exponential(
        cls, residuals: Iterable[Residual], scope: CalibrationRange | None = None
    ) -> Self:
        """Build intervals of one width, for residuals of a few groups.

        Sizes are taken as exponentially distributed, as in `spreads_of`. Their mean says more about
        the next group than the largest of a few dozen sizes, which all belong to one group.
        """
        sizes = {}
        for name, own in _sizes(list(residuals)).items():
            if own:
                mean = float(np.minimum(own, CUT * np.median(own) + 0.1).mean())
                sizes[name] = [-mean * math.log(1 - k / PARTS) for k in range(1, PARTS)]
        return cls({POOLED: sizes}, scope)

    @classmethod
    def by_traits(
        cls, residuals: Iterable[Residual], scope: CalibrationRange | None = None
    ) -> Self:
        """Build intervals by traits of steps; by bottleneck alone with too few models for that.

        The size of each residual is in units of the spread that the other models give it.
        """
        found = list(residuals)
        groups = {r.group for r in found}
        if len(groups) < ENOUGH_MODELS or len(found) < ENOUGH_RESIDUALS:
            return cls.of(found, scope)
        sizes: dict[str, list[float]] = {}
        spreads = {}
        for quantity in QUANTITIES:
            known = [(r, abs(v)) for r in found if (v := r.value(quantity)) is not None]
            sizes[quantity] = sorted(_scores(known))
            if known:
                spreads[quantity] = spreads_of([r.traits for r, _ in known], [v for _, v in known])
        return cls({POOLED: sizes}, scope, spreads)

    def around(
        self,
        prediction: Prediction,
        workload: Workload,
        placement: Placement,
        confidence: float = CONFIDENCE,
        hosts: HostSpread | None = None,
    ) -> Prediction:
        """Return `prediction` with intervals, and with the reasons why they are wide.

        `hosts` are those among which the placement's host is unknown; None where it is told.
        """
        distance = self.scope.distance(workload, placement) if self.scope else Distance(0.0)
        key, traits = bottleneck_of(prediction), traits_of(prediction, _limit_w(placement))
        hosted = HostedStep.of(prediction)

        def interval(quantity: str, value: float) -> Interval | None:
            half = self.half_width(quantity, key, confidence)
            if half is None:
                return None
            spread = spread_of(self.spreads[quantity], traits) if quantity in self.spreads else 1.0
            half *= float(spread) * distance.factor
            below = above = half
            if hosts is not None:
                below, above = map(float, hosts.widened(quantity, half, hosted, confidence))
            return Interval(value * math.exp(-below), value * math.exp(above), confidence)

        return replace(
            prediction,
            step_interval=interval("time", prediction.step_s),
            power_interval=_held(interval("power", prediction.power_w), prediction, placement),
            energy_interval=interval("energy", prediction.energy_j),
            warnings=(
                *prediction.warnings,
                *(f"outside the calibrated range: {reason}" for reason in distance.reasons),
            ),
        )

    def half_width(
        self, quantity: str, bottleneck: str, confidence: float = CONFIDENCE
    ) -> float | None:
        """Return the |log ratio| that is exceeded with 1 - `confidence`; None without residuals.

        In units of a step's spread, where there are spreads. With too few residuals for so high a
        confidence, twice the largest one.
        """
        if not 0 < confidence < 1:
            raise ConfigError(f"confidence {confidence} is not between 0 and 1")
        sizes = self.sizes.get(bottleneck, self.sizes.get(POOLED, {})).get(quantity, ())
        if not sizes:
            return None
        rank = math.ceil((len(sizes) + 1) * confidence)
        return sizes[rank - 1] if rank <= len(sizes) else 2 * sizes[-1]

    def to_dict(self) -> dict[str, object]:
        return {
            "residuals": {
                key: {name: [round(size, 5) for size in sizes] for name, sizes in found.items()}
                for key, found in self.sizes.items()
            },
            "spreads": {
                name: {trait: round(slope, 5) for trait, slope in found.items()}
                for name, found in self.spreads.items()
            },
            "scope": None if self.scope is None else self.scope.to_dict(),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> Self:
        """Inverse of `to_dict`; ConfigError names the invalid field."""
        try:
            found = raw["residuals"]
            if not isinstance(found, Mapping):
                raise TypeError("residuals is not a table")
            sizes = {
                str(key): {str(name): sorted(map(float, values)) for name, values in table.items()}
                for key, table in found.items()
            }
            spreads = {
                str(name): {str(trait): float(value) for trait, value in table.items()}
                for name, table in dict(raw.get("spreads") or {}).items()  # type: ignore[call-overload] # an error is caught below
            }
            if any(BASE not in table for table in spreads.values()):
                raise KeyError(BASE)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"intervals of the calibration: {error}; fit it again with `wattloop calibrate fit`"
            ) from None
        scope = raw.get("scope")
        known = CalibrationRange.from_dict(scope) if isinstance(scope, Mapping) else None
        return cls(sizes, known, spreads)


def _held(
    interval: Interval | None, prediction: Prediction, placement: Placement
) -> Interval | None:
    if interval is None:
        return None
    most_w = max(most_power_w(placement), prediction.power_w)
    return interval._replace(high=min(interval.high, most_w))


def most_power_w(placement: Placement) -> float:
    return HELD * _limit_w(placement)


def _limit_w(placement: Placement) -> float:
    return placement.cap_w or placement.gpu.tdp_w


def _sizes(residuals: Sequence[Residual]) -> dict[str, list[float]]:
    values = {name: [r.value(name) for r in residuals] for name in QUANTITIES}
    return {name: sorted(abs(v) for v in found if v is not None) for name, found in values.items()}


def _scores(known: Sequence[tuple[Residual, float]]) -> list[float]:
    """Return sizes in units of the spread that the other models give each residual."""
    scores = []
    for group in dict.fromkeys(r.group for r, _ in known):
        others = [(r.traits, size) for r, size in known if r.group != group]
        if not others:
            return [size for _, size in known]
        spreads = spreads_of([traits for traits, _ in others], [size for _, size in others])
        scores += [
            size / float(spread_of(spreads, r.traits)) for r, size in known if r.group == group
        ]
    return scores
