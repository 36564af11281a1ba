"""Number formats: what a value costs to store, and how far a result may be off."""

from typing import Any, NamedTuple

import numpy as np

from wattloop.core.errors import ConfigError

__all__ = ["DTYPES", "Dtype", "dtype_named", "rounded"]

Array = Any


class Dtype(NamedTuple):
    """A number format.

    Attributes:
        name: as on the command line.
        itemsize: bytes of one value in memory.
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
    """The format of that name.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    if name not in DTYPES:
        raise ConfigError(f"unknown dtype '{name}'; known are {', '.join(DTYPES)}")
    return DTYPES[name]


def rounded(values: Array, dtype: Dtype) -> Array:
    """`values` as float64 after they were stored in `dtype`."""
    if dtype.name == "bf16":
        bits = values.astype(np.float32).view(np.uint32)
        # to nearest, ties to even: the upper half of a float32 is a bf16
        upper = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return upper.view(np.float32).astype(np.float64)
    return values.astype(dtype.numpy_name).astype(np.float64)
