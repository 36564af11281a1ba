"""Tensors, and tuples, lists and dicts of tensors, each with samples along its first dimension."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from wattloop.core.errors import ConfigError

__all__ = ["Tree", "leaves", "mapped", "nbytes", "sample_count"]

Tree = Any
"""A tensor, or a tuple, list or dict of trees."""


def leaves(tree: Tree) -> Iterator[Any]:
    """The tensors, in order."""
    if isinstance(tree, Mapping):
        for part in tree.values():
            yield from leaves(part)
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from leaves(part)
    else:
        yield tree


def mapped(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The same shape with `function` applied to each tensor (and its likes in `others`)."""
    if isinstance(tree, Mapping):
        return {k: mapped(function, part, *(o[k] for o in others)) for k, part in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [mapped(function, part, *(o[i] for o in others)) for i, part in enumerate(tree)]
        if hasattr(tree, "_fields"):
            return type(tree)(*parts)
        return type(tree)(parts)
    return function(tree, *others)


def sample_count(tree: Tree) -> int:
    """How many samples there are.

    Raises:
        ConfigError: no tensors, no samples, or not as many in one as in another.
    """
    counts = []
    for leaf in leaves(tree):
        if not hasattr(leaf, "shape") or not hasattr(leaf, "index_select"):
            raise ConfigError(f"batches are made of tensors, not of {type(leaf).__name__}")
        if not leaf.shape:
            raise ConfigError("a tensor without dimensions holds no samples")
        counts.append(int(leaf.shape[0]))
    if not counts or not counts[0]:
        raise ConfigError("there are no samples to make batches of")
    if len(set(counts)) > 1:
        raise ConfigError(
            f"tensors with {', '.join(str(c) for c in counts)} samples do not belong together"
        )
    return counts[0]


def nbytes(tree: Tree) -> int:
    """Memory that a copy of all samples takes."""
    return sum(int(leaf.numel()) * int(leaf.element_size()) for leaf in leaves(tree))
