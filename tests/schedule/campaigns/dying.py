"""Simulators that do not do their work; on their own, for a worker loads all that is here."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any


def die(cells: Sequence[Any]) -> Iterator[Any]:
    """Killed in the middle of its first cell."""
    os.kill(os.getpid(), signal.SIGKILL)
    yield cells[0], {}


def dawdle(cells: Sequence[Any]) -> Iterator[Any]:
    """Answers once, then takes a minute."""
    yield cells[0], {}
    time.sleep(60)
