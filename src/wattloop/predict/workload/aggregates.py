"""Totals of a workload, as defined in the thesis (4.3.4)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from math import prod

from wattloop.predict.workload.operation import MATRIX_KINDS, Kind, Operation, Phase
from wattloop.predict.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class WorkTotals:
    """Totals of one phase in one pass (the optimizer: in one step).

    Attributes:
        gemm_flops: F_GEMM-TC, of matrix products, attention and recurrent layers.
        conv_flops: F_Conv-TC.
        alu_flops: F_ALU, of everything else.
        bytes_read, bytes_written: V_r and V_w.
        kernels: N_k.
        calls: operator calls of the host.
        elements: processed by operations other than products and convolutions.
    """

    gemm_flops: float = 0.0
    conv_flops: float = 0.0
    alu_flops: float = 0.0
    bytes_read: float = 0.0
    bytes_written: float = 0.0
    kernels: float = 0.0
    calls: float = 0.0
    elements: float = 0.0

    @property
    def flops(self) -> float:
        return self.gemm_flops + self.conv_flops + self.alu_flops

    def __add__(self, more: "WorkTotals") -> "WorkTotals":
        return WorkTotals(*(getattr(self, f.name) + getattr(more, f.name) for f in fields(self)))

    def __mul__(self, times: float) -> "WorkTotals":
        return WorkTotals(*(getattr(self, f.name) * times for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Aggregates:
    """Totals of a whole step.

    Attributes:
        phases: phase -> its totals, of one pass and of the optimizer.
        step: all passes and the optimizer.
        gemm_dims: FLOP-weighted mean of B, M, N, K over matrix products (equation 4.6); None
            without any.
        conv_dims: the same over convolutions: groups, N*H*W, C_out, C_in*k_h*k_w, a group's.
        conv_sizes: the same of batch, c_in, c_out, pixels out and kernel of a convolution.
        unruled_share: part of the bytes of a step moved by operations that have no cost rule.
        unruled: their names, the largest mover first.
    """

    phases: Mapping[Phase, WorkTotals]
    step: WorkTotals
    gemm_dims: tuple[float, ...] | None
    conv_dims: tuple[float, ...] | None
    conv_sizes: Mapping[str, float] | None
    unruled_share: float
    unruled: tuple[str, ...]


def aggregates(workload: Workload) -> Aggregates:
    phases = {phase: _totals(_of_phase(workload, phase)) for phase in Phase}
    one_pass = phases[Phase.FORWARD] + phases[Phase.BACKWARD]
    step = one_pass * workload.accumulate + phases[Phase.OPTIMIZER]
    products = [op for op in workload.operations if op.kind is Kind.GEMM]
    convolutions = [op for op in workload.operations if op.kind is Kind.CONV]
    share, unruled = _unruled(workload)
    return Aggregates(
        phases=phases,
        step=step,
        gemm_dims=_mean_dims(products),
        conv_dims=_mean_dims(convolutions),
        conv_sizes=_mean_sizes(convolutions),
        unruled_share=share,
        unruled=unruled,
    )


def _of_phase(workload: Workload, phase: Phase) -> Iterable[Operation]:
    return (op for op in workload.operations if op.phase is phase)


def _totals(operations: Iterable[Operation]) -> WorkTotals:
    total = WorkTotals()
    for op in operations:
        flops = op.flops * op.count
        matrix = op.kind in MATRIX_KINDS
        total += WorkTotals(
            gemm_flops=flops if matrix and op.kind is not Kind.CONV else 0.0,
            conv_flops=flops if op.kind is Kind.CONV else 0.0,
            alu_flops=0.0 if matrix else flops,
            bytes_read=op.bytes_read * op.count,
            bytes_written=op.bytes_written * op.count,
            kernels=op.kernels * op.count,
            calls=op.calls * op.count,
            elements=0.0 if matrix else _elements(op) * op.count,
        )
    return total


def _elements(op: Operation) -> float:
    if "elements" in op.detail:
        return float(str(op.detail["elements"]))
    if "rows" in op.detail and "columns" in op.detail:
        return float(str(op.detail["rows"])) * float(str(op.detail["columns"]))
    return float(max((prod(shape) for shape in (*op.inputs, *op.outputs)), default=0))


def _mean_dims(operations: list[Operation]) -> tuple[float, ...] | None:
    """Return equation 4.6: sum of F_i D_i over sum of F_i."""
    known = [(op.flops * op.count, op.dims) for op in operations if op.dims is not None]
    whole = sum(flops for flops, _ in known)
    if not whole:
        return None
    return tuple(sum(flops * dims[axis] for flops, dims in known) / whole for axis in range(4))


def _mean_sizes(operations: list[Operation]) -> dict[str, float] | None:
    whole = sum(op.flops * op.count for op in operations)
    if not whole:
        return None
    sums = dict.fromkeys(("batch", "c_in", "c_out", "pixels_out", "kernel"), 0.0)
    for op in operations:
        detail = {key: float(str(op.detail[key])) for key in ("n", "c_in", "c_out", "k_h", "k_w")}
        weight = op.flops * op.count / whole
        sums["batch"] += weight * detail["n"]
        sums["c_in"] += weight * detail["c_in"]
        sums["c_out"] += weight * detail["c_out"]
        sums["pixels_out"] += weight * (op.dims[1] if op.dims else 0) / max(detail["n"], 1)
        sums["kernel"] += weight * detail["k_h"] * detail["k_w"]
    return sums


def _unruled(workload: Workload) -> tuple[float, tuple[str, ...]]:
    whole = 0.0
    movers: dict[str, float] = {}
    for op in workload.operations:
        passes = 1 if op.phase is Phase.OPTIMIZER else workload.accumulate
        moved = op.bytes_moved * op.count * passes
        whole += moved
        if not op.ruled:
            movers[op.op] = movers.get(op.op, 0.0) + moved
    share = sum(movers.values()) / whole if whole else 0.0
    return share, tuple(sorted(movers, key=lambda name: -movers[name]))
