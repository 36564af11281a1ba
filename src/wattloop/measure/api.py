"""`wattloop.measure()`: a context manager, a decorator, or begin and end."""

from __future__ import annotations

import atexit
import functools
import math
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from wattloop.core.errors import ConfigError
from wattloop.core.results import EnergyProperties, RunStatus, WindowResult
from wattloop.core.settings import Settings
from wattloop.core.units import format_duration, format_energy, short_energy
from wattloop.measure.session import Session
from wattloop.measure.window_energy import Window, current_window

if TYPE_CHECKING:
    from wattloop.measure.session import RunResult


def format_result(result: WindowResult, going: bool = False) -> str:
    """Format a result such as `9.81 J ± 0.42 J in 1.23 s, measured`."""
    took = f"in {format_duration(result.duration_s)}{' so far' * going}"
    if result.energy_j is None:
        return f"nothing could be read {took}"
    spread = short_energy(result.uncertainty_j, result.energy_j)
    energy = f"{format_energy(result.energy_j)} ± {spread}"
    part = "" if result.complete else ", incomplete"
    return f"{energy} {took}, {result.provenance}{part}"


def status_after(error: BaseException | None) -> RunStatus:
    """Return the status of a run that ended with this exception, if any.

    A generator that is closed early has not failed, nor has `sys.exit(0)`.
    """
    if error is None or isinstance(error, GeneratorExit):
        return RunStatus.FINISHED
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return RunStatus.FINISHED
    return RunStatus.FAILED


P = ParamSpec("P")
R = TypeVar("R")
Region = Callable[[], AbstractContextManager[Any]]


def decorate(function: Callable[P, R], block: Region, stretch: Region) -> Callable[P, R]:
    """Wrap `function` so that each call is measured from its beginning to its end.

    Args:
        function: a plain, coroutine, generator or asynchronous generator function. Generators are
            measured from their first item until they are exhausted or closed; what their consumer
            does between two items is in it. Items sent to an asynchronous generator are not
            passed on.
        block: what to enter around a call that runs in one go.
        stretch: the same for a call that others run in between.
    """
    import inspect  # takes 10 ms: imported only when a function is decorated

    wrapper: Callable[..., Any]
    if inspect.iscoroutinefunction(function):

        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            with block():
                return await function(*args, **kwargs)

    elif inspect.isasyncgenfunction(function):

        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Any]:
            with stretch():
                async with aclosing(function(*args, **kwargs)) as items:
                    async for item in items:
                        yield item

    elif inspect.isgeneratorfunction(function):

        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Generator[Any, Any, Any]:
            with stretch():
                return (yield from function(*args, **kwargs))

    else:

        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            with block():
                return function(*args, **kwargs)

    return cast("Callable[P, R]", functools.wraps(function)(wrapper))


LINGER_S = 1.0
"""A function that is called again within this time reuses the run of its last call."""
SETTLE_AT_ONCE = 256
"""Number of ended calls whose energies are added up together."""


@overload
def measure(name: Callable[P, R], **options: Any) -> Callable[P, R]: ...


@overload
def measure(name: str | None = None, **options: Any) -> Measurement: ...


def measure(name: str | Callable[P, R] | None = None, **options: Any) -> Any:
    """Measure a block, a function, or the time between `begin()` and `end()`.

        with wattloop.measure("training") as m:
            train()
        print(m.energy_j)

        @wattloop.measure
        def train(): ...

    The outermost measurement of a process is a run, which is written to the store. Those inside it
    are windows of that run, and its options apply to them.

    Args:
        name: the name; the function's name when used as a decorator.
        options: settings for the run, such as `interval_s=0.05`, `devices="gpu:0"`,
            `store="runs.db"`, `zone="FRA"`, and `tags={"model": "resnet"}`.

    Raises:
        ConfigError: an option is unknown or its value is wrong.
    """
    if callable(name):
        return Measurement("", options)(name)
    return Measurement(name or "", options)


