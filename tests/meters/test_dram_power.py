"""Promises of the DRAM model: figures of the thesis's section 4.2 and of its documentation card."""

import pytest

from wattloop.meters.dram import (
    Dimm,
    base_power_w,
    dimms_from_setting,
    dram_power_w,
    memory_use_factor,
)


@pytest.mark.parametrize(
    ("capacity_gib", "power_w"), [(256, 10), (128, 8), (64, 6), (32, 5), (16, 4)]
)
def test_base_power_is_the_table_of_the_thesis(capacity_gib: float, power_w: float) -> None:
    """The five rows of section 4.2.2."""
    assert base_power_w(Dimm(capacity_gib)) == pytest.approx(power_w)


@pytest.mark.parametrize(
    ("capacity_gib", "power_w"),
    [(24, 4.585), (48, 5.585), (96, 7.170), (8, 3), (4, 2), (2, 1), (0.5, 1), (512, 12)],
)
def test_base_power_outside_the_table(capacity_gib: float, power_w: float) -> None:
    """For sizes outside the thesis's table, the factor is that of the documentation card."""
    assert base_power_w(Dimm(capacity_gib)) == pytest.approx(power_w, abs=1e-3)


@pytest.mark.parametrize(
    "dimm", [Dimm(16, "LPDDR5"), Dimm(16, "DDR5", "SODIMM"), Dimm(16, "DDR4", "Row Of Chips")]
)
def test_laptop_memory_draws_a_quarter(dimm: Dimm) -> None:
    """For laptop memory, the factor is that of the documentation card."""
    assert base_power_w(dimm) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("used", "factor"),
    [
        (0.0, 0.30), (0.0499, 0.30), (0.05, 0.60), (0.1499, 0.60), (0.15, 0.70), (0.2499, 0.70),
        (0.25, 0.75), (0.50, 0.75), (0.501, 0.80), (1.0, 0.80),
    ],
)  # fmt: skip
def test_usage_tiers(used: float, factor: float) -> None:
    """The five tiers of section 4.2.2 and their bounds."""
    assert memory_use_factor(used) == factor


@pytest.mark.parametrize(
    ("modules", "printed_w", "ours_w", "ratio"),
    [
        pytest.param("16x32", 1.270 * 3600 / 180.272, 24.0, 1.06, id="Intel-2, table 3.3, RAPL"),
        pytest.param("8x16", 4.853 * 3600 / 180.503, 9.6, 10.08, id="AMD-1, table 3.3"),
        pytest.param("8x64", 201.6 / 13.25, 14.4, 1.06, id="AMD-2, table 3.7, node 0"),
    ],
)
def test_idle_power_against_the_tables_of_the_thesis(
    modules: str, printed_w: float, ours_w: float, ratio: float
) -> None:
    """The card's comparison: the model's values as multiples of the thesis's printed ones."""
    model_w = dram_power_w(dimms_from_setting(modules), 0.0)
    assert model_w == pytest.approx(ours_w)
    assert printed_w / model_w == pytest.approx(ratio, abs=0.01)


def test_a_cause_of_the_odd_value_of_table_3_3() -> None:
    """32 slots taken for 256 GiB modules give AMD-1's 96.8 W within 1 %."""
    assert dram_power_w([Dimm(256)] * 32, 0.0) == pytest.approx(4.853 * 3600 / 180.503, rel=0.01)


def test_laptop_against_table_3_5() -> None:
    """Intel-1: the model gives twice the thesis's printed value, within the stated error."""
    model_w = dram_power_w([Dimm(16, "DDR5", "SODIMM")] * 2, 0.10)
    assert model_w == pytest.approx(1.2)
    printed_w = 0.031 * 3600 / 180.192
    assert printed_w / model_w == pytest.approx(0.52, abs=0.01)
