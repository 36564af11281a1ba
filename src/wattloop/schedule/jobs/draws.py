"""Random numbers by seed and aspect: changing one aspect leaves all others as they were."""

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

__all__ = ["Draws", "chosen"]


class Draws:
    """A stream of its own for each aspect of a workload.

    Jobs take their numbers in order, so that a longer workload begins with the shorter one.

    Args:
        seed: of the whole workload, 0 or more.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, aspect: str) -> np.random.Generator:
        """The generator of an aspect such as `arrivals`, from its beginning."""
        return np.random.default_rng([self.seed, crc32(aspect.encode())])

    def uniform(self, aspect: str, count: int) -> NDArray[np.float64]:
        """A number from 0 to below 1 for each job."""
        return self.stream(aspect).random(count)


def chosen(uniform: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Which of the weighted choices each number falls on."""
    upper = np.cumsum(weights)
    picked = np.searchsorted(upper / upper[-1], uniform, side="right")
    return np.minimum(picked, len(weights) - 1).astype(np.int64)
