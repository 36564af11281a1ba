"""Least energy within a slowdown limit, found, kept and proven while a program trains.

    saver = Saver(SaverConfig(max_slowdown=0.05), set_setting, energy, caps_w=(150, 200, 250))
    saver.step(at_s)          # for every training step
    saver.interrupt(at_s)     # before an evaluation, a checkpoint, a pause
    saver.tick(now_s)         # now and then, a few times a second
    result = saver.end(now_s)

Like `cap.online` it knows no device, thread or clock.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from wattloop.accounting.energy_delay import Point, objective
from wattloop.cap.curve_model import (
    Array,
    CapReading,
    fit_clock_curves,
    fit_curves,
    physical_curves,
)
from wattloop.cap.finder import FINDER_METRICS, GainInterval, log_metric
from wattloop.cap.online import BURST_S, CapSlice, Energy, ProgressStep, SliceCost
from wattloop.cap.saver.proof import (
    REFERENCE,
    LearnedSetting,
    MeasuredSlice,
    SavingEstimator,
    SavingResult,
    SavingState,
    Setting,
    SettingPeriod,
    SettingReading,
)
from wattloop.core.errors import ConfigError

SetSetting = Callable[[Setting | None], None]
"""Sets every GPU of the job; None restores what was found. May raise LeverError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaverConfig:
    """Goal and durations of a saver.

    Attributes:
        max_slowdown: the run as a whole takes at most this much longer, 0.05 for 5%; None for no
            limit, with a metric that weighs time itself.
        metric, k: what is made smallest within the limit, as `CapFinder` takes them.
        reference_share: share of the time in reference slices, once a setting was chosen.
        observe: never set anything; say what could be saved.
        wait_s: nothing is set before so long of ordinary steps: start-up and short jobs.
        slice_s, hold_s: ordinary steps measured in a reference slice or probe, and in a slice of
            the chosen setting.
        settle_s: after a change of setting this long is not compared.
        least_steps: steps, or bursts of them, of a slice.
        lag_s: sensors show power this late.
        change: relative change of time or power of a step that means another workload.
        patience: for how many slices in a row before it counts.
        idle_s: without a step for this long the reference is restored until steps come again.
        silent_s: without energy readings for this long it gives up.
        first_references: reference slices of each search in addition to the share.
        certainty: probability that the chosen setting keeps the limit.
    """

    max_slowdown: float | None = 0.05
    metric: str = "energy"
    k: float = 2.0
    reference_share: float = 0.02
    observe: bool = False
    wait_s: float = 20.0
    slice_s: float = 6.0
    hold_s: float = 12.0
    settle_s: float = 1.0
    least_steps: int = 6
    lag_s: float = 0.3
    change: float = 0.08
    patience: int = 2
    idle_s: float = 30.0
    silent_s: float = 60.0
    first_references: int = 4
    certainty: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        objective(self.metric, Point(1.0, 1.0), self.k)  # refuses an unknown metric
        if self.metric not in FINDER_METRICS:
            raise ConfigError(
                f"metric '{self.metric}': the saver needs one of {', '.join(FINDER_METRICS)}"
            )
        limit = self.max_slowdown
        if limit is not None and not (math.isfinite(limit) and 0 <= limit <= 10):
            raise ConfigError(f"slowdown limit is {limit:g}; give a share such as 0.05 for 5%")
        if not 0 <= self.reference_share <= 0.5:
            raise ConfigError(
                f"reference share is {self.reference_share:g}; give a share from 0 to 0.5"
            )


MOST_BINS = 4_096
"""Steps, or bursts of them, of a slice in which nothing could be measured."""
PACE_MEMORY = 0.9
IDLE_PACES = 5
"""Without a step for so many times the usual pause between two, no steps come any more."""
SAME_BURST = 0.02
"""A step that follows a burst within this part of its length belongs to it."""


class _Kind(StrEnum):
    REFERENCE = "reference"
    PROBE = "probe"
    HOLD = "hold"


class _Slice:
    """The slice at hand: a setting since `begin_s`, settled since `settled_s`."""

    def __init__(self, setting: Setting, begin_s: float, settled_s: float, target_s: float) -> None:
        self.setting, self.begin_s, self.settled_s = setting, begin_s, settled_s
        self.target_s = target_s
        self.steps = [ProgressStep(begin_s, 1.0)]
        self.look_s = begin_s + target_s

    def measured(self, shown_s: float) -> CapSlice:
        return CapSlice([s for s in self.steps if self.settled_s <= s.at_s <= shown_s])


