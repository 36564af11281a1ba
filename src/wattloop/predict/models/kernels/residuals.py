"""What microbenchmarks say beyond the formulas.

For each group of operations, the logarithm of measured over calculated time is a Gaussian
process over the place of the operation (`features`): near a microbenchmark its residual holds,
far from all of them the formula alone does.

    r(x) = sum_i a_i k(|x - x_i| / l),   k(d) = (1 + d) exp(-d),   a = (K + s^2 I)^-1 r

The kernel is a rough one (Matern 3/2): libraries change their minds between two sizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wattloop.predict.models.kernels.classes import family_of
from wattloop.predict.models.kernels.table import Floats, OperationTable

__all__ = ["ResidualGroup", "Residuals", "nearness"]

MOST = 3.0
"""No correction is larger than e to this power, whatever the measurements say."""


@dataclass(frozen=True, slots=True)
class ResidualGroup:
    """Measured places of one group, their weights and how far each one's word reaches.

    `reach` has one length per feature, in doublings.
    """

    places: Floats
    weights: Floats
    reach: Floats

    def correction(self, places: Floats) -> Floats:
        """Logarithm of the factor at each of the `places`."""
        return self.told(places)[0]

    def told(self, places: Floats) -> tuple[Floats, Floats]:
        """The correction, and how far the nearest measurement is: 0 right there, 1 out of reach."""
        near = nearness(places / self.reach, self.places / self.reach)
        return np.clip(near @ self.weights, -MOST, MOST), 1 - near.max(axis=1)


def nearness(first: Floats, second: Floats) -> Floats:
    """1 for the same place, falling to 0 with distance; one line per place of `first`."""
    squared = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None, :]
    squared -= 2 * first @ second.T
    distance = np.sqrt(3 * np.maximum(squared, 0.0))
    close: Floats = (1 + distance) * np.exp(-distance)
    return close


class Residuals:
    """Corrections of all groups."""

    def __init__(self, groups: Mapping[str, ResidualGroup] | None = None) -> None:
        self.groups = dict(groups or {})

    def factors(self, table: OperationTable) -> Floats:
        """What to multiply the calculated time of each row with."""
        return self.told(table)[0]

    def told(self, table: OperationTable) -> tuple[Floats, Floats]:
        """The factors, and how far each row is from the nearest measurement: 0 to 1."""
        factors, far = np.ones(len(table)), np.ones(len(table))
        members: dict[str, list[int]] = {}
        for index, name in enumerate(table.classes):
            group = name if name in self.groups else family_of(name)
            if group in self.groups:
                members.setdefault(group, []).append(index)
        for group, rows in members.items():
            places = np.array([table.places[row] for row in rows])
            correction, far[rows] = self.groups[group].told(places)
            factors[rows] = np.exp(correction)
        return factors, far
