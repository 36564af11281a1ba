"""A job on the stub cards that takes longer under a cap or lower clock.

python -m tests.support.nvml_stub.work --seconds 0.5 --gpus 2
"""

import argparse
import sys
import time
from collections.abc import Sequence

from .attached import StubCards

SLICE_S = 0.005


def main(arguments: Sequence[str] | None = None) -> int:
    """Load the cards until the work is done on the slowest of them, then leave them idle."""
    parser = argparse.ArgumentParser(description="Load the stub cards that the environment names.")
    parser.add_argument("--seconds", type=float, default=0.5, help="at full speed")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--load", type=float, default=1.0, help="1 draws the default limit")
    options = parser.parse_args(arguments)
    cards, numbers = StubCards(), range(options.gpus)
    for number in numbers:
        cards.set_load(number, options.load)
    try:
        before_s, left_s = time.monotonic(), options.seconds
        while left_s > 0:
            time.sleep(SLICE_S)
            now_s = time.monotonic()
            left_s -= (now_s - before_s) * min(cards.speed(number, now_s) for number in numbers)
            before_s = now_s
    finally:
        for number in numbers:
            cards.set_load(number, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
