"""Work of the tests' jobs: load the virtual GPUs from Slurm for some time.

python lab_work.py SECONDS LOAD
"""

import os
import sys
import time

from wattloop.virtual.node import shared_gpus
from wattloop.virtual.timeline import this_process


def main(seconds: float, load: float) -> None:
    given = os.environ.get("SLURM_JOB_GPUS") or os.environ.get("SLURM_STEP_GPUS", "")
    numbers = [int(number) for number in given.split(",") if number]
    cards = shared_gpus(max(numbers, default=-1) + 1)
    for number in numbers:
        cards[number].load(load, owner=this_process())
    time.sleep(seconds)
    for number in numbers:
        cards[number].load(0.0)


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
