"""Selene: jobs that may wait start when electricity is greenest; deadlines are kept."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.schedule.actions import Action, Wake
from wattloop.schedule.objectives import TIME
from wattloop.schedule.policies.aurachronos import AuraChronos
from wattloop.schedule.policies.packing import EDP_AGE_WEIGHT_PER_S
from wattloop.schedule.queue import Columns
from wattloop.schedule.step_function import StepFunction
from wattloop.schedule.view import ClusterView
from wattloop.schedule.yaml_model import seconds

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
DAY_S = 86_400.0
"""Forecasts are day-ahead: no policy looks further."""
SLACK = 0.5
"""Share of the time to its deadline by which a job may be delayed; the rest is for queues."""
LEAST_GAIN = 0.02
"""Share of the emissions or of the price that a delay must save: for less a job does not wait."""


def delay_seconds(value: float | str) -> float:
    """Parse the longest delay of a job: seconds, or a time such as `6 h`.

    Raises:
        ConfigError: it is neither, or negative.
    """
    try:
        found = float(seconds(value))
    except (TypeError, ValueError):
        found = math.nan
    if not 0 <= found < math.inf:
        raise ConfigError(f"delay is {value}; give a time such as 6 h")
    return found


class GreenStart:
    """Choice of waiting jobs that wait for a lower carbon intensity, or price.

        a job waits if mean(later) < mean(now) - LEAST_GAIN |mean(now)|

    A mean is that of the intensity or price over its run time. Prices may be negative.

    The run time is that on its fastest placement. Starts are now or at a change of the
    series, at most `delay_s` after arrival, a day ahead, and within `SLACK` of the time to a
    deadline.

    Attributes:
        wakes: when to decide again.
    """

    def __init__(self, view: ClusterView, delay_s: float) -> None:
        self._view, self._delay_s = view, delay_s
        self._series = view.carbon_g_per_kwh or view.price_per_kwh
        self.wakes: list[Action] = []

    def stays(self, waiting: Columns) -> Bools:
        """Return the jobs that wait for a better time."""
        view, series = self._view, self._series
        none = np.zeros(len(waiting.job), dtype=bool)
        if series is None or not self._delay_s or not len(none):
            return none
        times = view.queue.table(TIME)
        run_s = times.of_jobs(times.costs.min(axis=0))
        latest_s = waiting.arrival_s + self._delay_s
        slack_s = waiting.deadline_s - waiting.arrival_s - run_s * (1 + view.time_error)
        with np.errstate(invalid="ignore"):
            in_time_s = waiting.arrival_s + SLACK * np.maximum(slack_s, 0.0)
        latest_s = np.minimum(np.minimum(latest_s, in_time_s), view.now_s + DAY_S)
        open_ = (latest_s > view.now_s) & np.isfinite(run_s)
        if not open_.any():
            return none
        starts_s = _starts(series, view.now_s, float(latest_s[open_].max()))
        mean = _means(series, starts_s, run_s)
        mean[(starts_s[:, None] > latest_s) & (starts_s[:, None] > view.now_s)] = np.inf
        best = np.argmin(mean, axis=0)
        stays: Bools = (
            open_ & (best > 0) & (mean.min(axis=0) < mean[0] - LEAST_GAIN * np.abs(mean[0]))
        )
        if stays.any():
            self.wakes.append(Wake(float(starts_s[best[stays]].min())))
        return stays


def _starts(series: StepFunction, now_s: float, last_s: float) -> Floats:
    found, time_s = [now_s], series.next_change_s(now_s)
    while time_s <= last_s:
        found.append(time_s)
        time_s = series.next_change_s(time_s)
    return np.array(found)


def _means(series: StepFunction, starts_s: Floats, run_s: Floats) -> Floats:
    """Return the mean of the series from each start over each run time: (starts, jobs).

    F(t), the integral of the series, is linear between its changes: mean = (F(end) - F(start)) / T.
    """
    longest_s = float(np.max(run_s[np.isfinite(run_s)], initial=0.0))
    times_s = [float(starts_s[0])]
    # a period has all values; a longer job has the mean anyway
    end_s = float(starts_s[-1]) + min(longest_s, 2 * DAY_S)
    while times_s[-1] < end_s:
        times_s.append(min(series.next_change_s(times_s[-1]), end_s + 1.0))
    values = [series.at(time_s) for time_s in times_s]
    whole = np.concatenate([[0.0], np.cumsum(np.diff(times_s) * values[:-1])])
    lasts_s = np.clip(run_s, 1.0, end_s - float(starts_s[-1]) + 1.0)
    ends_s = starts_s[:, None] + lasts_s
    found: Floats = np.interp(ends_s, times_s, whole) - np.interp(starts_s, times_s, whole)[:, None]
    return found / lasts_s


class DelayedJobs(AuraChronos):
    """AuraChronos without the jobs that wait for a greener start.

    Attributes:
        delay_s: longest delay of a job after its arrival; 0 for none.
    """

    delay_s = 0.0
    _stays: frozenset[int] = frozenset()

    def decide(self, view: ClusterView) -> Sequence[Action]:
        if not self.delay_s:
            return super().decide(view)
        green, waiting = GreenStart(view, self.delay_s), view.queue.columns()
        self._stays = frozenset(waiting.job[green.stays(waiting)].tolist())
        return [*super().decide(view), *green.wakes]

    def rank(self, view: ClusterView, waiting: Columns, cost: Floats) -> Floats:
        found = super().rank(view, waiting, cost)
        if not self._stays:
            return found
        return np.where(np.isin(waiting.job, list(self._stays)), np.inf, found)

    def _urgent(self, view: ClusterView) -> list[int]:
        return [job for job in super()._urgent(view) if job not in self._stays]


class Selene(DelayedJobs):
    """score = min(P T^2) / (1 + W_age (now - arrival)) of jobs whose greenest start is now.

    Jobs wait for the start with the least mean carbon intensity over their run time (see
    `GreenStart`), without an intensity for the least price. Deadlines are kept as in AuraChronos.

    Args:
        delay: longest delay of a job after its arrival, such as `6 h`; a job with a deadline is
            delayed by at most half of the time that it has to spare.
        age_weight_per_s, most_preemptions, patience: as in AuraChronos.
    """

    name = "selene"

    def __init__(
        self,
        delay: float | str = "6 h",
        age_weight_per_s: float = EDP_AGE_WEIGHT_PER_S,
        most_preemptions: int = 2,
        patience: float = 0.3,
    ) -> None:
        super().__init__(age_weight_per_s, most_preemptions, patience)
        self.delay_s = delay_seconds(delay)
