"""A powercap tree with running counters: `python counters.py ROOT SECONDS [PERIOD_S]`.

Run in a process of its own, so that the cost of making the counters run is nobody else's.
"""

import sys
import time
from pathlib import Path

from wattloop.testing.power_curves import Constant, SquareWave
from wattloop.testing.powercap_tree import Driver, PowercapTree, Writing

DEFAULT_PERIOD_S = 0.002
"""Slow enough to leave a small machine to what is measured, fast enough that reads differ."""


def main() -> None:
    root, seconds = Path(sys.argv[1]).resolve(), float(sys.argv[2])
    period_s = float(sys.argv[3]) if len(sys.argv) > 3 else DEFAULT_PERIOD_S
    tree = PowercapTree(root)
    package = tree.add_package(0, max_power_w=205.0)
    dram = tree.add_child(package, "dram")
    curves = {package: SquareWave(40.0, 120.0, 0.1), dram: Constant(8.0)}
    with Driver(curves, update_period_s=period_s, writing=Writing.IN_PLACE):
        print("running", flush=True)
        time.sleep(seconds)


if __name__ == "__main__":
    main()