class Measurement(EnergyProperties):
    """One use of `measure()`."""

    def __init__(self, name: str, options: dict[str, Any], *, of_function: bool = False) -> None:
        self.name = name or "run"
        self._of_function = of_function
        self.run: RunResult | None = None
        self._given_name = name
        self._options = options
        self._window: Window | None = None
        self._session: Session | None = None
        if options:
            _check(options)

    def begin(self) -> Measurement:
        """Begin a window, and open a run if there is none. A measurement may begin again."""
        going = self._window is not None and self._window.end_s is None
        if going and self._session is _runs.session:
            raise RuntimeError(f"measure(): {self.name!r} has begun and not ended; end() it first")
        self._session = _runs.enter(self.name, self._options, self._of_function)
        self._window = self._session.begin(self.name, parent=current_window())
        return self

    def end(self, status: RunStatus = RunStatus.FINISHED) -> Measurement:
        """End the window; the outermost one also closes the run. Ending twice is harmless."""
        if self._window is None or self._session is None:
            raise RuntimeError("measure(): end() without begin()")
        if self._window.end_s is None:
            self._window.end()
            self.run = _runs.leave(self._session, status, self._of_function)
        return self

    @property
    def has_ended(self) -> bool:
        return self._window is not None and self._window.end_s is not None

    @property
    def is_live(self) -> bool:
        """Whether its run goes on, so that readings of a call that just ended may follow."""
        return self._session is not None and self._session.closed is None

    @property
    def result(self) -> WindowResult:
        """Return energies, times and missing parts; so far while the measurement is open."""
        if self._window is None:
            raise RuntimeError("measure(): nothing measured yet; use 'with' or begin()")
        return self._window.result

    def live_power_w(self) -> dict[str, float]:
        """Return the present power of every domain; usable inside the loop."""
        return self._session.power_w() if self._session is not None else {}

    def live_signals(self) -> dict[str, float]:
        """Return the present utilisation, clocks, temperatures and memory."""
        return self._session.signals() if self._session is not None else {}

    def __repr__(self) -> str:
        if self._window is None:
            return f"<wattloop {self.name!r}: not begun>"
        return f"<wattloop {self.name!r}: {format_result(self.result, self._window.end_s is None)}>"

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
        """Measure every call of a decorated function; coroutines and generators until they are
        done.

        The function gets an attribute `calls` with their number, energy and time (`Calls`).
        """
        name = self._given_name or getattr(function, "__qualname__", type(function).__name__)
        options, calls = self._options, Calls(name)

        def one() -> Measurement:
            return calls.added(Measurement(name, options, of_function=True))

        wrapper = decorate(function, block=one, stretch=lambda: _stretch(one()))
        wrapper.calls = calls  # type: ignore[attr-defined]  # a function takes attributes
        return wrapper


class Calls:
    """All calls of a decorated function in this process.

    Attributes:
        name: the name of the calls.
        count: how many have begun.
        last: the last one, with its own result.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.last: Measurement | None = None
        self._lock = threading.Lock()
        self._open: list[Measurement] = []
        self._energy_j = self._duration_s = 0.0
        self._known = self._missing = 0

    def __reduce__(self) -> tuple[type[Calls], tuple[str]]:
        """A copy of the function in another process counts its own calls."""
        return Calls, (self.name,)

    def added(self, call: Measurement) -> Measurement:
        """Add one call, which has not begun yet."""
        with self._lock:
            self.count += 1
            self.last = call
            if len(self._open) >= SETTLE_AT_ONCE:
                self._settle(every=True)
            self._open.append(call)
        return call

    @property
    def energy_j(self) -> float | None:
        """Joules of all ended calls, simultaneous ones each in full; None where one is not read."""
        with self._lock:
            self._settle()
            unread = self._missing or any(call.has_ended for call in self._open)
            return self._energy_j if self._known and not unread else None

    @property
    def duration_s(self) -> float:
        """Seconds of all ended calls; simultaneous calls count each."""
        with self._lock:
            self._settle()
            waiting = (call.result.duration_s for call in self._open if call.has_ended)
            return self._duration_s + sum(waiting)

    def __repr__(self) -> str:
        energy_j, times = self.energy_j, f"{self.count} call{'s' * (self.count != 1)}"
        missing = "not measured" if self._missing or not self._open else "not all read yet"
        energy = missing if energy_j is None else format_energy(energy_j)
        return f"<wattloop {self.name!r}: {times}, {energy}, {format_duration(self.duration_s)}>"

    def _settle(self, every: bool = False) -> None:
        """Add up ended calls; those without a reading as yet later, unless `every` one is due."""
        waiting = []
        for call in self._open:
            result = call.result if call.has_ended else None
            if result is None or (result.energy_j is None and call.is_live and not every):
                waiting.append(call)
                continue
            self._duration_s += result.duration_s
            self._known += result.energy_j is not None
            self._missing += result.energy_j is None
            self._energy_j += result.energy_j or 0.0
        self._open = waiting


@contextmanager
def _stretch(measurement: Measurement) -> Iterator[None]:
    """Begin and end without becoming the caller's innermost window: other code runs in between."""
    measurement.begin()
    try:
        yield
    except BaseException as error:
        measurement.end(status_after(error))
        raise
    measurement.end()


