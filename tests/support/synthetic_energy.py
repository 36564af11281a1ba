"""Energy of synthetic counters, with the uncertainty of their driver's timing."""

from typing import Any

import pytest

from .powercap_driver import Driver


def about_j(power_w: float, duration_s: float, driver: Driver, rel: float = 0.1) -> Any:
    """Return the joules of a constant power over this time, to compare with a measured energy.

    At either edge a counter may show an older value, from when its driver last had a processor.
    """
    energy_j = power_w * duration_s
    return pytest.approx(energy_j, abs=rel * energy_j + 2 * power_w * driver.longest_s)
