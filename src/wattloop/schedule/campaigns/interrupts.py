"""Ctrl-C at the right moment: between two cells, and never in a worker."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["deaf", "later"]


@contextmanager
def later() -> Iterator[None]:
    """What is done inside is done whole; a ctrl-C that comes meanwhile is heard at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears signals, and only it may say how
        return
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def deaf() -> Iterator[None]:
    """Processes started inside never hear ctrl-C, not even before their first line is run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Any = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
