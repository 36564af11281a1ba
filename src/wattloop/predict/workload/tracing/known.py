"""What is known of the data of some tensors: it came from no input, or was chosen evenly.

Models read random numbers (is this layer dropped?), lengths of packed sequences, and which rows
an expert was chosen for. Fake tensors have no values, but these have an expected one.
"""

import operator
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch

__all__ = ["Known", "carry", "know", "known", "picked"]


@dataclass(frozen=True, slots=True)
class Known:
    """Of the elements of a tensor.

    Attributes:
        value: of each, or of each that is not zero; None if it is an index that was chosen.
        share: of elements that are not zero.
        choices: how many an index was chosen from, 0 where it was not.
    """

    value: float | None
    share: float = 1.0
    choices: int = 0


def know(tensor: Any, fact: Known) -> None:
    """Remember a fact for as long as the tensor lives."""
    tensor.wattloop_known = fact


def known(tensor: Any) -> Known | None:
    """What is known of a tensor."""
    return getattr(tensor, "wattloop_known", None)


def picked(mask: Any) -> int:
    """How many elements of a mask are set: all, unless it tells what was chosen."""
    fact = known(mask)
    return int(mask.numel() if fact is None else min(mask.numel(), ceil(_set(mask, fact))))


def carry(name: str, args: Any, result: Any) -> None:
    """What is known of the result of an operation from what is known of its arguments."""
    follow = _FOLLOWED.get(name)
    if follow is not None:
        follow(args, result)


def _same(args: Any, result: Any) -> None:
    fact = known(args[0])
    if fact is not None:
        for each in result if isinstance(result, (list, tuple)) else (result,):
            know(each, fact)


def _uniform(args: Any, result: Any) -> None:
    know(result, Known(0.5))


def _broken(args: Any, result: Any) -> None:
    """Training that is worth a prediction has no infinite numbers."""
    know(result, Known(0))


def _chosen(args: Any, result: Any) -> None:
    """The place of the largest of some numbers: as likely one as another."""
    indices = result[1] if isinstance(result, (list, tuple)) else result
    source = args[0]
    axis = next((each for each in args[1:] if each is not None), None)
    if axis is not None and source.dim():
        know(indices, Known(None, choices=int(source.shape[axis])))


def _largest(args: Any, result: Any) -> None:
    """`topk(x, k, dim=-1)`: the number of them comes before the axis."""
    _chosen((args[0], args[2] if len(args) > 2 else -1), result)


def _compared(how: Any) -> Any:
    def follow(args: Any, result: Any) -> None:
        fact, other = known(args[0]), args[1]
        if other is args[0]:  # torch's way to ask for what is not a number
            know(result, Known(int(how(0, 0))))
        if fact is None:
            return
        if fact.choices and how is operator.eq:
            know(result, Known(1, 1 / fact.choices))
        elif fact.value is not None and fact.share == 1 and isinstance(other, (int, float)):
            know(result, Known(int(how(fact.value, other))))

    return follow


def _marked(args: Any, result: Any) -> None:
    """One of each row set, at the index that was chosen."""
    target, _, index = args[:3]
    fact = known(index)
    if fact is not None and fact.choices and target.dtype == torch.int64:
        know(result, Known(1, index.numel() / max(target.numel(), 1)))


def _any(args: Any, result: Any) -> None:
    fact = known(args[0])
    if fact is not None and fact.value is not None:
        each = args[0].numel() // max(result.numel(), 1)
        know(result, Known(int(fact.value != 0), min(1.0, fact.share * each)))


def _total(args: Any, result: Any) -> None:
    fact = known(args[0])
    if fact is not None and fact.value is not None:
        know(result, Known(fact.value * _set(args[0], fact) / max(result.numel(), 1)))


def _set(tensor: Any, fact: Known) -> float:
    return float(tensor.numel() * fact.share) if fact.value else 0.0


_UNCHANGED = """
alias detach clone _to_copy view _unsafe_view reshape select slice squeeze unsqueeze permute
transpose t expand unbind split amax amin
"""
_FOLLOWED = {
    **{f"aten.{name}": _same for name in _UNCHANGED.split()},
    "aten.rand": _uniform,
    "aten.rand_like": _uniform,
    "aten.isnan": _broken,
    "aten.isinf": _broken,
    "aten.topk": _largest,
    "aten.argmax": _chosen,
    "aten.max": lambda args, result: (_chosen if len(args) > 1 else _same)(args, result),
    "aten.scatter": _marked,
    "aten.scatter_": _marked,
    "aten.any": _any,
    "aten.sum": _total,
    **{
        f"aten.{how.__name__}": _compared(how)
        for how in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
    },
}
