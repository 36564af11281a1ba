"""Workload: the operations of one training step and its totals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from wattloop.predict.workload.costs.stream import elementwise
from wattloop.predict.workload.operation import Operation, Phase


@dataclass(frozen=True, slots=True)
class Workload:
    """One optimizer step of a model on one GPU (or one forward pass, when not training).

    Attributes:
        name: what the model is called, such as `hf:gpt2`.
        operations: of one pass (one micro-batch) and of the optimizer.
        precision: `fp32`, `tf32`, `bf16` or `fp16` (the last two: autocast).
        optimizer: name, such as `adamw`; empty for inference.
        optimizer_style: `loop`, `foreach` or `fused`; empty for inference.
        batch: samples of one pass on one GPU.
        accumulate: passes per optimizer step.
        training: False for forward only.
        parameters: number of trained parameters.
        parameter_bytes, gradient_bytes, optimizer_bytes: kept on the GPU over steps.
        activation_bytes: kept from forward for backward, at their most.
        peak_bytes: most memory in use at once, allocator's rounding apart.
        input_bytes: of one pass's inputs, which a data loader has to bring.
        compile_mode: `default` or `reduce-overhead` under `torch.compile`; empty for an eager step.
        modules: calls of modules in one forward pass, which cost the host time.
        notes: what the tracer assumed (a branch taken, a default), for people.
        origin: what determined this workload: versions, configuration, shapes.
    """

    name: str
    operations: tuple[Operation, ...]
    precision: str = "fp32"
    optimizer: str = ""
    optimizer_style: str = ""
    batch: int = 1
    accumulate: int = 1
    training: bool = True
    parameters: int = 0
    parameter_bytes: float = 0.0
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    activation_bytes: float = 0.0
    peak_bytes: float = 0.0
    input_bytes: float = 0.0
    compile_mode: str = ""
    modules: int = 0
    notes: tuple[str, ...] = ()
    origin: Mapping[str, object] = field(default_factory=dict)

    def accumulating(self, passes: int) -> "Workload":
        """Return the same step with so many passes before the optimizer.

        Sums of gradients are adjusted where the tracer left the sizes of parameters in `origin`;
        memory stays that of the step that was traced.
        """
        sizes = self.origin.get("gradient_sizes")
        operations = without_accumulation(self.operations)
        if isinstance(sizes, Mapping) and self.training:
            operations += accumulation(sizes, passes)
        return replace(self, operations=operations, accumulate=passes)

    @property
    def unruled_share(self) -> float:
        """Return the share of the bytes that operations without a cost rule move."""
        total = sum(op.bytes_moved * op.count for op in self.operations)
        unruled = sum(op.bytes_moved * op.count for op in self.operations if not op.ruled)
        return unruled / total if total else 0.0

    @property
    def samples(self) -> int:
        return self.batch * self.accumulate


ACCUMULATE = "aten.accumulate_grad_"
"""Name of the operation by which each pass after the first adds its gradients."""


def accumulation(
    sizes: Mapping[str, Sequence[Sequence[int]]], passes: int
) -> tuple[Operation, ...]:
    """Return the additions of a whole step, from the sizes of parameters per dtype and their
    counts.

    They belong to the backward passes but the first; written with what is done once per step,
    they come out right whatever the number of passes.
    """
    if passes < 2:
        return ()
    return tuple(
        elementwise(
            elements,
            2,
            1,
            dtype,
            op=ACCUMULATE,
            phase=Phase.OPTIMIZER,
            count=parameters * (passes - 1),
        )
        for dtype, counts in sizes.items()
        for elements, parameters in counts
    )


def without_accumulation(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    return tuple(each for each in operations if each.op != ACCUMULATE)
