"""Dispatch time of a step on the host.

    host = sum over phase and kind of calls x cost + further kernels x launch
         + tensors of lists x cost + module calls x cost + a fixed time of each phase

Costs are looked up by phase and kind, so that a convolution may cost more than an addition.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from wattloop.predict.models.kernels.constants import Values
from wattloop.predict.models.kernels.operation_table import is_persistent, size_of
from wattloop.predict.workload.operation import Kind, Operation, Phase
from wattloop.predict.workload.workload import Workload

_UNNAMED = {"host.module_s": Phase.FORWARD, "host.tensor_s": Phase.OPTIMIZER}
"""Phases of costs that do not name one."""


@dataclass(frozen=True, slots=True)
class HostCounts:
    """Work of the host: name of a cost -> how often, in one pass and once per step."""

    one_pass: Mapping[str, float]
    once: Mapping[str, float]

    def of_step(self, passes: int) -> dict[str, float]:
        """Return both together for a step of so many passes."""
        names = dict.fromkeys([*self.one_pass, *self.once])
        return {
            name: passes * self.one_pass.get(name, 0.0) + self.once.get(name, 0.0) for name in names
        }


def host_counts(workload: Workload) -> HostCounts:
    """Count calls, launches and module calls of `workload`."""
    one_pass: dict[str, float] = {"host.module_s": float(workload.modules)}
    once: dict[str, float] = {}
    for op in workload.operations:
        once[f"host.step_s.{op.phase}"] = 1.0
        counts = once if op.phase is Phase.OPTIMIZER else one_pass
        for name, number in of_operation(op).items():
            counts[name] = counts.get(name, 0.0) + number * op.count
    return HostCounts(one_pass, once)


def phase_of(name: str) -> Phase | None:
    """Return the phase of a cost; None where it belongs to several."""
    named = (phase for phase in Phase if phase in name.split("."))
    return _UNNAMED.get(name) or next(named, None)


def host_seconds(counts: HostCounts, values: Values) -> tuple[float, float]:
    """Return the seconds of one pass, and of the work once per step."""
    return _priced(counts.one_pass, values), _priced(counts.once, values)


def _priced(counts: Mapping[str, float], values: Values) -> float:
    """Sum at the most specific cost: `host.call_s.forward.conv`, else `host.call_s.forward`."""
    return sum(number * values.look(name) for name, number in counts.items())


def of_operation(op: Operation) -> dict[str, float]:
    """Return the costs of one call of an operation, by name."""
    counts: dict[str, float] = {}
    if op.calls:
        counts[f"host.call_s.{op.phase}.{op.kind}"] = float(op.calls)
    further = op.kernels - max(op.calls, 1)
    if further > 0 and not is_persistent(op):
        kind = "rnn" if op.kind is Kind.RNN else "kernel"
        counts[f"host.launch_s.{kind}.{op.phase}"] = float(further)
    if op.kind is Kind.FOREACH:
        counts["host.tensor_s"] = size_of(op.detail, "tensors")
    return counts
