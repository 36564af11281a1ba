"""Range of workloads that a calibration covers, and the distance of a workload from it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from wattloop.core.errors import ConfigError
from wattloop.predict.prediction import Placement
from wattloop.predict.workload.operation import Kind, Operation
from wattloop.predict.workload.workload import Workload

PER_DOUBLING = 0.25


PER_UNRULED = 4.0


PER_UNKNOWN_CLASS = 4.0


OTHER_GPU = 2.0


NEGLIGIBLE = 0.01
"""Smaller shares are not reported."""


_PRODUCTS = frozenset({Kind.GEMM, Kind.CONV, Kind.ATTENTION, Kind.RNN})


@dataclass(frozen=True, slots=True)
class Distance:
    """Distance outside the range, with `reasons`, empty inside."""

    value: float
    reasons: tuple[str, ...] = ()

    @property
    def factor(self) -> float:
        """Return the factor of the intervals."""
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
            max(_unruled(step) for step in steps),
            frozenset(class_of(op) for op in operations if op.kind is not Kind.VIEW),
        )

    def distance(self, workload: Workload, placement: Placement) -> Distance:
        """Return the distance of `workload` on `placement` from the range."""
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
        unruled = max(_unruled(workload) - self.unruled, 0.0)
        value += PER_UNRULED * unruled
        if unruled > NEGLIGIBLE:
            reasons.append(f"{_unruled(workload):.0%} of the bytes are in operations without rules")
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
    return f"{name} {op.dtype}" if op.kind in _PRODUCTS else name


def _flops_per_byte(workload: Workload) -> float:
    flops = sum(op.flops * op.count for op in workload.operations)
    moved = sum(op.bytes_moved * op.count for op in workload.operations)
    return max(flops, 1.0) / max(moved, 1.0)


def _unruled(workload: Workload) -> float:
    moved = sum(op.bytes_moved * op.count for op in workload.operations)
    missing = sum(op.bytes_moved * op.count for op in workload.operations if not op.ruled)
    return missing / moved if moved else 0.0


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
