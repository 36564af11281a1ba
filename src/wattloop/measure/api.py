"""`wattloop.measure()`: a context manager, a decorator, or begin and end."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from wattloop.core.errors import ConfigError
from wattloop.core.resolved import Resolved
from wattloop.core.results import RunStatus, WindowResult
from wattloop.core.settings import Settings
from wattloop.measure.decorating import decorated
from wattloop.measure.result_words import in_words
from wattloop.measure.run_status import status_after
from wattloop.measure.session import Session
from wattloop.measure.windows import Window, current_window

if TYPE_CHECKING:
    from wattloop.measure.run_result import RunResult

__all__ = ["Measurement", "active_session", "measure"]

P = ParamSpec("P")
R = TypeVar("R")


@overload
def measure(name: Callable[P, R], **options: Any) -> Callable[P, R]: ...
@overload
def measure(name: str | None = None, **options: Any) -> Measurement: ...
def measure(name: str | Callable[P, R] | None = None, **options: Any) -> Any:
    """Measure a block, a function, or what lies between `begin()` and `end()`.

        with wattloop.measure("training") as m:
            train()
        print(m.energy_j)

        @wattloop.measure
        def train(): ...

    The outermost measurement of a process is a run: it is kept in the store. Those inside it are
    windows of that run, and its options hold for them.

    Args:
        name: what it is called; the function's name when used as a decorator.
        options: settings for the run, such as `interval_s=0.05`, `devices="gpu:0"`,
            `store="runs.db"`, `zone="FRA"`, and `tags={"model": "resnet"}`.

    Raises:
        ConfigError: an option is unknown or its value is wrong.
    """
    if callable(name):
        return Measurement("", options)(name)
    return Measurement(name or "", options)


class Measurement(Resolved):
    """One use of `measure()`."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name = name or "run"
        self.run: RunResult | None = None
        self._given_name = name
        self._options = options
        self._window: Window | None = None
        self._session: Session | None = None
        if options:
            _check(options)

    def begin(self) -> Measurement:
        """Begin; opens a run if this process has none. What has ended may begin again."""
        going = self._window is not None and self._window.end_s is None
        if going and self._session is _runs.session:
            raise RuntimeError(f"measure(): {self.name!r} has begun and not ended; end() it first")
        self._session = _runs.enter(self.name, self._options)
        self._window = self._session.begin(self.name, parent=current_window())
        return self

    def end(self, status: RunStatus = RunStatus.FINISHED) -> Measurement:
        """End; closes the run with its outermost measurement. Ending twice changes nothing."""
        if self._window is None or self._session is None:
            raise RuntimeError("measure(): end() without begin()")
        if self._window.end_s is None:
            self._window.end()
            self.run = _runs.leave(self._session, status)
        return self

    @property
    def result(self) -> WindowResult:
        """Energies, times, what is missing; so far, while it is open."""
        if self._window is None:
            raise RuntimeError("measure(): nothing measured yet; use 'with' or begin()")
        return self._window.result

    def live_power_w(self) -> dict[str, float]:
        """Power of every domain now, readable inside the loop."""
        return self._session.power_w() if self._session is not None else {}

    def live_signals(self) -> dict[str, float]:
        """Utilisation, clocks, temperatures and memory now."""
        return self._session.signals() if self._session is not None else {}

    def __repr__(self) -> str:
        if self._window is None:
            return f"<wattloop {self.name!r}: not begun>"
        return f"<wattloop {self.name!r}: {in_words(self.result, self._window.end_s is None)}>"

    def __enter__(self) -> Measurement:
        self.begin()
        assert self._window is not None
        self._window.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._window is not None
        self._window.leave()
        self.end(status_after(exc))

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """As a decorator: every call is measured; coroutines and generators until they are done."""
        name = self._given_name or getattr(function, "__qualname__", type(function).__name__)
        options = self._options
        return decorated(
            function,
            block=lambda: Measurement(name, options),
            stretch=lambda: _stretch(Measurement(name, options)),
        )


@contextmanager
def _stretch(measurement: Measurement) -> Iterator[None]:
    """Begin and end without becoming the caller's innermost window: others run in between."""
    measurement.begin()
    try:
        yield
    except BaseException as error:
        measurement.end(status_after(error))
        raise
    measurement.end()


def active_session() -> Session | None:
    """The run that is open in this process, if any."""
    return _runs.session


class _Runs:
    """The run of this process: opened by the first measurement, closed by the last."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self._users = 0
        self._lock = threading.Lock()

    def enter(self, name: str, options: dict[str, Any]) -> Session:
        with self._lock:
            if self.session is None:
                tags = options.get("tags")
                self.session = Session.open(_settings(options), name=name, tags=tags)
            elif options:
                self.session.note(
                    f"'{name}' is a window of the run '{self.session.name}', so its options "
                    f"({', '.join(sorted(options))}) have no effect"
                )
            self._users += 1
            return self.session

    def leave(self, session: Session, status: RunStatus) -> RunResult | None:
        with self._lock:
            if session is not self.session:
                return session.closed
            self._users -= 1
            if self._users > 0:
                return None
            self.session = None
            # Who begins a new run while this one is being closed is not a part of it.
            session.leave_environment()
        return session.close(status)

    def at_exit(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            # The interpreter leaves the exception that ended the program in `sys.last_type`.
            failed = hasattr(sys, "last_type")
            session.close(RunStatus.FAILED if failed else RunStatus.FINISHED)

    def after_fork(self) -> None:
        session, self.session = self.session, None
        self._lock = threading.Lock()
        self._users = 0
        if session is not None:
            session.abandon()


def _settings(options: Mapping[str, Any]) -> Settings:
    from wattloop.measure.configfile import load_settings

    given = {name: value for name, value in options.items() if name != "tags"}
    return load_settings().overridden(given, "measure()")


def _check(options: Mapping[str, Any]) -> None:
    """Wrong options are said where they are written, not when a decorated function is called."""
    given = {name: value for name, value in options.items() if name != "tags"}
    Settings().overridden(given, "measure()")
    tags = options.get("tags")
    if tags is not None and not (
        isinstance(tags, Mapping) and all(isinstance(word, str) for word in (*tags, *tags.values()))
    ):
        raise ConfigError(
            f"measure(): tags must be texts by name, such as {{'model': 'x'}}: {tags!r}"
        )


_runs = _Runs()
atexit.register(_runs.at_exit)
os.register_at_fork(after_in_child=_runs.after_fork)
