"""Energy of synthetic counters, as exact as their driver was on time."""

from typing import Any

import pytest

from .powercap_driver import Driver


def about_j(power_w: float, duration_s: float, driver: Driver, rel: float = 0.1) -> Any:
    """Joules of a constant power over so long, for comparison with a measured energy.

    At either edge a counter may show what it stood at when its driver last had a processor, which
    on a busy machine is a while ago.
    """
    energy_j = power_w * duration_s
    return pytest.approx(energy_j, abs=rel * energy_j + 2 * power_w * driver.longest_s)