class Saver:
    """Finds the setting with least energy within the slowdown limit while steps come.

    Nothing here raises after the constructor: where a function that was given fails, the reference
    is restored, `report` says why, and nothing is set any more.

    Args:
        set_setting: sets every GPU; `Setting(cap, None)` leaves the clock as it was found, None
            restores everything. Reference slices are at None.
        energy: of all GPUs together between two moments, which have passed by `lag_s`.
        caps_w, clocks_mhz: values that may be set; those not below the ones found are ignored.
        found: limit and highest clock before the run; needed where caps or clocks are given.
        devices: GPUs that share the energy.
        known: what an earlier run of the same program on the same GPU learned.
    """

    def __init__(
        self,
        config: SaverConfig,
        set_setting: SetSetting,
        energy: Energy,
        *,
        found: Setting = REFERENCE,
        caps_w: Sequence[float] = (),
        clocks_mhz: Sequence[float] = (),
        devices: int = 1,
        known: LearnedSetting | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        for name, values in (("cap", caps_w), ("clock", clocks_mhz)):
            if not all(math.isfinite(value) and value > 0 for value in values):
                raise ConfigError(f"{name}s {list(values)}: every {name} is a number above 0")
        self.config = config
        self.state = SavingState.OBSERVED if config.observe else SavingState.LEFT
        self.reason = "observing only" if config.observe else ""
        self._stopped = False
        self._set, self._energy_of, self._report = set_setting, energy, report
        self._options = _Options(config, found, caps_w, clocks_mhz, devices)
        self._draw = random.Random(config.seed)
        self._estimator = SavingEstimator()
        self._setting = REFERENCE
        self._chosen = REFERENCE
        self._periods: list[SettingPeriod] = []
        # steps
        self._slice: _Slice | None = None
        self._mark_s: float | None = None
        self._last_s = -math.inf
        self._units = 0.0
        self._full_s = math.inf
        """Length of the burst when it became long enough; what follows at once belongs to it."""
        self._pace_s = self._gap_s = 0.0
        """Time between the slowest of the latest steps."""
        self._idle = False
        self._silent_since_s: float | None = None
        # knowledge of the workload
        self._regime = 0
        self._regime_begin_s = 0.0
        self._grants = 1
        self._told = -1
        self._usual: dict[Setting, _Level] = {}
        self._strange: list[MeasuredSlice] = []
        self._reference: SliceCost | None = None
        self._inherited: tuple[SettingReading, ...] = ()
        self._known = known
        self._waiting = True
        self._wait_s = config.wait_s
        if known is not None:
            self._inherited = _doubted(known.readings, KNOWN_DOUBT)
            self._wait_s = min(config.slice_s, config.wait_s)
        self._begin_s = 0.0
        self._first_change_s: float | None = None
        self._next_reference_s = -math.inf
        self._reference_length_s = config.slice_s + config.settle_s
        self._kind = _Kind.REFERENCE
        self._reference_slices = self._saving_slices = 0
        self._reference_s = self._probe_s = 0.0

    # -- fed with --------------------------------------------------------------------------

    def step(self, at_s: float, units: float = 1.0) -> None:
        """Note a step that ended at `at_s`, with `units` of progress."""
        if self._stopped or not math.isfinite(at_s):
            return
        if not (math.isfinite(units) and units > 0):
            self.interrupt(at_s)
            return
        at_s = max(at_s, self._last_s)
        if self._slice is not None:
            # An evaluation is a single long gap; long steps are several in a row.
            gap_s = at_s - self._last_s
            self._pace_s = max(min(gap_s, self._gap_s), PACE_MEMORY * self._pace_s)
            self._gap_s = gap_s
        if self._idle:
            self._resume(at_s)
            return
        if self._slice is None:
            self._begin_s = self._regime_begin_s = self._last_s = self._mark_s = at_s
            self._start(REFERENCE, at_s)
            return
        if self._mark_s is None:  # the first after an interruption only marks the beginning
            self._slice.steps.append(ProgressStep(at_s, units))
            self._mark_s = self._last_s = at_s
            return
        length_s, gap_s = self._last_s - self._mark_s, at_s - self._last_s
        late = at_s - self._mark_s > self._full_s + BURST_S
        closes = length_s >= BURST_S and (late or gap_s > SAME_BURST * length_s)
        if closes or (length_s > 0 and gap_s >= BURST_S):
            self._close_burst()
        self._units += units
        self._last_s = at_s
        if self._full_s == math.inf and at_s - self._mark_s >= BURST_S:
            self._full_s = at_s - self._mark_s
        if closes:
            self._act(at_s)

    def interrupt(self, at_s: float) -> None:
        """Mark what follows as not a step: evaluation, a checkpoint, a pause."""
        if self._stopped or self._slice is None or self._mark_s is None or self._idle:
            return
        self._close_burst()
        at_s = max(at_s, self._last_s)
        self._slice.steps.append(ProgressStep(at_s, None))
        self._mark_s, self._units, self._full_s = None, 0.0, math.inf
        self._act(at_s)

    def tick(self, now_s: float) -> None:
        """Act on what has happened by `now_s`."""
        if self._stopped or self._slice is None or self._idle:
            return
        if self._mark_s is not None:
            length_s = self._last_s - self._mark_s
            if length_s >= BURST_S and now_s - self._last_s > max(SAME_BURST * length_s, 0.05):
                self._close_burst()
        if now_s - self._last_s > max(self.config.idle_s, IDLE_PACES * self._pace_s):
            self._pause(now_s)
        else:
            self._act(now_s)

    def end(self, now_s: float) -> SavingResult:
        """Restore the reference and return what was saved."""
        if self._slice is not None and not self._stopped and not self._idle:
            if self._mark_s is not None:
                self._close_burst()
            self._finish_slice(now_s, last=True)
        if not self._stopped:
            self._stopped = True
            self._restore()
        return self._result()

    def leave(self, why: str) -> None:
        """Restore the reference for good; `end` still returns what was saved until now."""
        if not self._stopped:
            self._stopped = True
            self.reason = why
            self._restore()
            self._report(f"left alone: {why}")

    # -- steps -----------------------------------------------------------------------------

    def _close_burst(self) -> None:
        assert self._slice is not None
        if self._units > 0 and self._mark_s is not None and self._last_s > self._mark_s:
            self._slice.steps.append(ProgressStep(self._last_s, self._units))
            self._mark_s, self._units, self._full_s = self._last_s, 0.0, math.inf

    def _start(
        self,
        setting: Setting,
        now_s: float,
        carried: Sequence[ProgressStep] = (),
        *,
        resumed: bool = False,
    ) -> None:
        """Begin a slice at the last step that the one before it counted."""
        config = self.config
        if setting != self._setting and not self._apply(setting):
            return
        changed = self._slice is not None and (resumed or self._slice.setting != setting)
        begin_s = self._slice_end_s if self._slice is not None else now_s
        target_s = config.hold_s if self._kind is _Kind.HOLD else config.slice_s
        settled_s = now_s + config.settle_s if changed else begin_s
        self._slice = _Slice(setting, begin_s, settled_s, target_s)
        self._slice.steps += carried
        self._slice.look_s = settled_s + target_s

    _slice_end_s = 0.0

    def _act(self, now_s: float) -> None:
        part = self._slice
        if part is None or now_s < part.look_s:
            return
        measured = part.measured(now_s - self.config.lag_s)
        enough = len(measured.steps) > self.config.least_steps
        if (enough and measured.clean_s >= part.target_s) or len(part.steps) > MOST_BINS:
            self._finish_slice(now_s)
        else:
            part.look_s = now_s + part.target_s / 8

    def _finish_slice(self, now_s: float, *, last: bool = False) -> None:
        try:
            self._finish(now_s, last=last)
        except Exception as error:  # noqa: BLE001 - the training matters more than its saving
            self.leave(f"the saver failed: {error or type(error).__name__}")

    def _finish(self, now_s: float, *, last: bool) -> None:
        part = self._slice
        assert part is not None
        shown_s = now_s if last else now_s - self.config.lag_s
        record = self._record(part, shown_s)
        if self._stopped:
            return
        if record is None:
            self._unknown(now_s)
            if self._stopped or last:
                return
            record = MeasuredSlice(
                self._regime, part.setting, part.begin_s, shown_s, None, 0.0, 0.0, 0.0
            )
        else:
            self._silent_since_s = None
        self._estimator.add(record)
        self._count(record)
        self._slice_end_s = record.end_s
        if last:
            return
        carried = [step for step in part.steps if step.at_s > record.end_s]
        self._start(self._next(record, now_s), now_s, carried)

    def _record(self, part: _Slice, shown_s: float) -> MeasuredSlice | None:
        """Measure a slice up to its last step shown; None without energy readings."""
        whole = CapSlice([step for step in part.steps if step.at_s <= shown_s])
        end_s = whole.steps[-1].at_s if whole.steps else part.begin_s
        parts = whole.undisturbed()
        train_s = sum(p[-1].at_s - p[0].at_s for p in parts)
        train_j = 0.0
        for steps in parts:
            known = self._energy(steps[0].at_s, steps[-1].at_s)
            if known is None:
                return None
            train_j += known[0]
        other_s = max(0.0, end_s - part.begin_s - train_s)
        other_j = 0.0
        if other_s > 0.5:
            known = self._energy(part.begin_s, end_s)
            other_j = max(0.0, known[0] - train_j) if known is not None else 0.0
        measured = part.measured(shown_s)
        cost = measured.cost(self._energy) if len(measured.steps) > 1 else None
        return MeasuredSlice(
            self._regime,
            part.setting,
            part.begin_s,
            end_s,
            cost,
            measured.clean_s,
            train_s,
            train_j,
            other_s,
            other_j,
        )

    def _count(self, record: MeasuredSlice) -> None:
        if record.setting != REFERENCE:
            self._saving_slices += 1
        elif self._kind is _Kind.REFERENCE:
            self._reference_slices += 1
            if self._first_change_s is not None:
                self._reference_s += record.train_s

    def _energy(self, begin_s: float, end_s: float) -> tuple[float, float] | None:
        if self._stopped or end_s <= begin_s:
            return None
        try:
            known = self._energy_of(begin_s, end_s)
        except Exception as error:  # noqa: BLE001 - the training matters more than its saving
            self.leave(f"the GPUs' energy cannot be read: {error or type(error).__name__}")
            return None
        if known is None or not math.isfinite(known[0]) or known[0] <= 0:
            return None
        return known[0], known[1] if math.isfinite(known[1]) and known[1] >= 0 else 0.05

    def _unknown(self, now_s: float) -> None:
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        elif now_s - self._silent_since_s >= self.config.silent_s:
            silent_s = now_s - self._silent_since_s
            self.leave(f"not all GPUs could be read for {silent_s:.0f} s")

    # -- levers ----------------------------------------------------------------------------

    def _apply(self, setting: Setting) -> bool:
        if self.config.observe:
            return True
        try:
            self._set(None if setting == REFERENCE else setting)
        except Exception as error:  # noqa: BLE001 - the training matters more than its saving
            self.leave(str(error) or type(error).__name__)
            return False
        if setting != REFERENCE:
            self.state = SavingState.APPLIED
            if self._first_change_s is None:
                self._first_change_s = self._last_s
        self._setting = setting
        return True

    def _restore(self) -> None:
        if self.state is not SavingState.OBSERVED:
            try:
                self._set(None)
            except Exception as error:  # noqa: BLE001 - what sets levers restores them on its exit, too
                self._report(f"the setting could not be restored: {error}")
            else:
                self._setting = REFERENCE

    def _pause(self, now_s: float) -> None:
        """No steps any more: the work is not the one that the setting was chosen for."""
        assert self._slice is not None
        self._finish_slice(now_s, last=True)
        if self._stopped:
            return
        if self._setting != REFERENCE:
            self._report(f"no step for {now_s - self._last_s:.0f} s: restored until steps come")
            self._apply(REFERENCE)
        self._idle = True

    def _resume(self, at_s: float) -> None:
        self._idle = False
        known = self._energy(self._slice_end_s, at_s)
        if self._stopped:
            return
        self._estimator.other_s += at_s - self._slice_end_s
        self._estimator.other_j += known[0] if known is not None else 0.0
        self._estimator.break_off()
        self._slice_end_s, self._kind = at_s, _Kind.HOLD
        self._start(self._chosen, at_s, resumed=True)
        self._mark_s = self._last_s = at_s
        self._units = 0.0

    # -- the workload ----------------------------------------------------------------------

    def _next(self, record: MeasuredSlice, now_s: float) -> Setting:
        """Return the setting of the next slice, and note its kind."""
        if record.setting == REFERENCE and record.cost is not None:
            self._reference = record.cost
        if self._waiting:
            self._kind = _Kind.REFERENCE
            if not self._waited(record):
                return REFERENCE
            self._waiting = False
            self._verify_known()
        elif self._changed(record):
            self._begin_regime(now_s)
        if record.setting == REFERENCE and self._kind is _Kind.REFERENCE:
            self._reference_length_s = max(record.train_s, 1e-3)
            self._next_reference_s = now_s + self._reference_gap_s(now_s)
        return self._plan(record, now_s)

    def _waited(self, record: MeasuredSlice) -> bool:
        """Return True when the start-up is over: long enough, and two slices alike."""
        cost, before = record.cost, self._usual.get(REFERENCE)
        if cost is None:
            return False
        level = _Level(math.log(cost.time_s), math.log(cost.power_w), cost.noise)
        self._usual[REFERENCE] = level
        waited_s = record.end_s - self._begin_s
        if waited_s < self._wait_s:
            return False
        alike = before is not None and not level.differs(before, self.config.change)
        return alike or self._known is not None or waited_s >= MOST_WAITS * self._wait_s

    def _verify_known(self) -> None:
        """Forget what another run learned of a program that draws another power."""
        if self._known is None or self._reference is None:
            return
        drift = abs(math.log(self._reference.power_w / max(self._known.reference_power_w, 1e-9)))
        if drift > OTHER_POWER:
            self._report("the power is not that of the run before: searching again")
            self._inherited = ()

    def _changed(self, record: MeasuredSlice) -> bool:
        """Return True when steps at the same setting are others than they were, for some slices."""
        if record.cost is None:
            return False
        cost = record.cost
        noise = self._estimator.noise(record.measured_s)
        level = _Level(math.log(cost.time_s), math.log(cost.power_w), noise)
        usual = self._usual.get(record.setting)
        if usual is None:
            self._usual[record.setting] = level
            return False
        if self._regime < MOST_REGIMES and level.differs(usual, self.config.change):
            self._strange.append(record)
            return len(self._strange) >= self.config.patience
        self._strange.clear()
        self._usual[record.setting] = usual.moved(level)
        return False

    def _begin_regime(self, now_s: float) -> None:
        self._report("the work has changed: comparing with the reference again")
        self._inherited = _doubted(self._readings(), REGIME_DOUBT)
        self._regime += 1
        self._estimator.change_work(self._strange, self._regime)
        self._usual.clear()
        self._strange.clear()
        elapsed_s = now_s - self._begin_s
        if self._grants < 1 + elapsed_s / GRANT_S:
            self._grants += 1
        self._regime_begin_s = now_s
        self._next_reference_s = now_s

    def _readings(self) -> tuple[SettingReading, ...]:
        """Readings of this workload; for settings without any, those of an earlier one."""
        own = self._estimator.readings(self._regime)
        settings = {reading.setting for reading in own}
        for reading in own:
            for other in self._inherited:
                if other.setting == reading.setting and _contradict(reading, other):
                    self._inherited = ()
                    break
        return own + tuple(r for r in self._inherited if r.setting not in settings)

    # -- the plan --------------------------------------------------------------------------

    def _reference_gap_s(self, now_s: float) -> float:
        share = self.config.reference_share
        usual_s = self._reference_length_s / share if share > 0 else math.inf
        early_s = max((now_s - self._regime_begin_s) / 3, 2 * self.config.hold_s)
        # Random, so that it falls into no step with the program's own periods.
        return self._draw.uniform(0.6, 1.4) * min(usual_s, early_s)

    def _may_reference(self, now_s: float) -> bool:
        since_s = now_s - (self._first_change_s if self._first_change_s is not None else now_s)
        first_s = self._grants * self.config.first_references * self._reference_length_s
        allowed_s = first_s + self.config.reference_share * since_s
        return self._reference_s + self._reference_length_s <= allowed_s

    def _plan(self, record: MeasuredSlice, now_s: float) -> Setting:
        was_probe = self._kind is _Kind.PROBE
        if was_probe:
            self._probe_s += record.train_s
        self._kind = _Kind.HOLD
        if self.config.observe or self._reference is None or not self._options.settings:
            self._kind = _Kind.REFERENCE
            return REFERENCE
        readings = self._readings()
        belief = self._options.belief(self._reference, readings)
        reference_s, extra_s, error_s = self._estimator.extra()
        elapsed_s = max(now_s - self._begin_s, 1.0)
        limit = self.config.max_slowdown
        unspent_s = math.inf if limit is None else limit * reference_s - extra_s - error_s
        horizon_s = max(HORIZON_S, elapsed_s / 2)
        allowed = math.inf
        if limit is not None:
            allowed = min(max(limit + unspent_s / horizon_s, 0.0), limit + MOST_OVER)
        choice = belief.choice(allowed, self.config.certainty, self._chosen)
        if choice != self._chosen or not self._periods:
            self._chosen = choice
            self._periods.append(SettingPeriod(now_s, choice))
            if len(self._periods) > MOST_PERIODS:
                del self._periods[MOST_PERIODS // 2]
            # Two settings may take turns; the first of each workload is enough to know.
            if choice != REFERENCE and self._told != self._regime:
                self._told = self._regime
                self._report(f"setting: {choice}")
        if self._wants_reference(record, readings, now_s):
            self._kind = _Kind.REFERENCE
            return REFERENCE
        probe_s = self.config.slice_s + self.config.settle_s
        if not was_probe and self._probe_s <= FIRST_PROBES * probe_s + PROBE_SHARE * elapsed_s:
            over = math.inf if limit is None else limit + max(unspent_s, 0.0) / (2 * probe_s)
            worth = max(LEAST_WORTH, PROBE_PRICE * probe_s / elapsed_s)
            probe = belief.probe(choice, allowed, over, worth, self.config.certainty)
            if probe is not None:
                self._kind = _Kind.PROBE
                return probe
        return choice

    def _wants_reference(
        self, record: MeasuredSlice, readings: Sequence[SettingReading], now_s: float
    ) -> bool:
        if record.setting == REFERENCE:
            return False
        due = now_s >= self._next_reference_s
        unread = all(r.setting != record.setting for r in readings)
        return (due or unread) and self._may_reference(now_s)

    # -- the result ------------------------------------------------------------------------

    def _result(self) -> SavingResult:
        estimator = self._estimator
        train_s, train_j = estimator.totals()
        saved = estimator.estimate()
        expected = None
        if self._reference is not None and (self.state is not SavingState.APPLIED):
            expected = self._options.expected(self._reference, self._inherited)
        reason = self.reason
        if self.state is SavingState.LEFT and not reason:
            reason = "the work ended before a setting could pay"
            if not self._options.settings:
                reason = "no setting can be chosen"
        return SavingResult(
            self.state,
            reason,
            tuple(self._periods),
            saved_pct=saved.saved_pct if saved is not None else None,
            saved_j=saved.saved_j if saved is not None else None,
            slowdown_pct=saved.slowdown_pct if saved is not None else None,
            expected_pct=expected,
            reference_slices=self._reference_slices,
            saving_slices=self._saving_slices,
            pairs=estimator.pairs,
            reference_s=self._reference_s,
            train_s=train_s,
            train_j=train_j,
            other_s=estimator.other_s,
            other_j=estimator.other_j,
            unproven_j=saved.unproven_j if saved is not None else 0.0,
            learned=self._learned(),
        )

    def _learned(self) -> LearnedSetting | None:
        readings = self._estimator.readings(self._regime)
        if self._reference is None or not readings:
            return None
        return LearnedSetting(
            self._chosen, self._reference.power_w, self._reference.time_s, readings
        )


KNOWN_DOUBT = 0.02
"""Another run of the same program differs by so much."""
REGIME_DOUBT = 0.05
OTHER_POWER = 0.15
MOST_PERIODS = 1_000
MOST_REGIMES = 200
"""Work that has changed so often is taken as it is: a mixture that never stays the same."""
GRANT_S = 300.0
"""Work that changes all the time gets first reference slices no more often than this."""
MOST_WAITS = 5
HORIZON_S = 60.0
MOST_OVER = 0.005
"""A setting may be slower than the limit by this much, to spend what others have left."""
LEAST_WORTH = 0.002
FIRST_PROBES = 6
PROBE_SHARE = 0.05
"""Time in probes at most: so many of them, and this part of the time."""
PROBE_PRICE = 0.1
"""A probe costs about this part of the energy while it lasts, and pays over the time elapsed."""
HYSTERESIS = 0.003


class _Level(NamedTuple):
    log_time: float
    log_power: float
    noise: float

    def differs(self, other: "_Level", change: float) -> bool:
        limit = max(change, 4 * math.hypot(self.noise, other.noise))
        time, power = self.log_time - other.log_time, self.log_power - other.log_power
        return max(abs(time), abs(power)) > limit

    def moved(self, other: "_Level") -> "_Level":
        a, b = 0.8, 0.2
        return _Level(
            a * self.log_time + b * other.log_time,
            a * self.log_power + b * other.log_power,
            a * self.noise + b * other.noise,
        )


def _doubted(readings: Sequence[SettingReading], doubt: float) -> tuple[SettingReading, ...]:
    return tuple(
        r._replace(noise=math.hypot(r.noise, doubt), power_noise=math.hypot(r.power_noise, doubt))
        for r in readings
    )


def _contradict(own: SettingReading, other: SettingReading) -> bool:
    limit = 3 * math.hypot(own.noise, other.noise)
    time, energy = own.log_time - other.log_time, own.log_energy - other.log_energy
    return max(abs(time), abs(energy)) > limit


class _Belief:
    """Possible curves (rows) over the settings (columns), next to the reference."""

    def __init__(
        self,
        settings: Sequence[Setting],
        log_time: Array,
        log_power: Array,
        metric: str,
        k: float,
        read: frozenset[Setting],
    ) -> None:
        self.settings = settings
        self.log_time = log_time
        self.log_energy = log_time + log_power
        zero = np.zeros((len(log_time), 1))
        time, power = np.hstack([log_time, zero]), np.hstack([log_power, zero])
        values = log_metric(time, power, metric, k)
        self.metric: Array = values[:, :-1] - values[:, -1:]
        # What lies between readings and the reference is known well enough to be chosen.
        cap_w = min((s.cap_w for s in read if s.cap_w is not None), default=math.inf)
        clock_mhz = min((s.clock_mhz for s in read if s.clock_mhz is not None), default=math.inf)
        self._between = np.array(
            [(s.cap_w or 0.0) >= cap_w or (s.clock_mhz or 0.0) >= clock_mhz for s in settings]
        )

    def choice(self, allowed: float, certainty: float, current: Setting) -> Setting:
        """Return the best setting that keeps within `allowed` with some certainty."""
        value = self.metric.mean(axis=0)
        slow = np.quantile(self.log_time, certainty, axis=0)
        fits = (slow <= math.log1p(allowed)) & self._between & (value < 0)
        if not fits.any():
            return REFERENCE
        best = int(np.argmin(np.where(fits, value, np.inf)))
        if current in self.settings:
            own = self.settings.index(current)
            if fits[own] and value[own] <= value[best] + HYSTERESIS:
                return current
        return self.settings[best]

    def probe(
        self, choice: Setting, allowed: float, over: float, worth: float, certainty: float
    ) -> Setting | None:
        """Return the setting whose probe promises most over `choice`; None if none is worth it."""
        own = (
            self.metric[:, self.settings.index(choice)]
            if choice in self.settings
            else np.zeros(len(self.metric))
        )
        gain = np.maximum(own[:, None] - self.metric, 0.0)
        gain = np.where(self.log_time <= math.log1p(allowed), gain, 0.0).mean(axis=0)
        slow = np.quantile(self.log_time, certainty, axis=0)
        gain = np.where(slow <= math.log1p(over), gain, 0.0)
        order = (int(index) for index in np.argsort(-gain))
        best = next((index for index in order if self.settings[index] != choice), None)
        return None if best is None or gain[best] < worth else self.settings[best]


class _Options:
    """The settings that may be chosen, and what is believed of them."""

    def __init__(
        self,
        config: SaverConfig,
        found: Setting,
        caps_w: Sequence[float],
        clocks_mhz: Sequence[float],
        devices: int,
    ) -> None:
        self.config, self.devices = config, devices
        highest_w = found.cap_w if found.cap_w is not None else max(caps_w, default=0.0)
        highest_mhz = found.clock_mhz if found.clock_mhz is not None else max(clocks_mhz, default=0)
        self.caps_w = [*sorted({float(c) for c in caps_w if c < highest_w}), highest_w]
        self.clocks_mhz = [*sorted({float(c) for c in clocks_mhz if c < highest_mhz}), highest_mhz]
        self.settings = [Setting(cap_w, None) for cap_w in self.caps_w[:-1]]
        self.settings += [Setting(None, clock) for clock in self.clocks_mhz[:-1]]
        self._key: object = None
        self._belief: _Belief | None = None

    def belief(self, reference: SliceCost, readings: Sequence[SettingReading]) -> _Belief:
        # Readings that hardly moved are not worth the milliseconds of another fit.
        key = (
            round(math.log(reference.power_w), 2),
            *((r.setting, round(r.log_time, 3), round(r.log_energy, 3)) for r in readings),
            *((round(math.log(r.noise), 1), round(math.log(r.power_noise), 1)) for r in readings),
        )
        if self._belief is None or key != self._key:
            self._key, self._belief = key, self._fit(reference, readings)
        return self._belief

    def _fit(self, reference: SliceCost, readings: Sequence[SettingReading]) -> _Belief:
        power = math.log(reference.power_w / self.devices)
        times, powers = [], []
        if len(self.caps_w) > 1:
            own = [
                CapReading(
                    self.caps_w.index(r.setting.cap_w),
                    r.log_time,
                    power + r.log_energy - r.log_time,
                    r.noise,
                    r.power_noise,
                )
                for r in readings
                if r.setting.cap_w in self.caps_w[:-1] and r.setting.clock_mhz is None
            ]
            own.append(CapReading(len(self.caps_w) - 1, 0.0, power, REFERENCE_NOISE))
            curves = fit_curves(physical_curves(CURVES), np.array(self.caps_w), own)
            times.append(curves.sampled_time[:, :-1] - curves.sampled_time[:, -1:])
            powers.append(curves.sampled_power[:, :-1] - curves.sampled_power[:, -1:])
        if len(self.clocks_mhz) > 1:
            own = [
                CapReading(
                    self.clocks_mhz.index(r.setting.clock_mhz),
                    r.log_time,
                    r.log_energy - r.log_time,
                    r.noise,
                    r.power_noise,
                )
                for r in readings
                if r.setting.clock_mhz in self.clocks_mhz[:-1] and r.setting.cap_w is None
            ]
            own.append(CapReading(len(self.clocks_mhz) - 1, 0.0, 0.0, REFERENCE_NOISE))
            clocks = np.array(self.clocks_mhz) / self.clocks_mhz[-1]
            curves = fit_clock_curves(clocks, own)
            times.append(curves.sampled_time[:, :-1] - curves.sampled_time[:, -1:])
            powers.append(curves.sampled_power[:, :-1] - curves.sampled_power[:, -1:])
        return _Belief(
            self.settings,
            np.hstack(times),
            np.hstack(powers),
            self.config.metric,
            self.config.k,
            frozenset(r.setting for r in readings),
        )

    def expected(
        self, reference: SliceCost, readings: Sequence[SettingReading]
    ) -> GainInterval | None:
        """Return the saving in per cent that the belief expects within the limit."""
        if not self.settings:
            return None
        belief = self._fit(reference, readings)
        limit = math.inf if self.config.max_slowdown is None else self.config.max_slowdown
        fits = belief.log_time <= math.log1p(limit)
        best = np.where(fits, belief.metric, np.inf)
        rows, columns = np.arange(len(best)), best.argmin(axis=1)
        gain = -100 * np.expm1(belief.log_energy[rows, columns])
        gain = np.where(np.isfinite(best[rows, columns]), np.maximum(gain, 0.0), 0.0)
        low, high = np.quantile(gain, (0.05, 0.95))
        return GainInterval(float(gain.mean()), float(low), float(high))


REFERENCE_NOISE = 0.003
CURVES = 5_000
"""Of the physical family; a training is not to wait for a finer belief."""
