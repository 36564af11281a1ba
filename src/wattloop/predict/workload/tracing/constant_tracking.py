"""Tracking of values and shapes that depend on data, which fake tensors do not have."""

import operator
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch

from wattloop.core.errors import ConfigError

# Models read random numbers (is this layer dropped?), lengths of packed sequences, and the rows of
# an expert. Fake tensors have no values, but these have an expected one.


@dataclass(frozen=True, slots=True)
class Known:
    """Known values of the elements of a tensor.

    Attributes:
        value: of each, or of each that is not zero; None if it is an index that was chosen.
        share: of elements that are not zero.
        choices: how many an index was chosen from, 0 where it was not.
    """

    value: float | None
    share: float = 1.0
    choices: int = 0


def know(tensor: Any, fact: Known) -> None:
    tensor.wattloop_known = fact


def known(tensor: Any) -> Known | None:
    return getattr(tensor, "wattloop_known", None)


def picked(mask: Any) -> int:
    """Return how many elements of a mask are set: all, unless it marks a choice."""
    fact = known(mask)
    return int(mask.numel() if fact is None else min(mask.numel(), ceil(_set(mask, fact))))


def carry(name: str, args: Any, result: Any) -> None:
    """Derive the facts of a result from those of its arguments."""
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
    """Return that a tensor has no infinite numbers."""
    know(result, Known(0))


def _chosen(args: Any, result: Any) -> None:
    """Return the index of the largest number as an even choice."""
    indices = result[1] if isinstance(result, (list, tuple)) else result
    source = args[0]
    axis = next((each for each in args[1:] if each is not None), None)
    if axis is not None and source.dim():
        know(indices, Known(None, choices=int(source.shape[axis])))


def _largest(args: Any, result: Any) -> None:
    """Return the indices of `topk(x, k, dim=-1)`: k comes before the axis."""
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
    """Return one set element per row, at the chosen index."""
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
MOST_READS = 2_000
"""Limit of reads: a loop that waits for a number would never end."""


