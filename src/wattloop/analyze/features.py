"""Rows as points: every column scaled to mean 0 and variance 1, levels as shares.

- numbers: as they are, standardised (scikit-learn's StandardScaler)
- text with two levels: 0 and 1; its mean in a group is the share of the second level
- text with more levels: one column per level, standardised and divided by the root of their number,
  so that a parameter with many levels does not weigh more than one with few
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattloop.analyze.table import Floats, Table
from wattloop.core.errors import ConfigError

__all__ = ["Features", "features_of"]

MOST_LEVELS = 50
"""Text with more levels than this names rows instead of describing them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Points and what their coordinates are.

    Attributes:
        names: of the coordinates, such as `batch_size` or `precision=fp32`.
        owners: the column each belongs to.
        plain: in original units, shares of levels as 0 and 1.
        scaled: the points.
        notes: how text was made into numbers, and what was left out.
    """

    names: tuple[str, ...]
    owners: tuple[str, ...]
    plain: Floats
    scaled: Floats
    notes: tuple[str, ...]

    def only(self, columns: Sequence[str]) -> Floats:
        """The points in some of the columns."""
        return self.scaled[:, [owner in columns for owner in self.owners]]


def features_of(table: Table, columns: Sequence[str]) -> Features:
    """Coordinates for these columns, of rows that miss none of them.

    Raises:
        ConfigError: none of them varies.
    """
    from sklearn.preprocessing import StandardScaler

    names: list[str] = []
    owners: list[str] = []
    plain: list[Floats] = []
    weights: list[float] = []
    shares: list[str] = []
    one_hot: list[str] = []
    constant: list[str] = []
    too_many: list[str] = []
    for column in columns:
        if not table.varies(column):
            constant.append(column)
        elif table.is_numeric(column):
            names.append(column)
            owners.append(column)
            plain.append(table.numbers(column))
            weights.append(1.0)
        elif len(levels := table.levels(column)) > MOST_LEVELS:
            too_many.append(column)
        else:
            (shares if len(levels) == 2 else one_hot).append(column)
            labels = np.array([label or "" for label in table.labels(column)])
            kept = levels[1:] if len(levels) == 2 else levels
            for level in kept:
                names.append(f"{column}={level}")
                owners.append(column)
                plain.append((labels == level).astype(np.float64))
                weights.append(1 / math.sqrt(len(kept)))
    if not names:
        raise ConfigError(f"{table.name}: none of {', '.join(columns) or 'its columns'} varies")
    values = np.column_stack(plain)
    notes = []
    if shares:
        notes.append(f"two levels as 0 and 1: {', '.join(shares)}")
    if one_hot:
        notes.append(f"one column per level, together weighing as one: {', '.join(one_hot)}")
    if constant:
        notes.append(f"left out, the same in every row: {', '.join(constant)}")
    if too_many:
        notes.append(f"left out, more than {MOST_LEVELS} levels: {', '.join(too_many)}")
    return Features(
        names=tuple(names),
        owners=tuple(owners),
        plain=values,
        scaled=np.asarray(StandardScaler().fit_transform(values)) * np.array(weights),
        notes=tuple(notes),
    )
