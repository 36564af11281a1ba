"""Promises of values: common notations become device values, or are refused with a reason."""

import pytest

from tests.control.conftest import Rig
from tests.support.nvml_stub import StubNvml
from wattloop.control.lever import Setting, parse_setting
from wattloop.core.errors import ConfigError


@pytest.mark.parametrize(
    ("lever", "text", "value"),
    [
        ("gpu:0/power_limit", "250", 250.0),
        ("gpu:0/power_limit", " 250 W", 250.0),
        ("gpu:0/power_limit", "0.25kW", 250.0),
        ("gpu:0/power_limit", 250, 250.0),
        ("gpu:0/power_limit", "70%", 210.0),
        ("gpu:0/power_limit", "default", 300.0),
        ("gpu:0/sm_clock", "1.4 GHz", 1400.0),
        ("gpu:0/sm_clock", "default", None),
        ("gpu:0/sm_clock", "50 %", 1100.0),
        ("cpu:0/power_limit_long_term", "50%", 100.0),
        ("cpu:0/power_limit_long_term", "default", 200.0),
        ("cpu/max_frequency", "50%", 1750.0),
        ("cpu/min_frequency", "50%", 1750.0),
        ("cpu/min_frequency", "default", 800.0),
        ("cpu/governor", "performance", "performance"),
    ],
)
def test_values_as_people_write_them(
    rig: Rig, lever: str, text: str | float, value: Setting
) -> None:
    """Units, shares of the default (power) or the maximum (clocks), names, and `default`."""
    assert parse_setting(text, rig.lever(lever)) == value


@pytest.mark.parametrize(
    ("lever", "text", "message"),
    [
        ("gpu:0/power_limit", "1400 MHz", "write it as 250 W, 70% or default"),
        ("gpu:0/power_limit", "lots", "is not a value"),
        ("gpu:0/power_limit", "", "is not a value"),
        ("gpu:0/power_limit", "1.2.3", "is not a value"),
        ("gpu:0/power_limit", "nan", "is not a value"),
        ("gpu:0/power_limit", "-200", "outside the device's limits"),
        ("gpu:0/power_limit", "400 W", "400 W is outside the device's limits, 150 to 350 W"),
        ("gpu:0/power_limit", "200%", "600 W is outside the device's limits"),
        ("gpu:0/power_limit", True, "neither a number nor a word"),
        ("cpu/governor", 5, "takes a name"),
        ("cpu/governor", "turbo", "there are: performance, powersave"),
        ("cpu/governor", "default", "has no default"),
    ],
)
def test_other_values_are_refused(rig: Rig, lever: str, text: str | float, message: str) -> None:
    """The refusal names the lever and the valid form."""
    with pytest.raises(ConfigError, match=message) as refusal:
        parse_setting(text, rig.lever(lever))
    assert lever in str(refusal.value)


def test_share_of_the_default_limit(rig: Rig, stub: StubNvml) -> None:
    """A share of an NVIDIA card is of its default power limit."""
    stub.gpu(0).default_limit_w = 500.0
    assert parse_setting("50%", rig.lever("gpu:0/power_limit")) == 250.0
