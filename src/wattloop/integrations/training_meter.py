"""The meter of a training: steps, epochs, live values. All frameworks use this one."""

from __future__ import annotations

import functools
import itertools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from wattloop.core.errors import ConfigError
from wattloop.core.results import RunStatus, WindowResult
from wattloop.integrations.loggers import (
    EnergyLogger,
    EpochReporter,
    StepReporter,
    StepSums,
    active_loggers,
)
from wattloop.integrations.records import EpochRecord, PendingStep, StepRecord
from wattloop.integrations.step_resolver import StepResolver
from wattloop.integrations.step_timeline import Edge, HostTimeline, Timeline, as_number
from wattloop.measure.api import Measurement, active_session
from wattloop.measure.session import RunResult, Session

EDGE_READ_EVERY_S = 0.01
"""Cheap counters are read at the edges of steps, but no more often than this."""
Method = TypeVar("Method", bound=Callable[..., None])
_log = logging.getLogger("wattloop")
REPORT_EVERY_S = 10.0
"""Trackers get the mean of the steps of this time, where the framework has no interval itself."""
NOT_BEGUN = "the meter has not begun: write 'with EnergyMeter() as meter:', or call begin()"
TRAINING = ("epoch_begin", "step_end")
"""What is only called while training; frameworks validate before it, too."""


def _in_the_loop(method: Method) -> Method:
    """A method that does nothing when nothing is measured, and never raises into the loop."""

    @functools.wraps(method)
    def guarded(self: TrainingMeter, *args: Any, **kwargs: Any) -> None:
        if self._usable():
            try:
                method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the training matters more than its energy
                self._give_up(method.__name__, error)
        elif self._session is None and self.fault is None and method.__name__ in TRAINING:
            self._give_up(method.__name__, RuntimeError(NOT_BEGUN))

    return cast("Method", guarded)