def active_session() -> Session | None:
    """Return the open run of this process; one that only waits for calls is not open."""
    return _runs.session if _runs.idle_since_s is None else None


class _Runs:
    """The run of this process: opened by the first measurement, closed by the last.

    Opening and closing a run takes a tenth of a second. A function that is called again within
    `LINGER_S` of its last call gets a run that stays open between calls: further calls are windows
    of it. It ends with its last call, as soon as none followed for so long, another measurement
    begins, or the process ends.
    """

    def __init__(self) -> None:
        self.session: Session | None = None
        self._users = 0
        self._lock = threading.Lock()
        self._function = ""
        """Name of the function whose calls share the open run; empty for a run that ends with its
        last measurement."""
        self._last_call = ("", -math.inf)
        self.idle_since_s: float | None = None
        """End of the last call, while the run stays open for another."""
        self._watcher: threading.Thread | None = None

    def enter(self, name: str, options: dict[str, Any], of_function: bool) -> Session:
        if self.idle_since_s is not None and not (of_function and name == self._function):
            self._close_idle()
        with self._lock:
            if self.session is not None and self.idle_since_s is not None:
                self.idle_since_s = None
                self._users = 1
                self.session.enter_environment()
                return self.session
            if self.session is None:
                last, ended_s = self._last_call
                soon = time.monotonic() - ended_s < LINGER_S
                self._function = name if of_function and name == last and soon else ""
                tags = options.get("tags")
                self.session = Session.open(_settings(options), name=name, tags=tags)
            elif options:
                self.session.note(
                    f"'{name}' is a window of the run '{self.session.name}', so its options "
                    f"({', '.join(sorted(options))}) have no effect"
                )
            self._users += 1
            return self.session

    def leave(self, session: Session, status: RunStatus, of_function: bool) -> RunResult | None:
        with self._lock:
            if session is not self.session:
                return session.closed
            self._users -= 1
            if self._users > 0:
                return None
            if of_function:
                self._last_call = (session.name, time.monotonic())
            if self._function and status is RunStatus.FINISHED:
                self.idle_since_s = session.clock.now_s()
                session.leave_environment()
                self._watch()
                return None
            self.session = None
            # A run that begins while this one is being closed is not a part of it.
            session.leave_environment()
        result = session.close(status)
        if of_function:  # the time of closing is not counted as time between two calls
            self._last_call = (session.name, time.monotonic())
        return result

    def _watch(self) -> None:
        """Close the run in a thread when no further call follows; one thread at a time waits."""
        if self._watcher is not None:
            return

        def look() -> None:
            while True:
                time.sleep(min(LINGER_S, 1.0) / 4)
                if time.monotonic() - self._last_call[1] >= LINGER_S:
                    break
            self._watcher = None
            self._close_idle(LINGER_S)

        self._watcher = threading.Thread(target=look, name="wattloop-linger", daemon=True)
        with suppress(RuntimeError):  # the interpreter is shutting down: the run ends with it
            self._watcher.start()

    def _close_idle(self, after_s: float = 0.0) -> None:
        """Close a run that is only open for further calls, as of the end of the last call."""
        with self._lock:
            session, end_s = self.session, self.idle_since_s
            if session is None or end_s is None:
                return
            if time.monotonic() - self._last_call[1] < after_s:
                self._watch()
                return
            self.session = self.idle_since_s = None
        session.close(RunStatus.FINISHED, end_s=end_s)

    def at_exit(self) -> None:
        self._close_idle()
        session, self.session = self.session, None
        if session is not None:
            # The interpreter leaves the exception that ended the program in `sys.last_type`.
            failed = hasattr(sys, "last_type")
            session.close(RunStatus.FAILED if failed else RunStatus.FINISHED)

    def after_fork(self) -> None:
        session, self.session = self.session, None
        self._lock = threading.Lock()
        self._users = 0
        self._watcher = self.idle_since_s = None
        if session is not None:
            session.abandon()


def _settings(options: Mapping[str, Any]) -> Settings:
    from wattloop.core.settings import load_settings

    given = {name: value for name, value in options.items() if name != "tags"}
    return load_settings().overridden(given, "measure()")


def _check(options: Mapping[str, Any]) -> None:
    """Raise errors of options where they are written, not when the decorated function is called."""
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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_runs.after_fork)
