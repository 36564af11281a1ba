"""A workload on one GPU type, reduced to a few numbers that any placement can be computed from."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.host import HostCounts, host_counts, host_seconds
from wattloop.predict.models.kernels.operations import operation_times
from wattloop.predict.models.kernels.residuals import Residuals
from wattloop.predict.models.kernels.table import Floats, OperationTable
from wattloop.predict.models.kernels.values import Values
from wattloop.predict.models.kernels.work import MEMORY, WORK, work_of
from wattloop.predict.workload.operation import Phase
from wattloop.predict.workload.workload import Workload

__all__ = ["Part", "Prepared", "StepProfile", "profile_of"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What of a workload depends on neither GPU nor constants."""

    workload: Workload
    table: OperationTable
    counts: HostCounts

    @classmethod
    def of(cls, workload: Workload) -> "Prepared":
        """Its operations as a table, and what the host has to do."""
        return cls(workload, OperationTable.of(workload.operations), host_counts(workload))


@dataclass(frozen=True, slots=True)
class Part:
    """One pass (forward and backward), or the optimizer.

    Attributes:
        compute_s, memory_s: GPU time that stretches with the clock, and that does not.
        host_s: dispatch time on the calibrated host.
        compute_j, memory_j: work of the multiprocessors at full clock, and of memory.
    """

    compute_s: float
    memory_s: float
    host_s: float
    compute_j: float
    memory_j: float

    @property
    def gpu_s(self) -> float:
        """GPU time at full clock."""
        return self.compute_s + self.memory_s


@dataclass(frozen=True, slots=True)
class StepProfile:
    """What a step costs, apart from the placement.

    Attributes:
        name: the workload's.
        passes, optimizer: the two parts; a step has `accumulate` of the first, one of the second.
        backward_s: GPU time of backward in a pass, which can hide communication.
        accumulate, batch: of the workload.
        gradient_bytes: what data-parallel training has to exchange per step.
        launch_share: part of GPU time that is only the minimum time of small kernels.
        far: distance of operations from microbenchmarks by GPU time; 0 right there, 1 out of reach.
        terms_s: GPU seconds of a step by phase and kind.
        work: FLOPs by unit, bytes and busy seconds of a step (`work.WORK`).
        counts: what the host has to do.
    """

    name: str
    passes: Part
    optimizer: Part
    backward_s: float
    accumulate: int
    batch: int
    gradient_bytes: float
    launch_share: float
    far: float
    terms_s: Mapping[str, float]
    work: Mapping[str, float]
    counts: HostCounts


def profile_of(prepared: Prepared, gpu: Gpu, values: Values, residuals: Residuals) -> StepProfile:
    """The workload on `gpu`, with the sums over its operations made."""
    workload, table, counts = prepared.workload, prepared.table, prepared.counts
    times = operation_times(table, values, residuals, gpu)
    total = times.seconds * table.count
    repeats = np.where(table.optimizer, 1.0, float(workload.accumulate))
    work = work_of(table, total, values, gpu)
    pass_host_s, once_host_s = host_seconds(counts, values)
    compute_j, memory_j = joules(work, values)
    last = table.optimizer

    def part(rows: Floats, host_s: float) -> Part:
        return Part(
            compute_s=float((total * times.compute * rows).sum()),
            memory_s=float((total * ~times.compute * rows).sum()),
            host_s=host_s,
            compute_j=float((compute_j * rows).sum()),
            memory_j=float((memory_j * rows).sum()),
        )

    busy = float((total * repeats).sum())
    floor = values["kernel.minimum_s"] * table.kernels * table.count * repeats
    return StepProfile(
        name=workload.name,
        passes=part((~last).astype(np.float64), pass_host_s),
        optimizer=part(last.astype(np.float64), once_host_s),
        backward_s=float(total[[op.phase is Phase.BACKWARD for op in table.operations]].sum()),
        accumulate=workload.accumulate,
        batch=workload.batch,
        gradient_bytes=workload.gradient_bytes,
        launch_share=float(floor.sum()) / busy if busy else 0.0,
        far=float((times.far * total * repeats).sum()) / busy if busy else 0.0,
        terms_s=_terms(table, total * repeats),
        work={
            name: float((column * repeats).sum()) for name, column in zip(WORK, work, strict=True)
        },
        counts=counts,
    )


def joules(work: Floats, values: Values) -> tuple[Floats, Floats]:
    """Dynamic energy of each row: of the multiprocessors, and of memory."""
    energies = np.array([values.look(f"power.{name}") for name in WORK])
    each = work * energies[:, None]
    is_memory = np.array([name == MEMORY for name in WORK])
    return each[~is_memory].sum(axis=0), each[is_memory].sum(axis=0)


def _terms(table: OperationTable, seconds: Floats) -> dict[str, float]:
    terms: dict[str, float] = {}
    for op, value in zip(table.operations, seconds.tolist(), strict=True):
        name = f"{op.phase}.{op.kind}"
        terms[name] = terms.get(name, 0.0) + value
    return dict(sorted(terms.items(), key=lambda item: -item[1]))
