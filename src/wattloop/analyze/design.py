"""The design of a regression over levels: sum coding, so that every level has its row.

A parameter with L levels gets L - 1 columns; the coefficient of level j is its distance from the
mean over the levels of that parameter, and that of the last level is minus the sum of the others.
One-hot columns of all levels of two or more parameters are not identifiable together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattloop.analyze.fit_quality import TOLERANCE
from wattloop.analyze.table import Floats, Table
from wattloop.core.errors import ConfigError

__all__ = ["Design", "Term", "design_of"]

MANY_LEVELS = 12
"""A numeric parameter with more different values than this is a number, not a set of levels."""


@dataclass(frozen=True, slots=True)
class Term:
    """A row of the coefficient table: which mixture of columns it is."""

    name: str
    parameter: str
    level: str | None
    rows: int
    contrast: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Columns, what they belong to, and what cannot be told apart.

    Attributes:
        matrix: a row per run; the first column is the intercept.
        owners: the parameter of each column; empty for the intercept.
        terms: one per level or number.
        numeric: parameters that are kept as numbers.
        constant: parameters with one level, which explain nothing.
        rank: of the matrix.
        aliased: groups of parameters that determine each other.
    """

    matrix: Floats
    owners: tuple[str, ...]
    terms: tuple[Term, ...]
    numeric: tuple[str, ...]
    constant: tuple[str, ...]
    rank: int
    aliased: tuple[tuple[str, ...], ...]
    null: Floats = field(repr=False)

    def estimable(self, contrast: Floats) -> bool:
        """Whether the data determine it: nothing in the null space may change it."""
        if not self.null.size:
            return True
        # per unit of a parameter in the millions, a contrast is as small as rounding
        size = np.linalg.norm(contrast)
        return bool(np.abs(self.null @ contrast).max() < 1e-6 * size)

    def without(self, parameter: str) -> Floats:
        """The matrix with one parameter left out."""
        return self.matrix[:, [owner != parameter for owner in self.owners]]


def design_of(table: Table, parameters: Sequence[str], numeric: Sequence[str] = ()) -> Design:
    """Columns for these parameters; those in `numeric`, or with very many values, as numbers.

    Raises:
        ConfigError: a parameter is asked to be a number and is none, or all have one level.
    """
    blocks: list[Floats] = [np.ones((len(table), 1))]
    owners = [""]
    described: list[tuple[str, str, str | None, int, NDArray[np.float64]]] = []
    as_numbers, constant = [], []
    for name in parameters:
        levels = table.levels(name)
        if len(levels) < 2:
            constant.append(name)
            continue
        if name in numeric or (len(levels) > MANY_LEVELS and table.is_numeric(name)):
            values = table.numbers(name)
            # centred and scaled, or a learning rate next to a year looks like a dependency
            blocks.append((values[:, None] - values.mean()) / values.std())
            described.append((name, name, None, len(table), np.full(1, 1 / values.std())))
            as_numbers.append(name)
        else:
            block, counts = _sum_coded(table, name, levels)
            blocks.append(block)
            for number, level in enumerate(levels):
                own = np.zeros(len(levels) - 1)
                own[:] = -1.0 if number == len(levels) - 1 else 0.0
                if number < len(levels) - 1:
                    own[number] = 1.0
                described.append((f"{name}_{level}", name, level, counts[number], own))
        owners += [name] * blocks[-1].shape[1]
    if len(blocks) == 1:
        raise ConfigError(f"{table.name}: no parameter has two levels; there is nothing to compare")
    matrix = np.hstack(blocks)
    rank, null = _rank_and_null(matrix)
    starts = {name: owners.index(name) for name in dict.fromkeys(owners)}
    terms = []
    for label, parameter, own_level, rows, own in described:
        contrast = np.zeros(len(owners))
        contrast[starts[parameter] : starts[parameter] + len(own)] = own
        terms.append(Term(label, parameter, own_level, rows, contrast))
    return Design(
        matrix=matrix,
        owners=tuple(owners),
        terms=tuple(terms),
        numeric=tuple(as_numbers),
        constant=tuple(constant),
        rank=rank,
        aliased=_groups(null, owners),
        null=null,
    )


def _sum_coded(table: Table, name: str, levels: Sequence[str]) -> tuple[Floats, list[int]]:
    place = {level: number for number, level in enumerate(levels)}
    codes = np.array([place[label] for label in table.labels(name) if label is not None])
    last = len(levels) - 1
    block = (codes[:, None] == np.arange(last)).astype(np.float64)
    block[codes == last] = -1.0
    return block, [int(count) for count in np.bincount(codes, minlength=len(levels))]


def _rank_and_null(matrix: Floats) -> tuple[int, Floats]:
    """Rank, and a basis of what the columns cannot tell apart, a row each."""
    values, vectors = np.linalg.eigh(matrix.T @ matrix / len(matrix))
    zero = values < TOLERANCE * values[-1]
    return int((~zero).sum()), _reduced(vectors[:, zero].T)


def _reduced(basis: Floats) -> Floats:
    """The same space with as few entries in each row as elimination gives."""
    rows = basis.copy()
    done = 0
    for column in range(rows.shape[1]):
        if done == len(rows):
            break
        best = done + int(np.argmax(np.abs(rows[done:, column])))
        if abs(rows[best, column]) < 1e-6:
            continue
        rows[[done, best]] = rows[[best, done]]
        rows[done] /= rows[done, column]
        for other in range(len(rows)):
            if other != done:
                rows[other] -= rows[other, column] * rows[done]
        done += 1
    rows[np.abs(rows) < 1e-6] = 0.0
    return rows


def _groups(null: Floats, owners: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Parameters that stand in one dependency, joined where dependencies share one."""
    groups: list[set[str]] = []
    for row in null:
        own = {owner for owner, entry in zip(owners, row, strict=True) if owner and entry}
        touching = [group for group in groups if group & own]
        groups = [group for group in groups if not group & own]
        groups.append(own.union(*touching))
    order = list(dict.fromkeys(owners))
    return tuple(tuple(sorted(group, key=order.index)) for group in groups if group)
