"""A background thread for the duration of a `with` block."""

import threading
from abc import ABC, abstractmethod
from typing import Self


class BackgroundThread(ABC):
    """A context manager: `_work` runs during the block and ends soon after `_stop` is set.

    Args:
        name: of the thread.
        patience_s: how long its end is waited for; None for as long as it takes.
    """

    def __init__(self, name: str, patience_s: float | None = None) -> None:
        self._patience_s = patience_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(self._patience_s)

    @abstractmethod
    def _work(self) -> None:
        """Do the work of the thread."""
