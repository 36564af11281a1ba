"""A workload by module, kind or phase: what each part does, and how long it takes on a GPU."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from wattloop.predict.models.model import Model
from wattloop.predict.placement import Placement
from wattloop.predict.workload.operation import Kind, Operation, Phase
from wattloop.predict.workload.workload import Workload

__all__ = ["Part", "by_kind", "by_module", "by_phase", "operation_times_s", "unruled_share"]

Times = Mapping[int, float]
"""Position of an operation in its workload -> GPU seconds of all its calls in a step."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of a step does.

    Attributes:
        calls: operator calls.
        flops: floating-point operations.
        bytes_moved: read and written.
        forward_bytes: what its forward operations write, most of which is kept for backward.
        gpu_s: time on the GPU; None when the model does not say it by operation.
    """

    calls: int
    flops: float
    bytes_moved: float
    forward_bytes: float
    gpu_s: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def operation_times_s(estimator: Model, workload: Workload, placement: Placement) -> Times | None:
    """Times of the operations, where the estimator knows them one by one."""
    timed = getattr(estimator, "timed_operations", None)
    if timed is None:
        return None
    known = {id(op): seconds for op, seconds in timed(workload, placement.gpu)}
    return {i: known[id(op)] for i, op in enumerate(workload.operations) if id(op) in known}


def by_module(workload: Workload, times: Times | None, depth: int = 2) -> dict[str, Part]:
    """Parts by the first `depth` names of the module's path, those that take longest first."""

    def key(op: Operation) -> str:
        if op.phase is Phase.OPTIMIZER:
            return "(optimizer)"
        return ".".join(op.module.split(".")[:depth]) or "(outside of modules)"

    return _sorted(_parts(workload, times, key))


def by_kind(workload: Workload, times: Times | None) -> dict[str, Part]:
    """Parts by kind of operation, those that take longest first."""
    return _sorted(_parts(workload, times, lambda op: op.kind.value))


def by_phase(workload: Workload, times: Times | None) -> dict[str, Part]:
    """Forward, backward and optimizer, in that order."""
    parts = _parts(workload, times, lambda op: op.phase.value)
    return {phase.value: parts[phase.value] for phase in Phase if phase.value in parts}


def unruled_share(workload: Workload) -> float:
    """Share of the bytes that operations without a cost rule move."""
    moved = [(op.bytes_moved * op.count, op.ruled) for op in workload.operations]
    total = sum(size for size, _ in moved)
    return sum(size for size, ruled in moved if not ruled) / total if total else 0.0


def _parts(
    workload: Workload, times: Times | None, key: Callable[[Operation], str]
) -> dict[str, Part]:
    groups: dict[str, list[int]] = {}
    for position, op in enumerate(workload.operations):
        groups.setdefault(key(op), []).append(position)
    return {name: _part(workload, times, positions) for name, positions in groups.items()}


def _part(workload: Workload, times: Times | None, positions: Iterable[int]) -> Part:
    calls, flops, moved, kept, seconds = 0, 0.0, 0.0, 0.0, 0.0
    for position in positions:
        op = workload.operations[position]
        repeats = op.count * (1 if op.phase is Phase.OPTIMIZER else workload.accumulate)
        calls += op.calls * repeats
        if op.kind is not Kind.VIEW:  # which moves nothing
            flops += op.flops * repeats
            moved += op.bytes_moved * repeats
            if op.phase is Phase.FORWARD:
                kept += op.bytes_written * op.count
        if times is not None:
            seconds += times.get(position, 0.0)
    return Part(calls, flops, moved, kept, None if times is None else seconds)


def _sorted(parts: Mapping[str, Part]) -> dict[str, Part]:
    def size(part: Part) -> tuple[float, float]:
        return (part.gpu_s or 0.0, part.bytes_moved)

    return dict(sorted(parts.items(), key=lambda item: size(item[1]), reverse=True))
