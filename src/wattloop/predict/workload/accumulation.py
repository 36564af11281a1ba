"""Sums of gradients over the passes of a step."""

from collections.abc import Mapping, Sequence

from wattloop.predict.workload.costs.streams import elementwise
from wattloop.predict.workload.operation import Operation, Phase

__all__ = ["ACCUMULATE", "accumulation", "without_accumulation"]

ACCUMULATE = "aten.accumulate_grad_"
"""Name of the operation: each pass after the first adds its gradients to those there are."""


def accumulation(
    sizes: Mapping[str, Sequence[Sequence[int]]], passes: int
) -> tuple[Operation, ...]:
    """Additions of a whole step; of each dtype, elements of parameters and how many have so many.

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
    """All other operations."""
    return tuple(each for each in operations if each.op != ACCUMULATE)