class Guesses:
    """Defaults for values that depend on data, recorded in `notes`.

    Attributes:
        value: what a number read from a tensor is taken to be, 0 or 1.
        guessed: whether any number was read.
        reads: how many were.
        notes: one for each operation and module.
        outside: whether the operation belongs to no module; set by the recorder.
        is_user_step: whether code outside of modules is the user's, which may print any number.
    """

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.guessed = False
        self.reads = 0
        self.notes: dict[str, None] = {}
        self.outside = False
        self.is_user_step = False

    def run(self, name: str, path: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation, with a default where it depends on data."""
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, name, path, func, args, kwargs)
        try:
            result = func(*args, **kwargs)
            carry(name, args, result)
            return result
        except _DATA_DEPENDENT as problem:
            raise ConfigError(
                f"operation '{name}' in {_where(path)} depends on data, which a trace does not "
                "have, and it has no default: register a cost rule for the module with "
                "predict.register_rule, or trace a part of the model"
            ) from problem

    def note(self, text: str) -> None:
        self.notes.setdefault(text)


def _item(self: Guesses, name: str, path: str, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    constant = getattr(tensor, "constant", None)
    if constant is not None or type(tensor) is torch.Tensor:
        return func(*args, **kwargs)
    if self.is_user_step and self.outside:
        return _as_read(tensor, self.value)
    self.reads += 1
    if self.reads > MOST_READS:
        raise ConfigError(
            f"{_where(path)} reads numbers from tensors over and over: a loop that ends by data "
            "cannot be traced; register a cost rule for the module with predict.register_rule, or "
            "trace a part of the model"
        )
    fact = known(tensor)
    value: float = self.value
    if fact is not None and fact.value is not None:
        value = fact.value
    else:
        self.guessed = True
    self.note(f"a number read from a tensor in {_where(path)} is taken to be {value:g}")
    return _as_read(tensor, value)


def _as_read(tensor: Any, value: float) -> Any:
    if tensor.dtype == torch.bool:
        return bool(value)
    return float(value) if tensor.dtype.is_floating_point else round(value)


def _equal(self: Guesses, name: str, path: str, func: Any, args: Any, kwargs: Any) -> Any:
    same = args[0].shape == args[1].shape
    if not (self.is_user_step and self.outside):
        self.note(f"tensors compared in {_where(path)} are taken to be {'' if same else 'un'}equal")
    return same


def _nonzero(self: Guesses, name: str, path: str, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    found = picked(tensor)
    self.note(f"{name} in {_where(path)} is taken to find {_of(found, tensor)} elements")
    return torch.empty(found, tensor.dim(), dtype=torch.int64)


def _masked_select(self: Guesses, name: str, path: str, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, mask = args[:2]
    elements = torch.broadcast_shapes(tensor.shape, mask.shape).numel()
    self.note(f"{name} in {_where(path)} is taken to select all {elements} elements")
    return tensor.new_empty(elements)


def _unique(self: Guesses, name: str, path: str, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    self.note(f"{name} in {_where(path)} is taken to find {tensor.numel()} different elements")
    found = torch.empty(tensor.numel(), dtype=tensor.dtype)
    inverse = torch.empty(tensor.shape, dtype=torch.int64)
    return found, inverse, torch.empty(tensor.numel(), dtype=torch.int64)


def _index(self: Guesses, name: str, path: str, func: Any, args: Any, kwargs: Any) -> Any:
    """Convert a mask index, which selects everything, to as many integers."""
    indices = args[1]
    if not any(_is_mask(each) for each in indices):
        return func(*args, **kwargs)
    whole: list[Any] = []
    for each in indices:
        if _is_mask(each):
            found = picked(each)
            what = _of(found, each)
            self.note(f"a mask as index in {_where(path)} is taken to pick {what} elements")
            whole += [torch.empty(found, dtype=torch.int64) for _ in each.shape]
        else:
            whole.append(each)
    return func(args[0], whole, *args[2:], **kwargs)


def _ctc_loss(self: Guesses, name: str, path: str, func: Any, args: Any, kwargs: Any) -> Any:
    """Assume that every target has the maximum length."""
    scores, targets, lengths = args[:3]
    steps, batch = (scores.shape[0], scores.shape[1]) if scores.dim() == 3 else (*scores.shape, 1)
    count = len(lengths) if isinstance(lengths, (list, tuple)) else batch
    longest = targets.shape[-1] if targets.dim() == 2 else -(-targets.shape[0] // max(count, 1))
    self.note(f"targets of {name} in {_where(path)} are taken to be {longest} long")
    return scores.new_empty(batch), scores.new_empty(batch, steps, 2 * longest + 1)


def _grouped_mm(self: Guesses, name: str, path: str, func: Any, args: Any, kwargs: Any) -> Any:
    """Compute products by group: torch has their shapes for bf16 only."""
    first, second = args[:2]
    offsets = args[2] if len(args) > 2 else kwargs.get("offs")
    if first.dim() == 2 and second.dim() == 2:
        shape: tuple[int, ...] = (offsets.numel(), first.shape[0], second.shape[1])
    elif first.dim() == 2:
        shape = (first.shape[0], second.shape[-1])
    elif second.dim() == 2:
        shape = (first.shape[1], second.shape[1])
    else:
        shape = (*first.shape[:2], second.shape[-1])
    self.note(f"rows in {_where(path)} are taken to be spread evenly over {name}'s groups")
    return first.new_empty(shape, dtype=kwargs.get("out_dtype") or first.dtype)


def _of(found: int, tensor: Any) -> str:
    return f"all {found}" if found == tensor.numel() else f"{found} of {tensor.numel()}"


def _is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8)


def _where(path: str) -> str:
    return f"module '{path}'" if path else "the model"


def _exceptions() -> tuple[type[BaseException], ...]:
    from torch._subclasses import fake_tensor

    return (
        fake_tensor.DataDependentOutputException,
        fake_tensor.DynamicOutputShapeException,
    )


_DATA_DEPENDENT = _exceptions()
_SPECIAL = {
    "aten._local_scalar_dense": _item,
    "aten.equal": _equal,
    "aten._grouped_mm": _grouped_mm,
    "aten._ctc_loss": _ctc_loss,
    "aten.nonzero": _nonzero,
    "aten.masked_select": _masked_select,
    "aten._unique2": _unique,
    "aten.index": _index,
    "aten.index_put": _index,
    "aten.index_put_": _index,
    "aten._index_put_impl_": _index,
    "aten._unsafe_index": _index,
}
