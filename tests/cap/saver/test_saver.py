"""Promises of the saver on simulated time: limit, search, verification and faults."""

import math
import random
from dataclasses import replace

import pytest

from wattloop.cap.online import SliceCost
from wattloop.cap.saver.proof import (
    REFERENCE,
    LearnedSetting,
    MeasuredSlice,
    SavingEstimator,
    SavingResult,
    SavingState,
    Setting,
    SettingReading,
    format_saving,
)
from wattloop.cap.saver.saver import Saver, SaverConfig
from wattloop.core.errors import ConfigError, LeverError
from wattloop.core.results import student_95

CAPS = [100.0, 125.0, 150.0, 175.0, 200.0, 225.0]
FOUND = Setting(250.0, None)
HEAVY = {100: (1.9, 99), 125: (1.43, 123), 150: (1.18, 145), 175: (1.095, 165)} | {
    200: (1.042, 184),
    225: (1.017, 206),
    250: (1.0, 222),
}


class Training:
    """A training whose step time and power follow the cap, on its own clock."""

    def __init__(self, work=HEAVY, *, step_s=0.1, known=None, devices=1, **options):
        self.work, self.now_s, self.setting, self.step_s = work, 0.0, REFERENCE, step_s
        self.powers: list[tuple[float, float, float]] = []
        self.set: list[Setting | None] = []
        self.messages: list[str] = []
        self.refuse = False
        self.steps = 0
        self.devices = devices
        self.saver = Saver(
            SaverConfig(**options),
            self.change,
            self.energy,
            found=FOUND,
            caps_w=CAPS,
            devices=devices,
            known=known,
            report=self.messages.append,
        )

    def change(self, setting):
        self.set.append(setting)
        if self.refuse and setting is not None:
            raise RuntimeError("no permission")
        self.setting = setting or REFERENCE

    def energy(self, begin_s, end_s):
        joules = 0.0
        for begin, end, power_w in reversed(self.powers):
            if end <= begin_s:
                break
            joules += max(0.0, min(end, end_s) - max(begin, begin_s)) * power_w
        return joules, 0.001

    @property
    def saved_pct(self):
        """Return the true saving: the time and power of as many steps at the reference, less
        those used.
        """
        spent_j = sum((end - begin) * power_w for begin, end, power_w in self.powers)
        slowdown, power_w = self.work[250]
        return 100 * (1 - spent_j / (self.steps * self.step_s * slowdown * power_w * self.devices))

    def train(self, seconds):
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            slowdown, power_w = self.work[int(self.setting.cap_w or 250)]
            length_s = self.step_s * slowdown
            self.powers.append((self.now_s, self.now_s + length_s, power_w * self.devices))
            self.steps += 1
            self.now_s += length_s
            self.saver.step(self.now_s)
            self.saver.tick(self.now_s)
        return self

    def end(self):
        return self.saver.end(self.now_s)


def test_least_energy_within_the_limit_is_found_and_verified():
    """Promise: it finds the best cap within 5%, restores at the end, and states a saving near
    the true one.
    """
    training = Training().train(900)
    assert training.setting == Setting(200.0, None)
    result = training.end()
    assert result.state is SavingState.APPLIED
    assert training.set[-1] is None
    assert abs(result.saved_pct.value - training.saved_pct) < 0.1
    assert result.saved_pct.value > 12
    assert 3 < result.slowdown_pct.value < 5
    assert result.learned.setting == Setting(200.0, None)
    assert SavingResult.from_dict(result.to_dict()) == result
    assert LearnedSetting.from_dict(result.learned.to_dict()) == result.learned


def test_a_short_job_gets_no_setting():
    """Promise: no lever is set before the setting can pay off."""
    training = Training().train(15)
    result = training.end()
    assert result.state is SavingState.LEFT
    assert "before a setting could pay" in result.reason
    assert all(setting is None for setting in training.set)


def test_a_lever_that_refuses_is_restored_and_left_alone():
    """Promise: a fault of a lever ends the saver, but not the training."""
    training = Training()
    training.refuse = True
    result = training.train(120).end()
    assert result.state is SavingState.LEFT
    assert result.reason == "no permission"
    assert training.set[-1] is None


