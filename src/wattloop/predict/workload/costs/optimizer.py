"""Cost of optimizer steps: the passes over parameters and states that each optimizer makes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from wattloop.core.errors import ConfigError
from wattloop.predict.workload.costs.call import OpContext, element_bytes, make_operation
from wattloop.predict.workload.costs.stream import elementwise, view
from wattloop.predict.workload.operation import Kind, Operation, Phase

# Kernels that a list operation of CUDA launches. The arguments of a kernel hold a limited number of
# tensors and blocks (a block processes a chunk of a tensor); the rest goes into the next kernel
# (ATen/native/cuda/MultiTensorApply.cuh).

_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
_BLOCKS = 320
_CHUNK = 65536


def launches(sizes: Sequence[int], lists: int) -> int:
    """Return the kernels for one operation over so many lists of tensors of these sizes (in
    elements).
    """
    most = _TENSORS[min(max(lists, 1), 5)]
    kernels = tensors = blocks = 0
    for size in sizes:
        if size == 0:
            continue
        tensors += 1
        blocks += -(-size // _CHUNK)
        if blocks >= _BLOCKS:
            # A tensor cut in the middle continues in the next kernel.
            kernels += blocks // _BLOCKS
            blocks %= _BLOCKS
            tensors = 1 if blocks else 0
        if tensors == most:
            kernels += 1
            tensors = blocks = 0
    return kernels + (1 if tensors else 0)


# As in torch.optim from the second step on, without `capturable`, `amsgrad` or `maximize`. The host
# computes bias corrections of the `loop` and `foreach` styles, tensor by tensor.

STYLES = ("loop", "foreach", "fused")
"""`loop`: an operation per parameter; `foreach`: per list of them; `fused`: one for all."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One operation over lists of tensors: its reads and writes per element."""

    op: str
    reads: int
    writes: int
    flops: int
    lists: int


@dataclass(frozen=True, slots=True)
class OptimizerRule:
    """Passes of an optimizer in a step.

    Attributes:
        passes: of the `loop` and `foreach` styles, in order.
        fused: the one pass of the `fused` style; None where torch has none.
        states: tensors kept for each parameter.
        spare: tensors as large as the parameter that `foreach` needs for a while.
        counts_steps: keeps a step counter for each parameter, on the host unless fused.
        reads_steps: how often the host reads each counter.
    """

    passes: tuple[Pass, ...]
    fused: Pass | None
    states: int
    spare: int = 0
    counts_steps: bool = True
    reads_steps: int = 0


