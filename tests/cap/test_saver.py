"""The saver on simulated time: limit, search, proof, faults."""

import pytest

from wattloop.cap.saver import Saver, SaverConfig
from wattloop.cap.saving import REFERENCE, LearnedSetting, SavingResult, SavingState, Setting

CAPS = [100.0, 125.0, 150.0, 175.0, 200.0, 225.0]
FOUND = Setting(250.0, None)
HEAVY = {100: (1.9, 99), 125: (1.43, 123), 150: (1.18, 145), 175: (1.095, 165)} | {
    200: (1.042, 184),
    225: (1.017, 206),
    250: (1.0, 222),
}


class Training:
    """Steps whose time and power follow the cap, on a clock of their own."""

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
        """The truth: as many steps at the reference would have taken their time and power."""
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


def test_least_energy_within_the_limit_is_found_and_proven():
    """Promise: the best cap within 5%, restored at the end, and a saving next to the true one."""
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


def test_a_short_job_is_left_alone():
    """Promise: nothing is set before a setting could pay."""
    training = Training().train(15)
    result = training.end()
    assert result.state is SavingState.LEFT
    assert "before a setting could pay" in result.reason
    assert all(setting is None for setting in training.set)


def test_a_lever_that_refuses_is_restored_and_left_alone():
    """Promise: a fault of a lever ends the saver, not the training."""
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
def test_what_was_learned_starts_the_next_run(devices):
    """Promise: the next run of the same program is at its best setting within seconds."""
    learned = Training(devices=devices).train(900).end().learned
    training = Training(known=learned, devices=devices).train(30)
    assert training.setting == Setting(200.0, None)