class TrainingMeter:
    """Energy of a training, per step and per epoch, readable while it runs.

    Steps and epochs only take times (and cheap readings); joules are computed in the background.
    A step lasts from the end of the step before it to its own end, so that waiting for data is in
    it and the steps of an epoch add up.

    A wrong setting raises `ConfigError` at once. After that nothing here raises into the loop,
    uses a random number, or waits for a device: when something fails, it is logged once and the
    training goes on without being measured.

    Args:
        name: what the run is called.
        loggers: where steps and epochs are reported to, in addition to trackers with an open run.
        options: settings for the run, as `wattloop.measure()` takes them.

    Attributes:
        at_step: the framework's own number of the last step, where trackers show what is
            reported; None counts the steps of this meter.
        report_every_s: seconds of steps that trackers get the mean of.
    """

    def __init__(
        self, name: str = "training", *, loggers: tuple[EnergyLogger, ...] = (), **options: Any
    ) -> None:
        self.epochs: list[EpochRecord] = []
        self.fault: str | None = None
        self._measurement = Measurement(name, options)
        self.loggers = loggers
        self._active: list[EnergyLogger] = []
        self._session: Session | None = None
        self._resolver: StepResolver | None = None
        self._timeline: Timeline | None = None
        self._edge_reads: list[Callable[[], float]] = []
        self._read_s = 0.0
        self._pid = os.getpid()
        self._chain: Edge | None = None
        self._epoch: EpochRecord | None = None
        self._step_numbers = itertools.count()
        self._reporter = EpochReporter(self.reporting)
        self._step_reporter = StepReporter(self.reporting)
        self._steps_done = 0
        self._last_values: dict[str, Any] = {}
        self._reported_s = 0.0
        self.at_step: int | None = None
        self.report_every_s = REPORT_EVERY_S
        self._ended = False

    # -- the run ---------------------------------------------------------------------------

    def begin(self) -> Self:
        """Begin to measure; opens a run if this process has none."""
        self.fault = None
        try:
            self._measurement.begin()
            session = active_session()
            assert session is not None
            self._pid = os.getpid()
            self._session = session
            self._timeline = self._make_timeline(session.clock.now_s)
            feeds = {id(c.feed): c.feed for c in session.channels if c.feed.cheap_at_edges}
            self._edge_reads = [feed.read for feed in feeds.values()]
            self._resolver = StepResolver(session, self._watch_signals)
            self._resolver.start()
            self._chain = self._mark()
            self._reported_s = self._chain.host_s
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - see the class: never into the user's loop
            self._give_up("begin", error)
        return self

    def end(self, status: RunStatus = RunStatus.FINISHED) -> RunResult | None:
        """End; the run's result if this closed it. Ending twice changes nothing."""
        if self._ended or self._session is None or self._forked():
            return self.run
        self._ended = True
        try:
            if self._epoch is not None:
                self.epoch_end()
            if self._timeline is not None:
                self._timeline.finish()
            self._measurement.end(status)
            if self._resolver is not None:
                self._resolver.expect_no_more()
                self.report_steps()
                self._report_due(everything=True)
            self._reporter.report(self.epochs, everything=True)
            self._reporter.report_total(self)
        except Exception as error:  # noqa: BLE001 - see the class
            self._give_up("end", error)
        return self.run

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end(RunStatus.FINISHED if exc_type is None else RunStatus.FAILED)

    # -- steps -----------------------------------------------------------------------------

    @_in_the_loop
    def step_begin(self) -> None:
        """A step begins. Time between two steps belongs to the later one, see `interrupt`."""
        if self._chain is None:
            self._chain = self._mark()

    @_in_the_loop
    def step_end(self, loss: Any = None, **metrics: Any) -> None:
        """A step has ended. `loss` may be a tensor on a GPU; it is not waited for."""
        if loss is not None:
            metrics["loss"] = loss
        begin = self._chain
        end = self._mark(metrics)
        self._chain = end
        if begin is None:
            return
        epoch = self._epoch
        number = next(self._step_numbers)
        if epoch is not None:
            epoch.steps += 1
        assert self._resolver is not None
        self._steps_done = number + 1
        self._last_values = metrics
        self._resolver.add_step(
            PendingStep(number, None if epoch is None else epoch.index, begin, end, metrics)
        )
        if end.host_s - self._reported_s >= self.report_every_s:
            self._reported_s = end.host_s
            self.report_steps()
        self._report_due()

    step_done = step_end

    def log_step(self, **metrics: float) -> None:
        """Metrics of the last step that are known after its end, such as a logged loss."""
        self._last_values.update(metrics)

    def report_steps(self) -> None:
        """Report the mean of the steps since the last report here, once their energy is known."""
        self._step_reporter.mark(self._steps_done, self.last_step)

    def interrupt(self) -> None:
        """Leave what follows (validation, saving) out of steps, until the next one begins."""
        self._chain = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Return a context whose time belongs to no step."""
        self.interrupt()
        try:
            yield
        finally:
            self.step_begin()

    # -- epochs ----------------------------------------------------------------------------

    @_in_the_loop
    def epoch_begin(self, index: int | None = None) -> None:
        """An epoch begins; one that is still open ends here."""
        if self._epoch is not None:
            self.epoch_end()
        self._active = active_loggers(self._active)
        self._reporter.report(self.epochs)
        number = len(self.epochs) if index is None else index
        self._chain = self._mark()
        self._epoch = EpochRecord(number, self._chain, self._resolve_epoch)

    @_in_the_loop
    def epoch_end(self, **metrics: Any) -> None:
        epoch = self._epoch
        if epoch is None:
            return
        self.log(**metrics)
        epoch.end = self._chain = self._mark()
        epoch.at_step = self.at_step
        self._watch_signals()
        self._epoch = None
        self.epochs.append(epoch)
        assert self._resolver is not None
        self._resolver.add_epoch(epoch)
        self._active = active_loggers(self._active)  # runs that are open now may end before us
        self._reporter.report(self.epochs)

    def log(self, **metrics: Any) -> None:
        """Metrics of the epoch that is open, else of the last one."""
        epoch = self._epoch or self.last_epoch
        if epoch is None:
            return
        for name, value in metrics.items():
            number = as_number(value, may_wait=True)
            if number is not None:
                epoch.metrics[name] = number

    def tell_precision(self, name: str) -> None:
        """Which precision the training computes in (`fp32`, `bf16-mixed`): advice asks for it."""
        if self._session is not None and self._usable():
            now_s = self._session.clock.now_s()
            self._session.record({"type": "precision", "time_s": now_s, "value": name})

    # -- live values -----------------------------------------------------------------------

    @property
    def last_epoch(self) -> EpochRecord | None:
        return self.epochs[-1] if self.epochs else None

    @property
    def last_step(self) -> int:
        """Number of the last step, by the framework's count or by that of this meter; without
        steps that of the last epoch.
        """
        if self.at_step is not None:
            return self.at_step
        return self._steps_done or (self.epochs[-1].index if self.epochs else 0)

    @property
    def step_sums(self) -> StepSums:
        """Sums over the steps that were reported to trackers: all of them, at the end."""
        return self._step_reporter.sums

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """Steps whose energy is known; the last ones of a long training."""
        return () if self._resolver is None else tuple(self._resolver.steps)

    @property
    def result(self) -> WindowResult | None:
        """Energies from `begin` to `end`, or so far; None when nothing could be measured."""
        return None if self._session is None else self._measurement.result

    @property
    def session(self) -> Session | None:
        """The session that measures, once begun."""
        return self._session

    @property
    def run(self) -> RunResult | None:
        """The run, once it is closed."""
        return self._measurement.run

    def energy_so_far_j(self) -> float | None:
        """Joules since `begin`."""
        result = self.result
        return None if result is None else result.energy_j

    def power_w(self) -> float | None:
        """Power now, of everything that can be read, each device once."""
        result = self.result
        if result is None or self._session is None:
            return None
        counted = {d.name for d in result.domains if d.in_total}
        powers_w = [w for name, w in self._session.power_w().items() if name in counted]
        return sum(powers_w) if powers_w else None

    def power_by_domain_w(self) -> dict[str, float]:
        """Power of every domain now."""
        return {} if self._session is None else self._session.power_w()

    def signals(self) -> dict[str, float]:
        """Utilisation, clocks, temperatures as last read."""
        return {} if self._session is None else self._session.signals()

    # -- inside ----------------------------------------------------------------------------

    def _make_timeline(self, now_s: Callable[[], float]) -> Timeline:
        return HostTimeline(now_s)

    def _mark(self, values: dict[str, Any] | None = None) -> Edge:
        assert self._timeline is not None
        edge = self._timeline.mark(values)
        if edge.host_s - self._read_s >= EDGE_READ_EVERY_S:
            self._read_s = edge.host_s
            for read in self._edge_reads:
                read()
        return edge

    def _resolve_epoch(self, epoch: EpochRecord) -> WindowResult:
        assert self._resolver is not None
        if epoch.end is not None and epoch.end.time_s is None and self._timeline is not None:
            self._timeline.wait(epoch.end)
        return self._resolver.window(epoch)

    def _watch_signals(self) -> None:
        epoch = self._epoch
        if epoch is not None and self._session is not None:
            epoch.saw_signals(self._session.signals())

    def _report_due(self, *, everything: bool = False) -> None:
        resolved = 0 if self._resolver is None else self._resolver.resolved
        if everything or self._step_reporter.is_due(resolved):
            self._step_reporter.report(self.steps, resolved, everything=everything)

    def reporting(self) -> list[EnergyLogger]:
        """Where epochs and totals are reported to."""
        self._active = active_loggers(self._active)
        return [*self.loggers, *self._active]

    def _usable(self) -> bool:
        return self._resolver is not None and not self._ended and not self._forked()

    def _forked(self) -> bool:
        """A forked child (a data-loading worker) leaves the measuring to its parent."""
        return os.getpid() != self._pid

    def _give_up(self, where: str, error: Exception) -> None:
        self.fault = f"{where}: {type(error).__name__}: {error}"
        _log.warning("the training goes on without being measured: %s", self.fault)
        if self._resolver is not None:
            self._resolver.stop()
            self._resolver = None
