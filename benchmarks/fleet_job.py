"""Job of the kill benchmark: load its virtual GPUs for a while, and report it.

python fleet_job.py NAME SECONDS LOAD FOLDER
"""

import os
import sys
import time
from pathlib import Path

from wattloop.virtual.node import shared_gpus
from wattloop.virtual.timeline import this_process


def main(name: str, seconds: float, load: float, folder: Path) -> None:
    say(folder / name, "begin")
    numbers = [int(number) for number in os.environ.get("SLURM_JOB_GPUS", "").split(",") if number]
    cards = shared_gpus(max(numbers, default=-1) + 1)
    for number in numbers:
        cards[number].load(load, owner=this_process())
    time.sleep(seconds)
    for number in numbers:
        cards[number].load(0.0)
    say(folder / name, "done")


def say(path: Path, word: str) -> None:
    """Append one whole line to the file."""
    line = f"{word} {os.environ.get('SLURM_JOB_ID', '')} {time.monotonic()}\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
