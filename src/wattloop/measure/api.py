"""`wattloop.measure()`: a context manager, a decorator, or begin and end."""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from wattloop.core.records import RunStatus, WindowResult
from wattloop.core.settings import Settings
from wattloop.measure.session import Session
from wattloop.measure.windows import Window, current_window

if TYPE_CHECKING:
    from wattloop.measure.run_result import RunResult

__all__ = ["Measurement", "active_session", "measure"]

P = ParamSpec("P")
R = TypeVar("R")


def measure(name: str | Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Measure a block, a function, or what lies between `begin()` and `end()`.

        with wattloop.measure("training") as m:
            train()
        print(m.energy_j)

        @wattloop.measure
        def train(): ...

    The outermost measurement of a process is a run: it is kept in the store. Those inside it are
    windows of that run.

    Args:
        name: what it is called; the function's name when used as a decorator.
        options: settings for the run, such as `interval_s=0.05`, `devices="gpu:0"`,
            `store="runs.db"`, `zone="FRA"`, and `tags={"model": "resnet"}`.
    """
    if callable(name):
        return Measurement(getattr(name, "__qualname__", "function"), {})(name)
    return Measurement(name or "run", options)


class Measurement:
    """One use of `measure()`."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.run: RunResult | None = None
        self._options = options
        self._window: Window | None = None
        self._session: Session | None = None

    def begin(self) -> Measurement:
        """Begin; opens a run if this process has none."""
        self._session = _runs.enter(self.name, self._options)
        self._window = self._session.begin(self.name, parent=current_window())
        return self

    def end(self, status: RunStatus = RunStatus.FINISHED) -> Measurement:
        """End; closes the run with its outermost measurement."""
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

    @property
    def energy_j(self) -> float | None:
        """Joules of everything that could be read, each device once; None when nothing could."""
        return self.result.energy_j

    @property
    def uncertainty_j(self) -> float:
        """Half-width of the 95% interval of `energy_j`."""
        return self.result.uncertainty_j

    @property
    def duration_s(self) -> float:
        """Seconds from beginning to end (or to now)."""
        return self.result.duration_s

    @property
    def power_w(self) -> float | None:
        """Mean power in watts."""
        return self.result.power_w

    def live_power_w(self) -> dict[str, float]:
        """Power of every domain now, readable inside the loop."""
        return self._session.power_w() if self._session is not None else {}

    def live_signals(self) -> dict[str, float]:
        """Utilisation, clocks, temperatures and memory now."""
        return self._session.signals() if self._session is not None else {}

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
        assert self._session is not None
        self._window.__exit__(exc_type, exc, traceback)
        failed = exc_type is not None and not issubclass(exc_type, GeneratorExit)
        status = RunStatus.FAILED if failed else RunStatus.FINISHED
        self.run = _runs.leave(self._session, status)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """As a decorator: every call is measured; coroutines until they are done."""
        name = self.name if self.name != "run" else function.__qualname__
        options = self._options
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def measured_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with Measurement(name, options):
                    return await function(*args, **kwargs)

            return cast("Callable[P, R]", measured_async)

        @functools.wraps(function)
        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            with Measurement(name, options):
                return function(*args, **kwargs)

        return measured


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


def _settings(options: dict[str, Any]) -> Settings:
    from wattloop.measure.configfile import load_settings

    given = {name: value for name, value in options.items() if name != "tags"}
    return load_settings().overridden(given, "measure()")


_runs = _Runs()
atexit.register(_runs.at_exit)
os.register_at_fork(after_in_child=_runs.after_fork)
