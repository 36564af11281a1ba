"""Measurement of a block of this process."""

import time

from wattloop.check.counters import OwnCounters
from wattloop.check.figures import SENSED, Execution, FigureReading, Kind, energy_reading
from wattloop.core.settings import Settings
from wattloop.measure.session import Session
from wattloop.measure.windows import Window

SETTLE_S = 1.0
"""How long to wait for a slow sensor to be read once more after the block."""
LOOK_EVERY_S = 0.005


class Probe:
    """Measures blocks, one after the other. Nothing is stored.

    `reason` says why there are no joules; empty where there are.
    """

    def __init__(self, settings: Settings, *, sensors: bool = True) -> None:
        self.reason = "sensors were not asked for"
        self._session: Session | None = None
        self._window: Window | None = None
        self._counters: OwnCounters | None = None
        self._begin_s = 0.0
        if sensors:
            self._open(settings)

    def begin(self) -> None:
        if self._session is not None:
            self._window = self._session.begin("check")
        self._begin_s = time.perf_counter()
        self._counters = OwnCounters()

    def end(self) -> Execution:
        assert self._counters is not None
        found: dict[Kind, FigureReading] = self._counters.end()
        found[Kind.TIME] = FigureReading(time.perf_counter() - self._begin_s)
        if self._session is not None and self._window is not None:
            self._window.end()
            energy = energy_reading(self._settled(self._session, self._window).result)
            if energy is not None:
                found[Kind.ENERGY] = energy
        return found

    def drop(self) -> None:
        """End it without asking what it used."""
        if self._counters is not None:
            self._counters.end()
        if self._window is not None:
            self._window.end()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> "Probe":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, settings: Settings) -> None:
        # A sampler process would save 10 reads a second, and cost more by being started.
        settings = settings._replace(sampler="thread")
        session = Session.open(settings, name="check", keep=False)
        if any(channel.domain.provenance in SENSED for channel in session.channels):
            self._session, self.reason = session, ""
            return
        estimated = [channel.domain.name for channel in session.channels]
        self.reason = "no sensor can be read here"
        if estimated:
            self.reason += f" ({', '.join(estimated)} would only be estimated)"
        session.close()

    @staticmethod
    def _settled(session: Session, window: Window) -> Window:
        assert window.end_s is not None
        until_s = time.monotonic() + SETTLE_S
        while not session.settled(window.end_s) and time.monotonic() < until_s:
            time.sleep(LOOK_EVERY_S)
        return window
