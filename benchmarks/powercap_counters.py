"""A powercap tree with running counters: `python powercap_counters.py ROOT SECONDS [WAVE_S]`.

Run in a process of its own, so that the cost of moving the counters falls on no measured process.
It prints the moment of its curves' 0 s; the counter follows `package_curve`.
"""

import sys
import time
from pathlib import Path

from support.power_curves import Constant, PowerCurve, SquareWave
from support.powercap_driver import Driver
from support.powercap_tree import PowercapTree, Writing

__all__ = ["package_curve"]

PERIOD_S = 0.002
"""Slow enough to leave a small machine to what is measured, fast enough that reads differ."""
WAVE_S = 0.1


def package_curve(wave_s: float = WAVE_S) -> PowerCurve:
    """Return the power curve of the package."""
    return SquareWave(40.0, 120.0, wave_s, duty=0.4)


def main() -> None:
    root, seconds = Path(sys.argv[1]).resolve(), float(sys.argv[2])
    wave_s = float(sys.argv[3]) if len(sys.argv) > 3 else WAVE_S
    tree = PowercapTree(root)
    package = tree.add_package(0, max_power_w=205.0)
    curves = {package: package_curve(wave_s), tree.add_child(package, "dram"): Constant(8.0)}
    # As in sysfs; CodeCarbon looks for the counters through this link.
    powercap = root / "class/powercap"
    (powercap / "intel-rapl/subsystem").symlink_to(powercap, target_is_directory=True)
    with Driver(curves, update_period_s=PERIOD_S, writing=Writing.IN_PLACE) as driver:
        print(f"running {driver.start_s!r}", flush=True)
        time.sleep(seconds)


if __name__ == "__main__":
    main()
