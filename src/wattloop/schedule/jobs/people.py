"""Whose jobs they are."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.jobs.draws import Draws, chosen

__all__ = ["People"]


@dataclass(frozen=True, slots=True)
class People:
    """Users and the share of jobs that each submits.

    Attributes:
        names: of the users.
        shares: as many, of any sum.
    """

    names: tuple[str, ...]
    shares: tuple[float, ...]

    @classmethod
    def equal(cls, count: int) -> "People":
        """`user-0`, `user-1`, ..., all alike."""
        return cls(tuple(f"user-{n}" for n in range(count)), (1.0,) * count)

    @classmethod
    def with_majority(cls, count: int, share: float = 0.5) -> "People":
        """`user-0` submits `share` of all jobs, the others the rest alike (thesis 5.5.2.5)."""
        rest = (1 - share) / (count - 1) if count > 1 else 0.0
        return cls(cls.equal(count).names, (share, *(rest,) * (count - 1)))

    @classmethod
    def named(cls, shares: Mapping[str, float]) -> "People":
        """By name."""
        return cls(tuple(shares), tuple(shares.values()))

    def draw(self, draws: Draws, count: int) -> NDArray[np.int64]:
        """Who submits each of `count` jobs, as an index into `names`."""
        return chosen(draws.uniform("users", count), np.asarray(self.shares))
