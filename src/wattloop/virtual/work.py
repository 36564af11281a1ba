"""Program that loads the virtual GPU in real time.

wattloop run -- python -m wattloop.virtual.work --seconds 3 --load 0.8
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from wattloop.core.errors import ConfigError
from wattloop.virtual.node import shared_gpus
from wattloop.virtual.timeline import this_process

LONGEST_S = 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """Load the cards, wait, leave them idle; exit code 2 for wrong arguments."""
    options = _parser().parse_args(arguments)
    numbers = range(options.gpus)
    try:
        gpus = shared_gpus(options.gpus)
        # A `kill` must not leave the cards loaded for ever.
        signal.signal(signal.SIGTERM, _leave)
        begin_s = time.monotonic()
        for gpu in gpus:
            gpu.load(options.load, memory=options.memory, owner=this_process())
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    try:
        time.sleep(options.seconds)
    except KeyboardInterrupt:
        return 130
    finally:
        for gpu in gpus:
            gpu.leave(this_process())
        end_s = time.monotonic()
        for number in numbers:
            energy_j = gpus[number].true_energy_j(begin_s, end_s)
            sys.stdout.write(
                f"virtual gpu {number}: {energy_j:.1f} J in {end_s - begin_s:.2f} s (simulated)\n"
            )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m wattloop.virtual.work", description="Load the virtual GPU in real time."
    )
    parser.add_argument("--seconds", type=_seconds, default=3.0, help="how long")
    parser.add_argument("--load", type=float, default=0.8, help="share of time busy, 0 to 1")
    parser.add_argument("--memory", type=float, default=0.4, help="share of memory bandwidth")
    parser.add_argument(
        "--gpus", type=int, default=1, choices=range(1, 65), metavar="N", help="how many cards"
    )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and {LONGEST_S:g} seconds")
    return seconds


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
