"""Promises of the counts: FLOP and bytes of every kernel, against sums done by hand."""

import pytest

from wattloop.core.errors import ConfigError
from wattloop.kernels.kernel import DTYPES
from wattloop.kernels.registry import KERNELS, kernel_named, parse_size

BY_HAND = [
    # gemm 10: 1000 products and 1000 sums; 200 values read, 100 written, 4 bytes each
    ("gemm", 10, "fp32", 2_000, 800, 400),
    ("gemm", 10, "bf16", 2_000, 400, 200),
    # triad 100: a product and a sum each; 200 values read, 100 written
    ("triad", 100, "fp64", 200, 1_600, 800),
    ("triad", 100, "fp16", 200, 400, 200),
    # spmv 64: 1024 non-zeros of 4 + 4 bytes, 65 row starts, 64 of x; 64 of y
    ("spmv", 64, "fp32", 2_048, 1_024 * 8 + 65 * 4 + 64 * 4, 256),
    # stencil 5: 27 inner points with 8 operations; 125 read, 27 written
    ("stencil", 5, "fp32", 216, 500, 108),
    # montecarlo: two products, a sum, a comparison per point; no bytes moved
    ("montecarlo", 1_000, "fp32", 4_000, 0, 0),
    # dist 10: 8 squares, 7 sums, a root each; 80 values read, 10 written
    ("dist", 10, "fp32", 160, 320, 40),
]


@pytest.mark.parametrize(("name", "size", "dtype", "flops", "read", "written"), BY_HAND)
def test_counts(name: str, size: int, dtype: str, flops: int, read: int, written: int) -> None:
    """Counts are the algorithm's, each datum moved once."""
    kernel = KERNELS[name](size, DTYPES[dtype])
    assert (kernel.flops, kernel.bytes_read, kernel.bytes_written) == (flops, read, written)
    assert kernel.bytes_moved == read + written
    if read:
        assert kernel.intensity == pytest.approx(flops / (read + written))
    else:
        assert kernel.intensity is None


def test_every_kernel_is_counted() -> None:
    """A new kernel fails here until its counts are worked out by hand."""
    assert {row[0] for row in BY_HAND} == set(KERNELS)


def test_sizes_are_numbers_or_names() -> None:
    """Named sizes grow, numbers may be written 1e6, and anything else is refused with the list."""
    for kind in KERNELS.values():
        values = list(kind.sizes.values())
        assert values == sorted(values)
        assert parse_size(kind, "small") == values[0]
    assert parse_size(KERNELS["triad"], "1e6") == 1_000_000
    for wrong in ("enormous", "1.5", "nan", "inf", ""):
        with pytest.raises(ConfigError, match=r"known are small \(512\)"):
            parse_size(KERNELS["gemm"], wrong)


def test_sizes_out_of_range_are_refused() -> None:
    """Zero, negative and absurd sizes never reach a framework."""
    for kind in KERNELS.values():
        for wrong in (-1, 0, kind.smallest - 1, kind.largest + 1):
            with pytest.raises(ConfigError, match="out of range"):
                kind(wrong, DTYPES["fp32"])


def test_unknown_kernel_names_the_known() -> None:
    """The error lists the known kernels."""
    with pytest.raises(ConfigError, match="known are gemm, spmv, triad, stencil, montecarlo, dist"):
        kernel_named("gem")
