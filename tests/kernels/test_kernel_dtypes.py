"""Promises of number formats and inputs."""

import numpy as np
import pytest

from wattloop.core.errors import ConfigError
from wattloop.kernels.kernel import DTYPES, PERIOD, Operand, dtype_named, round_to


def test_bf16_is_rounded_as_torch_rounds() -> None:
    """Wattloop's rounding to bf16, ties included, is that of a framework which has the format."""
    torch = pytest.importorskip("torch", reason="torch has bf16, numpy has not")
    ties = np.array([1.0, 1.00390625, 1.01171875, -1.00390625, 3.3e38, 1e-40, 0.1])
    values = np.concatenate((ties, np.random.default_rng(0).uniform(-1, 1, 10_000)))
    theirs = torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16).double().numpy()
    assert np.array_equal(round_to(values, DTYPES["bf16"]), theirs)


def test_unknown_format_names_the_known() -> None:
    """The error lists the known formats."""
    with pytest.raises(ConfigError, match="known are fp64, fp32, tf32, bf16, fp16"):
        dtype_named("float32")


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_operands_repeat_a_pattern_that_can_be_recomputed(dtype: str) -> None:
    """Any element of an input of any size can be computed, and is exact in its format."""
    operand = Operand(3, (300, 300), dtype)
    whole = operand.whole().reshape(-1)
    assert len(whole) == 90_000 > PERIOD
    where = np.array([0, 1, PERIOD - 1, PERIOD, 89_999])
    assert np.array_equal(operand.at(where), whole[where])
    assert np.array_equal(round_to(whole, DTYPES[dtype]), whole)
    assert np.abs(whole).max() <= 1
    assert np.unique(whole[:PERIOD]).size > 100