def test_an_observer_sets_nothing_and_says_what_it_expects():
    training = Training(observe=True).train(60)
    result = training.end()
    assert training.set == []
    assert result.state is SavingState.OBSERVED
    assert result.expected_pct.high > 5


@pytest.mark.parametrize("devices", [1, 8])
def test_the_next_run_starts_from_the_stored_setting(devices):
    """Promise: the next run of the same program reaches its best setting within seconds."""
    learned = Training(devices=devices).train(900).end().learned
    training = Training(known=learned, devices=devices).train(30)
    assert training.setting == Setting(200.0, None)


LIGHT = dict.fromkeys(HEAVY, (1.0, 60.0))
OTHER = {cap: (2.5 * slowdown**0.2, power_w * 0.6) for cap, (slowdown, power_w) in HEAVY.items()}
ALLOWED = {None, *(Setting(cap, None) for cap in CAPS)}


class Noisy(Training):
    """The same training with 2% of noise and drift, from a seed."""

    def __init__(self, seed, *args, **options):
        super().__init__(*args, **options)
        self.draw = random.Random(seed)
        self.reference_j = self.reference_s = self.spent_j = 0.0

    def train(self, seconds):
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            slowdown, power_w = self.work[int(self.setting.cap_w or 250)]
            wander = 0.02 * math.sin(self.now_s / 97)
            slow = math.exp(self.draw.gauss(0, 0.02) + wander)
            heavy = math.exp(self.draw.gauss(0, 0.02))
            length_s = self.step_s * slowdown * slow
            self.powers.append((self.now_s, self.now_s + length_s, power_w * heavy))
            self.spent_j += length_s * power_w * heavy
            self.reference_j += self.step_s * slow * self.work[250][1] * heavy
            self.reference_s += self.step_s * slow
            self.now_s += length_s
            self.saver.step(self.now_s)
            self.saver.tick(self.now_s)
        return self


@pytest.mark.parametrize("seed", range(4))
def test_only_allowed_settings_are_set_and_the_limit_holds_with_noise(seed):
    """Promise: it sets only the given caps, and is slower than the limit by half a point at
    most.
    """
    training = Noisy(seed, step_s=0.3).train(1200)
    result = training.end()
    assert set(training.set) <= ALLOWED
    assert training.now_s / training.reference_s - 1 < 0.055
    truth = 100 * (1 - training.spent_j / training.reference_j)
    assert truth > 8
    assert abs(result.saved_pct.value - truth) < 1.5


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1])
def test_reference_time_is_within_its_share(share):
    """Promise: reference time never exceeds its share and the first slices."""
    training = Noisy(1, reference_share=share, step_s=0.3).train(1500)
    result = training.end()
    length_s = 9.0  # a slice of 6 s after 1 s of settling, and a few steps
    assert result.reference_s <= share * 1500 + (4 + 1) * length_s


@pytest.mark.parametrize("fails", [1, 2, 4])
@pytest.mark.parametrize("which", ["set", "energy"])
def test_any_fault_restores_and_leaves_alone(which, fails):
    """Promise: after the first fault of a lever or a meter no lever is set."""
    training = Training()
    calls = {"set": 0, "energy": 0}
    change, energy = training.change, training.energy

    def set_setting(setting):
        calls["set"] += setting is not None
        if which == "set" and setting is not None and calls["set"] == fails:
            raise LeverError("the driver refuses")
        change(setting)

    def read(begin_s, end_s):
        calls["energy"] += 1
        if which == "energy" and calls["energy"] == 10 * fails:
            raise OSError("the meter is gone")
        return energy(begin_s, end_s)

    training.saver._set, training.saver._energy_of = set_setting, read
    training.train(600)
    assert training.setting == REFERENCE
    after = len(training.set)
    result = training.train(60).end()
    assert training.set[after:] in ([], [None])
    assert "refuses" in result.reason or "gone" in result.reason
    assert any("left alone" in message for message in training.messages)


def test_energies_that_are_not_numbers_are_missing_ones():
    """Promise: NaN is not a reading; after a minute without any reading the saver gives up."""
    training = Training()
    training.train(120)
    training.saver._energy_of = lambda begin_s, end_s: (math.nan, math.nan)
    result = training.train(300).end()
    assert training.setting == REFERENCE
    assert "could be read" in result.reason
    assert math.isfinite(result.train_j)


