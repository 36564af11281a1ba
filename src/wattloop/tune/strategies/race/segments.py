"""Next segment of a candidate: a rate sweep, a window, a search for its cap, or epochs."""

import math
from collections.abc import Sequence

from wattloop.tune.search_problem import Problem
from wattloop.tune.segment import Progress, RateSweep, Segment, Status, Until
from wattloop.tune.strategies.race.learning_rates import (
    RateAnchor,
    first_sweep,
    nearest_rate,
    pick_rate,
    widen_sweep,
)
from wattloop.tune.strategies.race.runner import Runner, spent_j

MOST_SWEEPS = 3
CAP_TRIES = 2
CAP_S = 30.0
"""Approximate duration of a search for a cap."""
LONGER = 1.5
"""A search for a cap is repeated in a segment that is so many times longer."""
WINDOW_S = 2.0
"""Window over which the energy of an epoch is measured; repeated until it is precise."""
MOST_WINDOWS = 8
ERROR = 0.02


def wants_cap(problem: Problem, runner: Runner) -> bool:
    return _may_have_cap(problem, runner) and not runner.cap_short_s


class Segments:
    """Builder of segments that the executor supports."""

    def __init__(self, problem: Problem, runners: Sequence[Runner]) -> None:
        self.problem = problem
        self._default, *others = runners
        self._anchor = RateAnchor.of(problem, self._default)
        self._compared = self._anchor is None or any(map(self._anchor.compares, others))
        self._windows = True
        self._sweeps = problem.rate is not None

    def next(self, runner: Runner, epochs: float) -> Segment:
        most = self.problem.limits.epochs
        cap, rates = None, self._sweep(runner)
        until = Until(epochs=epochs if most is None else min(epochs, most))
        if rates is None and self._wants_window(runner):
            share = None if most is None else min(1.0, most)
            until = Until(epochs=share, time_s=WINDOW_S, anywhere=True)
        elif rates is None and self._looks_for_cap(runner, until.epochs or epochs):
            cap = self.problem.cap
        return Segment(
            key=f"{runner.name}/{runner.segments}",
            candidate=runner.name,
            parameters=runner.parameters,
            levers=dict(runner.levers),
            until=until,
            seed=self.problem.seed,
            keep=rates is None,
            cap=cap,
            rates=rates,
            learning_rate=runner.learning_rate,
        )

    def epochs_for_cap(self, runner: Runner) -> float:
        """Return the epochs for a cap for which its last segment was too short; 0 if none."""
        epoch = runner.epoch
        if not runner.cap_short_s or epoch is None or not _may_have_cap(self.problem, runner):
            return 0.0
        lasts_s = max(CAP_S, LONGER * runner.cap_short_s)
        return math.ceil(runner.epochs + lasts_s / epoch.time_s) if epoch.time_s > 0 else 0.0

    def windowed(self, runner: Runner, segment: Segment, progress: Progress) -> None:
        """Note an executor that does not report fractions of an epoch; no more are requested."""
        if segment.until.anywhere and progress.status.good:
            self._windows = self._windows and runner.epoch is not None

    def swept(self, runner: Runner, sweep: RateSweep, progress: Progress) -> None:
        """Choose the rate at which the loss falls fastest; sweep again where that is at the edge.

        A default with a stated rate keeps it, and its sweep is the reference for others.
        """
        runner.spent_j += spent_j(progress)
        runner.sweeps += 1
        runner.sweep = None
        if progress.status is Status.NOT_SUPPORTED:
            self._sweeps = False
            return
        assert self.problem.rate is not None
        parameter = self.problem.space.parameters[self.problem.rate]
        found = pick_rate(progress.rates)
        anchor = self._anchor
        if anchor is not None and anchor.compares(runner):
            rate = anchor.compared(runner, progress.rates, found)
            runner.learning_rate = None if rate is None else nearest_rate(rate, parameter)
        elif found is not None:
            runner.learning_rate = nearest_rate(found.rate, parameter)
            if found.edge and runner.sweeps < MOST_SWEEPS:
                runner.sweep = widen_sweep(sweep, found.edge, parameter)

    def _sweep(self, runner: Runner) -> RateSweep | None:
        rate = self.problem.rate
        if not self._sweeps or rate is None or runner.points:
            return None
        if runner is self._default and not self._compared:
            return None
        known = runner.learning_rate is not None or runner.swept is not None
        if runner.sweep is None and runner.sweeps == 0 and not known:
            parameter = self.problem.space.parameters[rate]
            runner.sweep = first_sweep(runner.parameters, rate, parameter)
        return runner.sweep

    def _looks_for_cap(self, runner: Runner, epochs: float) -> bool:
        """Return whether to search for a cap: at once, and again in a longer segment."""
        if wants_cap(self.problem, runner):
            return True
        if not _may_have_cap(self.problem, runner) or runner.epoch is None:
            return False
        expected_s = (epochs - runner.epochs) * runner.epoch.time_s
        return expected_s >= LONGER * runner.cap_short_s

    def _wants_window(self, runner: Runner) -> bool:
        if not self._windows or runner.points or runner.cap is not None:
            return False
        if runner.cap_tries > 0 or runner.cap_short_s > 0:
            return False
        epoch = runner.epoch
        windows = runner.segments - runner.sweeps
        if epoch is None:
            return windows == 0
        if runner.started is None and runner.start is None and windows < 2:
            return True  # the first window may include a start
        return epoch.error > ERROR and windows < MOST_WINDOWS


def _may_have_cap(problem: Problem, runner: Runner) -> bool:
    return problem.cap is not None and runner.cap is None and runner.cap_tries < CAP_TRIES
