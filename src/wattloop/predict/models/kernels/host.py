"""Time the host needs to dispatch a step.

host = calls x cost by phase + kernels x launch + tensors of lists + module calls + a step
"""

from collections.abc import Sequence
from dataclasses import dataclass

from wattloop.predict.models.kernels.values import Values
from wattloop.predict.workload.operation import Kind, Operation, Phase
from wattloop.predict.workload.workload import Workload

__all__ = ["HostCounts", "host_counts", "host_seconds"]


@dataclass(frozen=True, slots=True)
class HostCounts:
    """What the host has to do: for one pass, and once per step (optimizer)."""

    forward_calls: float
    backward_calls: float
    optimizer_calls: float
    pass_kernels: float
    optimizer_kernels: float
    tensors: float
    modules: float


def host_counts(workload: Workload) -> HostCounts:
    """Calls, launches and module calls of `workload`."""
    ops = workload.operations
    return HostCounts(
        forward_calls=_calls(ops, Phase.FORWARD),
        backward_calls=_calls(ops, Phase.BACKWARD),
        optimizer_calls=_calls(ops, Phase.OPTIMIZER),
        pass_kernels=sum(op.kernels * op.count for op in ops if op.phase is not Phase.OPTIMIZER),
        optimizer_kernels=sum(op.kernels * op.count for op in ops if op.phase is Phase.OPTIMIZER),
        tensors=sum(_tensors(op) * op.count for op in ops if op.kind is Kind.FOREACH),
        modules=workload.modules,
    )


def host_seconds(counts: HostCounts, values: Values) -> tuple[float, float]:
    """Seconds of one pass, and of what is done once per step."""
    one_pass = (
        counts.forward_calls * values["host.call_s.forward"]
        + counts.backward_calls * values["host.call_s.backward"]
        + counts.pass_kernels * values["host.launch_s"]
        + counts.modules * values["host.module_s"]
    )
    once = (
        counts.optimizer_calls * values["host.call_s.optimizer"]
        + counts.optimizer_kernels * values["host.launch_s"]
        + counts.tensors * values["host.tensor_s"]
        + values["host.step_s"]
    )
    return one_pass, once


def _calls(operations: Sequence[Operation], phase: Phase) -> float:
    return float(sum(op.calls * op.count for op in operations if op.phase is phase))


def _tensors(op: Operation) -> float:
    value = op.detail.get("tensors", 1)
    return float(value) if isinstance(value, (int, float)) else 1.0