def test_a_passing_gap_of_the_meter_is_survived():
    training = Training().train(120)
    energy = training.saver._energy_of
    training.saver._energy_of = lambda begin_s, end_s: None
    training.train(30)
    training.saver._energy_of = energy
    result = training.train(600).end()
    assert result.state is SavingState.APPLIED and not result.reason
    assert abs(result.saved_pct.value - training.saved_pct) < 1


def test_steps_in_bursts_are_paced_by_the_burst():
    """Promise: a program that waits for its GPU every 32 steps looks like one with long steps."""
    training = Training()
    saver, pending = training.saver, []
    plain = saver.step

    def step(at_s, units=1.0):
        pending.append(at_s)
        if len(pending) == 32:
            for number in range(32):
                plain(at_s + 1e-5 * number, units)
            pending.clear()

    saver.step = step
    training.train(1500)
    result = training.end()
    assert training.setting == REFERENCE
    assert result.learned.setting == Setting(200.0, None)
    assert abs(result.saved_pct.value - training.saved_pct) < 1


def test_a_step_that_never_comes_again_restores_the_reference():
    """Promise: a setting was chosen for work with steps, so it ends when no steps come."""
    training = Training().train(300)
    assert training.setting == Setting(200.0, None)
    training.powers.append((training.now_s, training.now_s + 3600, 100.0))
    for second in range(3600):
        training.saver.tick(training.now_s + second)
    assert training.setting == REFERENCE
    assert any("no step" in message for message in training.messages)
    training.now_s += 3600
    training.train(60)
    assert training.setting == Setting(200.0, None)
    result = training.end()
    assert abs(result.other_s - 3600) < 15
    assert abs(result.other_j - 360_000) < 5_000
    assert training.set[-1] is None


def test_steps_of_a_minute_are_not_a_pause():
    """Promise: a program with long steps is slow to learn from, but it is still saved."""
    training = Training(step_s=60.0)
    tick = training.saver.tick

    def ticks(now_s):
        tick(now_s)
        for second in range(1, 55):
            tick(now_s + second)

    training.saver.tick = ticks
    result = training.train(12 * 3600).end()
    assert result.state is SavingState.APPLIED
    assert result.learned.setting == Setting(200.0, None)
    assert result.other_s < 600


def test_thousands_of_steps_a_second_cost_little():
    """Promise: memory is that of one slice of bursts, and meters are read per slice, not per
    step.
    """
    training = Training(step_s=0.0005)
    reads = []
    training.saver._energy_of = lambda b, e: (reads.append(b), (e - b) * 222.0, 0.001)[1:]
    training.saver.tick = lambda now_s: None
    most = 0
    for _ in range(60):
        training.powers.clear()
        training.train(1)
        most = max(most, len(training.saver._slice.steps))
    assert training.steps > 100_000
    assert most < 120
    assert len(reads) < 60


def test_memory_is_bounded_where_nothing_can_be_measured():
    """Promise: a program that interrupts after every step does not fill a list."""
    training = Training()
    saver = training.saver
    for number in range(30_000):
        saver.step(0.1 * number)
        saver.interrupt(0.1 * number + 0.05)
    assert len(saver._slice.steps) < 10_000


def test_evaluations_are_left_out_of_the_saving():
    """Promise: evaluation, reported or not, is neither saved nor counted as steps."""
    for told in (True, False):
        training = Training()
        for _ in range(30):
            training.train(40)
            if told:
                training.saver.interrupt(training.now_s)
            training.powers.append((training.now_s, training.now_s + 8, 150.0))
            training.now_s += 8
        result = training.end()
        assert abs(result.other_s - 30 * 8) < 15
        assert abs(result.other_j - 30 * 8 * 150) < 0.1 * 30 * 8 * 150
        spent_j = sum((e - b) * w for b, e, w in training.powers) - 30 * 8 * 150
        truth = 100 * (1 - spent_j / (training.steps * 0.1 * 222))
        assert abs(result.saved_pct.value - truth) < 1