def foreach(  # noqa: PLR0913 - most have a default
    optimizer: str,
    tensors: int,
    elements: int,
    *,
    fused: bool,
    dtype: str = "fp32",
    lists_read: int | None = None,
    lists_written: int | None = None,
    lists: int | None = None,
    flops_per_element: float = 1.0,
    sizes: Sequence[int] | None = None,
    **place: Unpack[OpContext],
) -> Operation:
    """Return one list operation over `tensors` tensors of `elements` in all.

    Fused, what it reads and writes follows from the optimizer; else say `lists_read` and
    `lists_written` (a multiplication in place reads one and writes one). `sizes` of the tensors
    make the number of kernels exact.
    """
    whole = rule_of(optimizer).fused if fused else None
    if whole is not None:
        lists_read = whole.reads if lists_read is None else lists_read
        lists_written = whole.writes if lists_written is None else lists_written
        lists = whole.lists if lists is None else lists
        flops_per_element = whole.flops
    reads = 1 if lists_read is None else lists_read
    writes = 1 if lists_written is None else lists_written
    even = sizes if sizes is not None else [elements // max(tensors, 1)] * tensors
    size = float(element_bytes(dtype))
    return make_operation(
        Kind.FOREACH,
        f"aten.{whole.op}" if whole else "aten._foreach_mul_",
        dtype,
        {"phase": Phase.OPTIMIZER, **place},
        {"tensors": tensors, "elements": elements, "optimizer": optimizer, "fused": fused},
        flops=flops_per_element * elements,
        bytes_read=size * elements * reads,
        bytes_written=size * elements * writes,
        kernels=launches(even, lists or max(reads, writes)),
    )


def optimizer_step(
    optimizer: str, sizes: Sequence[int], *, style: str = "foreach", dtype: str = "fp32"
) -> tuple[Operation, ...]:
    """Return all operations of a step over parameters of these sizes (in elements)."""
    rule = rule_of(optimizer)
    if style not in STYLES:
        raise ConfigError(f"style '{style}' is not known; use one of {', '.join(STYLES)}")
    if style == "fused" and rule.fused is None:
        raise ConfigError(f"torch has no fused {optimizer}; use style 'foreach' or 'loop'")
    if not sizes:
        return ()
    tensors, elements = len(sizes), sum(sizes)
    if style == "fused":
        update = foreach(optimizer, tensors, elements, fused=True, dtype=dtype, sizes=sizes)
        if not rule.counts_steps:
            return (update,)
        steps = foreach(
            optimizer,
            tensors,
            tensors,
            fused=False,
            sizes=[1] * tensors,
            lists=1,
            op="aten._foreach_add_",
        )
        return (steps, update)
    made = [*_host_steps(rule, tensors, style)]
    if style == "foreach":
        made += [
            foreach(
                optimizer,
                tensors,
                elements,
                fused=False,
                dtype=dtype,
                lists_read=each.reads,
                lists_written=each.writes,
                lists=each.lists,
                flops_per_element=each.flops,
                sizes=sizes,
                op=f"aten._foreach_{each.op}",
            )
            for each in rule.passes
        ]
        return tuple(made)
    alike = {size: sizes.count(size) for size in sorted(set(sizes))}
    made += [
        elementwise(
            size,
            each.reads,
            each.writes,
            dtype,
            flops_per_element=each.flops,
            op=f"aten.{each.op}",
            phase=Phase.OPTIMIZER,
            count=count,
        )
        for size, count in alike.items()
        for each in rule.passes
    ]
    return tuple(made)


def rule_of(optimizer: str) -> OptimizerRule:
    """Return the rule of an optimizer by name, or raise an error that lists the names."""
    if optimizer not in OPTIMIZERS:
        known = ", ".join(OPTIMIZERS)
        raise ConfigError(f"optimizer '{optimizer}' is not known; use one of {known}")
    return OPTIMIZERS[optimizer]


def _host_steps(rule: OptimizerRule, tensors: int, style: str) -> tuple[Operation, ...]:
    """Counters on the host: one addition and some reads for each parameter, no kernel."""
    if not rule.counts_steps:
        return ()
    reads = rule.reads_steps if style == "foreach" else min(rule.reads_steps, 1)
    made = [view(op="aten.add_", phase=Phase.OPTIMIZER, count=tensors)]
    if reads:
        made.append(
            view(op="aten._local_scalar_dense", phase=Phase.OPTIMIZER, count=reads * tensors)
        )
    return tuple(made)


_MUL = Pass("mul_", reads=1, writes=1, flops=1, lists=1)
_ADD_INTO = Pass("add_", reads=2, writes=1, flops=2, lists=2)
_DECAY_GRADIENT = Pass("add", reads=2, writes=1, flops=2, lists=3)
_ADAM = (
    Pass("lerp_", reads=2, writes=1, flops=3, lists=2),
    _MUL,
    Pass("addcmul_", reads=2, writes=1, flops=3, lists=3),
    Pass("sqrt", reads=1, writes=1, flops=1, lists=2),
    Pass("div_", reads=1, writes=1, flops=1, lists=1),
    Pass("add_", reads=1, writes=1, flops=1, lists=1),
    Pass("addcdiv_", reads=3, writes=1, flops=3, lists=3),
)
_RMSPROP = (
    _MUL,
    Pass("addcmul_", reads=2, writes=1, flops=3, lists=3),
    Pass("sqrt", reads=1, writes=1, flops=1, lists=2),
    Pass("add_", reads=1, writes=1, flops=1, lists=1),
    Pass("addcdiv_", reads=3, writes=1, flops=3, lists=3),
)


def _fused(op: str, states: int, flops: int) -> Pass:
    """Return the fused pass: parameter, gradient and states read; parameter and states written."""
    return Pass(op, reads=2 + states, writes=1 + states, flops=flops, lists=2 + states)


OPTIMIZERS = {
    "adamw": OptimizerRule((_MUL, *_ADAM), _fused("_fused_adamw_", 2, 14), 2, 1, True, 2),
    "adam": OptimizerRule(_ADAM, _fused("_fused_adam_", 2, 13), 2, 1, True, 2),
    "adam+decay": OptimizerRule(
        (_DECAY_GRADIENT, *_ADAM), _fused("_fused_adam_", 2, 15), 2, 1, True, 2
    ),
    "sgd": OptimizerRule((_ADD_INTO,), _fused("_fused_sgd_", 0, 2), 0, counts_steps=False),
    "sgd+decay": OptimizerRule(
        (_DECAY_GRADIENT, _ADD_INTO), _fused("_fused_sgd_", 0, 4), 0, 1, counts_steps=False
    ),
    "sgd+momentum": OptimizerRule(
        (_MUL, _ADD_INTO, _ADD_INTO), _fused("_fused_sgd_", 1, 5), 1, counts_steps=False
    ),
    "sgd+momentum+decay": OptimizerRule(
        (_DECAY_GRADIENT, _MUL, _ADD_INTO, _ADD_INTO),
        _fused("_fused_sgd_", 1, 7),
        1,
        1,
        counts_steps=False,
    ),
    "rmsprop": OptimizerRule(_RMSPROP, None, 1, 1),
    "rmsprop+decay": OptimizerRule((_DECAY_GRADIENT, *_RMSPROP), None, 1, 2),
}
"""Name -> rule; `+decay` where weight decay is added to the gradient, `+momentum` where kept."""
