"""Breakdown of a workload by module, kind or phase: work of each part, and its time on a GPU."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wattloop.predict.models.model import Model
from wattloop.predict.prediction import Placement
from wattloop.predict.workload.operation import Kind, Operation, Phase
from wattloop.predict.workload.workload import Workload

NUMBERED = re.compile(r"(.*?\.)(\d+)((?:\.[^.\d][^.]*)*)")
"""Path, its last number, and the rest."""
Times = Mapping[int, float]
"""Position of an operation in its workload -> GPU seconds of all its calls in a step."""


@dataclass(frozen=True, slots=True)
class WorkPart:
    """Work of one part of a step.

    Attributes:
        calls: operator calls.
        flops: floating-point operations.
        bytes_moved: read and written.
        forward_bytes: what its forward operations write, most of which is kept for backward.
        gpu_s: time on the GPU; None when the model gives none per operation.
    """

    calls: int
    flops: float
    bytes_moved: float
    forward_bytes: float
    gpu_s: float | None

    def does_like(self, other: "WorkPart") -> bool:
        ours, theirs = asdict(self), asdict(other)
        return all(ours[name] == theirs[name] for name in ours if name != "gpu_s")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def operation_times_s(estimator: Model, workload: Workload, placement: Placement) -> Times | None:
    """Return the times of the operations, where the estimator has them one by one."""
    timed = getattr(estimator, "timed_operations", None)
    if timed is None:
        return None
    known = {id(op): seconds for op, seconds in timed(workload, placement.gpu)}
    return {i: known[id(op)] for i, op in enumerate(workload.operations) if id(op) in known}


def by_module(workload: Workload, times: Times | None, depth: int = 2) -> dict[str, WorkPart]:
    """Return parts by the first `depth` names of the module's path, slowest first."""

    def key(op: Operation) -> str:
        if op.phase is Phase.OPTIMIZER:
            return "(optimizer)"
        return ".".join(op.module.split(".")[:depth]) or "(outside of modules)"

    return _sorted(_alike_together(_parts(workload, times, key)))


def by_kind(workload: Workload, times: Times | None) -> dict[str, WorkPart]:
    return _sorted(_parts(workload, times, lambda op: op.kind.value))


def by_phase(workload: Workload, times: Times | None) -> dict[str, WorkPart]:
    parts = _parts(workload, times, lambda op: op.phase.value)
    return {phase.value: parts[phase.value] for phase in Phase if phase.value in parts}


def top_operations_s(
    estimator: Model, workload: Workload, placement: Placement, most: int = 20
) -> dict[str, float]:
    """Return GPU seconds per step of the slowest operations, those of equal layers together."""
    times = operation_times_s(estimator, workload, placement) or {}
    sums: dict[str, float] = {}
    for position, seconds in times.items():
        op = workload.operations[position]
        shape = op.dims or (op.outputs[0] if op.outputs else ())
        where = re.sub(r"\.\d+(?=\.|$)", ".*", op.module)
        words = (op.phase.value, where, op.op, "x".join(map(str, shape)))
        name = " ".join(filter(None, words))
        sums[name] = sums.get(name, 0.0) + seconds
    return dict(sorted(sums.items(), key=lambda item: -item[1])[:most])


def _parts(
    workload: Workload, times: Times | None, key: Callable[[Operation], str]
) -> dict[str, WorkPart]:
    groups: dict[str, list[int]] = {}
    for position, op in enumerate(workload.operations):
        groups.setdefault(key(op), []).append(position)
    return {name: _part(workload, times, positions) for name, positions in groups.items()}


def _part(workload: Workload, times: Times | None, positions: Iterable[int]) -> WorkPart:
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
    return WorkPart(calls, flops, moved, kept, None if times is None else seconds)


def _alike_together(parts: Mapping[str, WorkPart]) -> dict[str, WorkPart]:
    """Merge `h.0.attn` and its equal neighbours into `h.0-11.attn`."""
    together: dict[str, WorkPart] = {}
    families: dict[tuple[str, str], dict[int, WorkPart]] = {}
    for name, part in parts.items():
        found = NUMBERED.fullmatch(name)
        if found is None:
            together[name] = part
        else:
            families.setdefault((found[1], found[3]), {})[int(found[2])] = part
    for (before, after), members in families.items():
        for run in _runs(members):
            ends = str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"
            together[f"{before}{ends}{after}"] = _sum([members[number] for number in run])
    return together


def _runs(members: Mapping[int, WorkPart]) -> list[list[int]]:
    """Yield ranges of consecutive numbers with the same work."""
    runs: list[list[int]] = []
    for number in sorted(members):
        follows = runs and runs[-1][-1] == number - 1
        if follows and members[number].does_like(members[runs[-1][0]]):
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _sum(parts: Sequence[WorkPart]) -> WorkPart:
    times = [part.gpu_s for part in parts if part.gpu_s is not None]
    return WorkPart(
        sum(part.calls for part in parts),
        sum(part.flops for part in parts),
        sum(part.bytes_moved for part in parts),
        sum(part.forward_bytes for part in parts),
        sum(times) if times else None,
    )


def _sorted(parts: Mapping[str, WorkPart]) -> dict[str, WorkPart]:
    def size(part: WorkPart) -> tuple[float, float]:
        return (part.gpu_s or 0.0, part.bytes_moved)

    return dict(sorted(parts.items(), key=lambda item: size(item[1]), reverse=True))