def test_changed_work_is_compared_again():
    """Promise: the best setting of the new work is found, and each work has its own saving."""
    training = Training().train(400)
    assert training.setting == Setting(200.0, None)
    training.work = OTHER
    training.train(600)
    assert any("the work has changed" in message for message in training.messages)
    best = min(
        (c for c in OTHER if OTHER[c][0] <= 1.05 * OTHER[250][0]),
        key=lambda c: OTHER[c][0] * OTHER[c][1],
    )
    assert training.setting.cap_w is not None
    slowdown, power_w = OTHER[int(training.setting.cap_w)]
    assert slowdown * power_w <= 1.05 * OTHER[best][0] * OTHER[best][1]


def test_work_that_no_cap_changes_stays_as_it_is():
    training = Training(LIGHT).train(600)
    result = training.end()
    assert abs(result.saved_pct.value if result.saved_pct else 0.0) < 0.5
    assert result.slowdown_pct is None or abs(result.slowdown_pct.value) < 0.5


def test_a_metric_without_limit_goes_lower():
    training = Training(metric="edp", max_slowdown=None).train(900)
    edp = {cap: power_w * slowdown**2 for cap, (slowdown, power_w) in HEAVY.items()}
    assert edp[int(training.setting.cap_w)] <= 1.02 * min(edp.values())


def test_a_stored_setting_of_other_work_is_dropped():
    """Promise: a known setting that no longer holds is verified, rejected and replaced."""
    learned = Training(LIGHT | {100: (1.0, 40.0)}).train(900).end().learned
    learned = replace(
        learned or Training().train(900).end().learned,
        setting=Setting(100.0, None),
        readings=(SettingReading(Setting(100.0, None), 0.0, -0.4, 0.002, 0.002),),
    )
    training = Training(known=learned).train(900)
    assert training.setting == Setting(200.0, None)
    result = training.end()
    assert result.slowdown_pct.value < 5


def test_a_zero_limit_allows_no_slowdown():
    training = Training(max_slowdown=0.0).train(600)
    result = training.end()
    assert result.slowdown_pct is None or result.slowdown_pct.value < 0.5


