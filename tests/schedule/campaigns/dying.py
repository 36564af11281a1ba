"""Simulators that fail; in a module of their own, since a worker loads all of it."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any


def die(cells: Sequence[Any]) -> Iterator[Any]:
    """Kill this process in the middle of its first cell."""
    os.kill(os.getpid(), signal.SIGKILL)
    yield cells[0], {}


def dawdle(cells: Sequence[Any]) -> Iterator[Any]:
    """Answer once, then take a minute."""
    yield cells[0], {}
    time.sleep(60)
