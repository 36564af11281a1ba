"""What a kernel is: maths, how much work it is, and how its result is checked."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.kernels.dtypes import DTYPES, Dtype

__all__ = ["Check", "Kernel"]

SAMPLES = 256
Array = Any


class Check(NamedTuple):
    """How far a result is from what it has to be."""

    ok: bool
    error: float
    """Largest deviation, in units of what is allowed: 1 is the limit."""
    what: str


class Kernel(ABC):
    """One kernel at one size and in one number format.

    Counts are those of the algorithm, each datum moved once between memory and processor (as in
    the thesis): what caches and frameworks move beyond that is a part of what is being measured.
    """

    name: ClassVar[str]
    equation: ClassVar[str]
    size_means: ClassVar[str]
    """What the number given as size counts."""
    sizes: ClassVar[Mapping[str, int]]
    """The named ones."""
    smallest: ClassVar[int]
    largest: ClassVar[int]
    dtypes: ClassVar[tuple[str, ...]] = tuple(DTYPES)
    dtype_reason: ClassVar[str] = ""
    """Why other formats make no sense."""

    def __init__(self, size: int, dtype: Dtype) -> None:
        if not self.smallest <= size <= self.largest:
            raise ConfigError(
                f"{self.name}: size {size} is out of range; use {self.size_means} from "
                f"{self.smallest} to {self.largest}, or {', '.join(self.sizes)}"
            )
        self.size = size
        self.dtype = dtype

    @property
    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations of one run."""

    @property
    @abstractmethod
    def bytes_read(self) -> int:
        """Bytes that have to come from memory, each once."""

    @property
    @abstractmethod
    def bytes_written(self) -> int:
        """Bytes that have to go to memory."""

    @property
    def bytes_moved(self) -> int:
        """Read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity, FLOP per byte; None where no data has to be moved."""
        return self.flops / self.bytes_moved if self.bytes_moved else None

    @property
    def memory_b(self) -> int:
        """Bytes of its arrays, as they lie in memory."""
        return self.bytes_moved

    @property
    @abstractmethod
    def result_length(self) -> int:
        """Elements of the (flattened) result."""

    @abstractmethod
    def expected(self, flat_indices: Array) -> tuple[Array, Array]:
        """The result at these positions, in float64, and how far off each may be."""

    def sample(self) -> Array:
        """Positions of the result that are looked at: the ends, and some between."""
        if self.result_length <= SAMPLES:
            return np.arange(self.result_length)
        drawn = np.random.default_rng(self.size).integers(0, self.result_length, SAMPLES - 2)
        return np.concatenate(([0, self.result_length - 1], drawn))

    def judge(self, found: Array, flat_indices: Array) -> Check:
        """Compare what was computed at these positions with what is right."""
        right, allowed = self.expected(flat_indices)
        found = np.asarray(found, dtype=np.float64)
        if found.shape != right.shape or not np.isfinite(found).all():
            return Check(False, float("inf"), "the result has gaps or is not finite")
        off = np.abs(found - right) / allowed
        place = int(off.argmax())
        worst = float(off[place])
        what = f"{len(right)} elements against float64"
        if worst > 1:
            what += (
                f": {int((off > 1).sum())} are off, element {int(flat_indices[place])} is "
                f"{found[place]:.9g} and should be {right[place]:.9g}"
            )
        return Check(worst <= 1, worst, what)