@pytest.mark.parametrize(
    "options",
    [
        {"max_slowdown": -0.1},
        {"max_slowdown": math.nan},
        {"metric": "joy"},
        {"metric": "time"},
        {"metric": "eds", "k": 1.0},
        {"reference_share": 0.9},
    ],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(ConfigError):
        SaverConfig(**options)


def test_steps_out_of_order_or_without_progress_do_no_harm():
    training = Training().train(60)
    saver = training.saver
    saver.step(10.0)
    saver.step(math.nan)
    saver.step(training.now_s, 0.0)
    saver.step(training.now_s, math.nan)
    saver.interrupt(5.0)
    saver.interrupt(5.0)
    assert training.train(600).end().state is SavingState.APPLIED


def test_an_end_without_steps_is_a_result():
    result = Training().end()
    assert result.state is SavingState.LEFT
    assert result.saved_pct is None and result.learned is None
    assert SavingResult.from_dict(result.to_dict()) == result


def test_records_that_are_not_results_are_refused():
    with pytest.raises(ConfigError, match="state"):
        SavingResult.from_dict({"state": "great"})
    with pytest.raises(ConfigError, match="setting"):
        LearnedSetting.from_dict({"reference_power_w": 1.0, "reference_unit_s": 1.0})


def _slice(setting, number, log_time, log_energy, noise=0.01, length_s=10.0):
    cost = SliceCost(math.exp(log_time), math.exp(log_energy), noise)
    begin_s = number * length_s
    end_s = begin_s + length_s
    return MeasuredSlice(0, setting, begin_s, end_s, cost, length_s, length_s, 100 * length_s)


def test_linear_drift_cancels():
    """Promise: a steady slowdown of the program looks neither like a saving nor like a loss."""
    estimator = SavingEstimator()
    low = Setting(200.0, None)
    for number in range(40):
        setting = REFERENCE if number % 4 == 0 else low
        level = 0.04 if setting == low else 0.0
        drift = 0.01 * number
        estimator.add(_slice(setting, number, drift + level, drift - 2 * level))
    (reading,) = estimator.readings(0)
    assert abs(reading.log_time - 0.04) < 0.003
    assert abs(reading.log_energy + 0.08) < 0.003


def test_the_interval_covers_the_truth_about_nine_times_in_ten():
    low = Setting(200.0, None)
    covered = 0
    for seed in range(300):
        draw, estimator = random.Random(seed), SavingEstimator()
        for number in range(31):
            setting = REFERENCE if number % 5 == 0 else low
            level = -0.1 if setting == low else 0.0
            noise = draw.gauss(0, 0.02)
            estimator.add(_slice(setting, number, noise, level + draw.gauss(0, 0.02), 0.014))
        saved = estimator.estimate().saved_j
        truth = sum(1000 * (math.exp(0.1) - 1) for n in range(31) if n % 5)
        covered += saved.low <= truth <= saved.high
    assert 255 <= covered <= 294


def test_uninformative_slices_give_no_figure():
    """Promise: where the reference is unknown, the figure is missing with a reason."""
    unknown = 0
    for seed in range(20):
        estimator, draw = SavingEstimator(), random.Random(seed)
        for number in range(9):
            setting = REFERENCE if number % 3 == 0 else Setting(200.0, None)
            wild = draw.gauss(0, 2)
            estimator.add(_slice(setting, number, wild, -wild, 0.5))
        found = estimator.estimate()
        unknown += found is None
        assert found is None or -200 < found.saved_pct.low < found.saved_pct.high < 100
    assert unknown > 10
    result = SavingResult(SavingState.APPLIED, pairs=estimator.pairs)
    assert format_saving(result) == "saving unknown: its slices differ too much"


def test_settings_are_compared_through_a_common_neighbour():
    """Promise: a probe next to the chosen setting needs no reference slice of its own."""
    estimator = SavingEstimator()
    a, b = Setting(200.0, None), Setting(150.0, None)
    for number, (setting, level) in enumerate(
        [(REFERENCE, 0.0), (a, 0.02), (a, 0.02), (b, 0.1), (a, 0.02)]
    ):
        estimator.add(_slice(setting, number, level, -level))
    readings = {reading.setting: reading for reading in estimator.readings(0)}
    assert abs(readings[b].log_time - 0.1) < 1e-9
    assert readings[b].noise > readings[a].noise


def test_the_quantile_of_students_t_is_that_of_the_table():
    for degrees, value in ((1, 6.314), (2.0, 2.920), (12, 1.782), (40, 1.684), (1e9, 1.645)):
        assert abs(student_95(degrees) - value) < 0.01


def test_an_evaluation_in_a_reference_slice_is_not_reference_time():
    """Promise: a long evaluation does not use up the time for reference slices."""
    training = Training().train(100)
    while training.saver._kind != "reference":
        training.train(1)
    training.train(2)
    training.saver.interrupt(training.now_s)
    training.powers.append((training.now_s, training.now_s + 25, 150.0))
    training.now_s += 25
    result = training.train(600).end()
    assert result.reference_s < 6 * 9
    assert result.reference_slices > 6


def test_work_that_changes_all_the_time_fills_no_memory(monkeypatch):
    monkeypatch.setattr("wattloop.cap.saver.saver.MOST_REGIMES", 3)
    training = Training()
    for number in range(20):
        training.work = OTHER if number % 2 else HEAVY
        training.train(80)
    assert training.saver._regime <= 3
    assert training.end().state is SavingState.APPLIED


def test_the_end_after_a_pause_counts_the_last_slice_once():
    """Promise: a last minute in which the program writes its model is not counted twice."""
    results = []
    for rest_s in (1.0, 60.0):
        training = Training().train(200)
        training.now_s += rest_s
        training.saver.tick(training.now_s)
        results.append(training.end())
    assert results[1].train_s == pytest.approx(results[0].train_s, rel=0.01)
    assert results[1].train_s <= 201


def test_evaluations_do_not_count_as_step_time():
    """Promise: levers are restored 30 s after the last step, in every evaluation."""
    training = Training(step_s=1.0).train(400)
    for _ in range(3):
        training.saver.interrupt(training.now_s)
        assert training.setting != REFERENCE
        training.now_s += 35.0
        training.saver.tick(training.now_s)
        assert training.setting == REFERENCE
        training.now_s += 265.0
        training.train(120)


def test_long_steps_are_followed():
    """Promise: steps of a minute are steps, not pauses."""
    training = Training(step_s=60.0).train(6 * 3600)
    assert training.end().state is SavingState.APPLIED
