"""A program that sweeps levers until it is killed: hold, set, set, let go, hold again.

python benchmarks/lever_owner.py SEED LEVER...
"""

import random
import sys
import time

from wattloop.control.hold import hold
from wattloop.control.lever import Lever, LeverState, Setting
from wattloop.control.registry import find_levers, lever_named
from wattloop.hardware.host import Host


def main() -> None:
    rng = random.Random(int(sys.argv[1]))
    levers = find_levers(Host.from_environment())
    chosen = [lever_named(levers, name) for name in sys.argv[2:]]
    states = {lever.name: lever.state() for lever in chosen}
    print("ready", flush=True)
    while True:
        with hold(chosen) as held:
            for _ in range(rng.randrange(1, 12)):
                held.set({lever.name: another(states[lever.name], lever, rng) for lever in chosen})
                time.sleep(rng.uniform(0, 0.01))
                if rng.random() < 0.2:
                    held.put_back()


def another(state: LeverState, lever: Lever, rng: random.Random) -> Setting:
    """Any value the device takes."""
    if state.choices:
        return rng.choice(state.choices)
    assert state.high is not None
    low, high = state.low or state.high / 3, state.high
    if lever.name == "cpu/min_frequency":
        high = 2_000.0  # below every upper bound of the machine
    if lever.name == "cpu/max_frequency":
        low = 2_000.0
    return lever.accepted(float(rng.randint(round(low), round(high))))


if __name__ == "__main__":
    main()
