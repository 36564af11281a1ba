"""Windows: the beginning and end of a region whose energy is asked for."""

from __future__ import annotations

import contextvars
from typing import Protocol

from wattloop.core.resolved import Resolved
from wattloop.core.results import WindowResult

__all__ = ["Window", "WindowKeeper", "current_window"]

_current: contextvars.ContextVar[Window | None] = contextvars.ContextVar(
    "wattloop_window", default=None
)


def current_window() -> Window | None:
    """The innermost `with` window of this thread or task."""
    return _current.get()


class WindowKeeper(Protocol):
    """What a window needs of the session it belongs to."""

    def window_ended(self, window: Window) -> None:
        """Take the readings that end it."""
        ...

    def resolve(self, window: Window) -> WindowResult:
        """Compute its energy from the readings so far."""
        ...

    def settled(self, end_s: float) -> bool:
        """Whether later readings can no longer sharpen what ended at `end_s`."""
        ...


class Window(Resolved):
    """A region being measured. Windows may nest, overlap, and live in any thread or task.

    Beginning and ending only take readings and times; energy is computed when it is asked for,
    or in the background, so a window costs microseconds.
    """

    __slots__ = (
        "_keeper",
        "_result",
        "_token",
        "begin_s",
        "end_s",
        "name",
        "parent_id",
        "window_id",
    )

    def __init__(
        self,
        keeper: WindowKeeper,
        window_id: int,
        name: str,
        parent_id: int | None,
        begin_s: float,
    ) -> None:
        self._keeper = keeper
        self._result: WindowResult | None = None
        self._token: contextvars.Token[Window | None] | None = None
        self.window_id = window_id
        self.name = name
        self.parent_id = parent_id
        self.begin_s = begin_s
        self.end_s: float | None = None

    def end(self) -> Window:
        """End the window. Ending it twice changes nothing."""
        if self.end_s is None:
            self._keeper.window_ended(self)
        return self

    @property
    def result(self) -> WindowResult:
        """Energies and times; of a window that is still open, those so far."""
        if self._result is not None:
            return self._result
        result = self._keeper.resolve(self)
        if self.end_s is not None and self._keeper.settled(self.end_s):
            self._result = result
        return result

    def __enter__(self) -> Window:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        self.end()

    def leave(self) -> None:
        """It is no longer the innermost window of this thread or task."""
        if self._token is not None:
            try:
                _current.reset(self._token)
            except ValueError:  # ended in another thread or task than it began
                _current.set(None)
            self._token = None

    def __repr__(self) -> str:
        state = "open" if self.end_s is None else f"{self.end_s - self.begin_s:.6g} s"
        return f"<Window {self.window_id} {self.name!r} {state}>"
