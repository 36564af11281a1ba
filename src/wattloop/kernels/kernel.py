"""The contract of a kernel: its number formats, operands, amount of work and check."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.core.units import format_bytes

Array = Any
SCRATCH = 1.5
"""Frameworks hold temporary arrays in addition to a kernel's own."""
ALWAYS_B = 64 * 2**20


class Dtype(NamedTuple):
    """A number format.

    Attributes:
        epsilon: relative step of a stored result, or of a product's factors (tf32).
        sum_epsilon: relative step of the numbers that sums are kept in.
        numpy_name: the format its values have on the host; bf16 has none in numpy.
    """

    name: str
    itemsize: int
    epsilon: float
    sum_epsilon: float
    numpy_name: str


DTYPES: dict[str, Dtype] = {
    d.name: d
    for d in (
        Dtype("fp64", 8, 2.0**-52, 2.0**-52, "float64"),
        Dtype("fp32", 4, 2.0**-23, 2.0**-23, "float32"),
        # stored as fp32; tensor cores round the factors of a product to ten bits
        Dtype("tf32", 4, 2.0**-10, 2.0**-23, "float32"),
        Dtype("bf16", 2, 2.0**-7, 2.0**-23, "float32"),
        Dtype("fp16", 2, 2.0**-10, 2.0**-23, "float16"),
    )
}


def dtype_named(name: str) -> Dtype:
    """Return a format by name. Raises ConfigError, with the known names."""
    if name not in DTYPES:
        raise ConfigError(f"unknown dtype '{name}'; known are {', '.join(DTYPES)}")
    return DTYPES[name]


def round_to(values: Array, dtype: Dtype) -> Array:
    """`values` as float64 after they were stored in `dtype`."""
    if dtype.name == "bf16":
        bits = values.astype(np.float32).view(np.uint32)
        # to nearest, ties to even: the upper half of a float32 is a bf16
        upper = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return upper.view(np.float32).astype(np.float64)
    return values.astype(dtype.numpy_name).astype(np.float64)


# Inputs that every framework builds alike and any element of which can be recomputed.
#
# An operand of any size is a short random pattern, repeated: x_i = pattern[i mod PERIOD]. A
# framework gets the pattern and repeats it on its device, so gigabytes need not be drawn on the
# host nor copied; a check recomputes the few elements it needs, exactly as the device holds them.
# The period is prime, so rows of a matrix differ. Values fill all digits of their format: a GPU
# that multiplies round numbers draws less power and reaches higher clocks than one at work.

PERIOD = 65_521


class Operand(NamedTuple):
    """One input array: uniform in [-1, 1)."""

    seed: int
    shape: tuple[int, ...]
    dtype_name: str

    @property
    def length(self) -> int:
        return prod(self.shape)

    @property
    def pattern(self) -> Array:
        """The repeated values, as float64, already rounded to the format."""
        return _pattern(self.seed, self.dtype_name)

    def at(self, flat_indices: Array) -> Array:
        return self.pattern[np.asarray(flat_indices, dtype=np.int64) % PERIOD]

    def whole(self) -> Array:
        """All of it as float64; for small ones."""
        return np.resize(self.pattern, self.shape)


@lru_cache(maxsize=32)
def _pattern(seed: int, dtype_name: str) -> Array:
    values = np.random.default_rng(seed).uniform(-1.0, 1.0, PERIOD)
    return round_to(values, DTYPES[dtype_name])


SAMPLES = 256


class KernelCheck(NamedTuple):
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
    flops: int
    """Floating-point operations of one run."""
    bytes_read: int
    """Bytes that have to come from memory, each once."""
    bytes_written: int
    """Bytes that have to go to memory."""
    result_length: int
    """Elements of the (flattened) result."""

    def __init__(self, size: int, dtype: Dtype) -> None:
        if not self.smallest <= size <= self.largest:
            raise ConfigError(
                f"{self.name}: size {size} is out of range; use {self.size_means} from "
                f"{self.smallest} to {self.largest}, or {', '.join(self.sizes)}"
            )
        self.size = size
        self.dtype = dtype

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity, FLOP per byte; None where no data has to be moved."""
        return self.flops / self.bytes_moved if self.bytes_moved else None

    @property
    def memory_b(self) -> int:
        """Expected bytes of memory, temporary arrays of frameworks included."""
        return int(self.bytes_moved * SCRATCH) + ALWAYS_B

    def check_memory(self, free_b: int | None, device: str) -> None:
        """Raise `ConfigError` where the kernel needs more than is free, if that is known."""
        if free_b is not None and self.memory_b > free_b:
            raise ConfigError(
                f"{self.name} of size {self.size} in {self.dtype.name} needs about "
                f"{format_bytes(self.memory_b)} of memory, {format_bytes(free_b)} are free on the "
                f"{device}; use a smaller --sizes"
            )

    @abstractmethod
    def expected(self, flat_indices: Array) -> tuple[Array, Array]:
        """The result at these positions, in float64, and how far off each may be."""

    def sample(self) -> Array:
        """Positions of the result that are looked at: the ends, and some between."""
        if self.result_length <= SAMPLES:
            return np.arange(self.result_length)
        drawn = np.random.default_rng(self.size).integers(0, self.result_length, SAMPLES - 2)
        return np.concatenate(([0, self.result_length - 1], drawn))

    def judge(self, found: Array, flat_indices: Array) -> KernelCheck:
        """Compare what was computed at these positions with what is right."""
        right, allowed = self.expected(flat_indices)
        found = np.asarray(found, dtype=np.float64)
        if found.shape != right.shape or not np.isfinite(found).all():
            return KernelCheck(False, float("inf"), "the result has gaps or is not finite")
        off = np.abs(found - right) / allowed
        place = int(off.argmax())
        worst = float(off[place])
        what = f"{len(right)} elements against float64"
        if worst > 1:
            what += (
                f": {int((off > 1).sum())} are off, element {int(flat_indices[place])} is "
                f"{found[place]:.9g} and should be {right[place]:.9g}"
            )
        return KernelCheck(worst <= 1, worst, what)
