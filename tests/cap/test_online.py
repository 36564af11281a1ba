"""Promises of the online search on simulated time: probes, disturbances, watching, other work."""

import pytest

from wattloop.cap.finder import CapFinder
from wattloop.cap.online import CapSlice, OnlineCapFinder, OnlineRules, OnlineState, ProgressStep
from wattloop.core.errors import MeterUnavailable

CAPS = [100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0]
HEAVY = {100: (1.9, 99), 125: (1.43, 123), 150: (1.18, 145), 175: (1.095, 165)} | {
    200: (1.054, 184),
    225: (1.022, 206),
    250: (1.0, 222),
}
LIGHT = dict.fromkeys(HEAVY, (1.0, 60.0))
SHORT = {cap: (0.5 * slowdown, power_w) for cap, (slowdown, power_w) in HEAVY.items()}


class Training:
    """A training whose step time and power follow the cap, on its own clock."""

    def __init__(self, work, **options):
        self.work, self.now_s, self.cap_w, self.step_s = work, 0.0, None, 0.1
        self.powers: list[tuple[float, float, float]] = []
        self.set: list[float | None] = []
        rules = OnlineRules(**{"least_s": 3.0, "watch_s": 4.0, "settle_s": 0.5} | options)
        self.messages: list[str] = []
        self.energy_noise = 0.001
        self.pilot = OnlineCapFinder(
            lambda: CapFinder(CAPS, "edp", noise=0.001),
            self.change,
            self.energy,
            rules,
            report=self.messages.append,
        )

    def change(self, cap_w):
        self.cap_w = cap_w
        self.set.append(cap_w)

    def energy(self, begin_s, end_s):
        spans = ((max(b, begin_s), min(e, end_s), w) for b, e, w in self.powers)
        return sum((e - b) * w for b, e, w in spans if e > b), self.energy_noise

    def train(self, steps, extra_s=lambda number: 0.0):
        for number in range(steps):
            slowdown, power_w = self.work[int(self.cap_w or 250)]
            length_s = self.step_s * slowdown + extra_s(number)
            self.powers.append((self.now_s, self.now_s + length_s, power_w))
            self.now_s += length_s
            self.pilot.advance([ProgressStep(self.now_s)], self.now_s)
        return self


def test_it_probes_finds_and_stays():
    """Promise: the reference first, then few probes, then the best cap until the end."""
    training = Training(HEAVY).train(1_000)
    assert training.pilot.state is OnlineState.HOLDING
    assert training.set[0] == 250
    assert training.cap_w == training.pilot.choice.cap_w in (150, 175)
    assert len(training.set) <= 5
    probe = training.pilot.finder.probes[0]
    assert abs(probe.time_s / 0.1 - 1) < 0.01
    assert abs(probe.energy_j / 22.2 - 1) < 0.01


def test_noisy_energy_needs_more_probes_and_says_so():
    """Promise: in a training, too, noise decides how many probes there are, up to one per cap."""
    training = Training(HEAVY, most_s=3.0)
    training.energy_noise = 0.05
    training.train(2_000)
    assert training.pilot.state is OnlineState.HOLDING
    assert 4 < len(training.pilot.finder.probes) <= len(CAPS)
    assert any("readings are 5% apart" in message for message in training.messages)


@pytest.mark.parametrize("probes", [3, 5])
def test_giving_up_keeps_the_result_of_the_usual_probes(probes):
    """Promise: running out of time loses the probes beyond the usual four, but not the cap."""
    training = Training(HEAVY, most_s=3.0)
    training.energy_noise = 0.05
    while len(training.pilot.finder.probes) < probes:
        training.train(1)
    assert training.pilot.state is OnlineState.PROBING
    training.pilot.give_up("no cap was found in time", training.now_s)
    if probes < 4:
        assert training.pilot.state is OnlineState.LEFT and training.set[-1] is None
        assert training.pilot.choice is None
    else:
        assert training.pilot.state is OnlineState.HOLDING
        assert training.set[-1] == training.pilot.choice.cap_w
    assert ("no cap was found in time" in training.messages) is (probes < 4)


def test_work_that_ends_during_a_second_search_keeps_the_cap():
    """Promise: an unfinished search does not replace an earlier choice."""
    training = Training(HEAVY).train(1_000)
    found = training.pilot.choice
    training.pilot.work_ended()
    assert training.pilot.unfinished == ""
    training.work = SHORT
    while training.pilot.state is not OnlineState.PROBING:
        training.train(1)
    training.pilot.work_ended()
    assert training.pilot.choice == found
    assert not found.unfinished
    assert "changed work" in training.pilot.unfinished


def test_a_choice_names_the_end_of_its_search():
    """Promise: an end by timeout or fault is the stated reason for a choice that is only the
    best so far.
    """
    for over in (True, False):
        training = Training(HEAVY)
        while len(training.pilot.finder.probes) < 2:
            training.train(1)
        if over:
            training.pilot.give_up("no cap was found in time", training.now_s)
        training.pilot.work_ended(None if over else "a GPU was lost")
        assert training.pilot.choice.unfinished
        why = "no cap was found in time" if over else "a GPU was lost"
        assert training.pilot.choice.why == training.pilot.unfinished == why


def test_a_cap_that_takes_longer_when_read_again_is_other_work():
    """Promise: a second reading of a cap that differs by far restarts the search."""

    class ReadsTheReferenceTwice(CapFinder):
        def ask(self):
            return self.reference_w if len(self.probes) < 2 else None

    for factor, restarts in ((1.6, True), (0.6, True), (1.02, False)):
        training = Training(HEAVY)
        training.pilot.finder = ReadsTheReferenceTwice(CAPS, "edp", noise=0.001)
        while not training.pilot.finder.probes:
            training.train(1)
        training.work = {cap: (factor * slow, watt) for cap, (slow, watt) in HEAVY.items()}
        training.train(80)
        said = any("changed during the search" in message for message in training.messages)
        assert said is restarts


def test_a_probe_begins_when_power_has_settled():
    """Promise: power from before the change of cap is in no probe."""
    training = Training(HEAVY, settle_s=2.0)
    changed_s = [0.0]
    real = training.change

    def change(cap_w):
        changed_s.append(training.now_s)
        real(cap_w)

    def energy(begin_s, end_s):
        joules, noise = training.energy(begin_s, end_s)
        late_s = sum(max(0.0, min(end_s, c + 2) - max(begin_s, c)) for c in changed_s)
        return joules + 500 * late_s, noise

    training.pilot._set_cap, training.pilot._energy = change, energy
    training.train(600)
    assert len(training.pilot.finder.probes) >= 3
    for probe in training.pilot.finder.probes:
        slowdown, power_w = HEAVY[int(probe.cap_w)]
        assert abs(probe.energy_j / (0.1 * slowdown * power_w) - 1) < 0.02


def test_a_probe_lasts_until_it_is_precise_or_as_long_as_it_may():
    """Promise: 1% of noise ends a probe, and with more noise `most_s` does."""
    training = Training(HEAVY, most_s=20.0)
    training.pilot._energy = lambda begin_s, end_s: (
        training.energy(begin_s, end_s)[0],
        0.4 / (end_s - begin_s),
    )
    training.train(120)
    assert training.pilot.finder.probes == []  # 0.4 s in 12 s are more than 1%
    training.train(100)
    assert len(training.pilot.finder.probes) == 1
    assert training.pilot.finder.probes[0].noise > 0.01


def test_checkpoints_and_evaluations_do_not_count():
    """Promise: a step in fifty that takes 3 s longer changes no reading."""
    training = Training(HEAVY).train(1_500, lambda n: 3.0 if n % 50 == 49 else 0.0)
    for probe in training.pilot.finder.probes:
        slowdown, power_w = HEAVY[int(probe.cap_w)]
        assert abs(probe.time_s / (0.1 * slowdown) - 1) < 0.01
        assert abs(probe.energy_j / (0.1 * slowdown * power_w) - 1) < 0.02


def test_it_searches_again_when_the_work_changes():
    """Promise: other power and step time for some time start another search."""
    training = Training(HEAVY).train(1_000)
    training.work = LIGHT
    training.train(1_000)
    assert training.pilot.searches == 2
    assert training.cap_w == 100
    assert any("the work has changed" in message for message in training.messages)


def test_a_short_disturbance_starts_no_search():
    """Promise: a few slow seconds do not count as other work."""
    training = Training(HEAVY, patience=3).train(1_000)
    training.work = LIGHT
    training.train(30)
    training.work = HEAVY
    training.train(600)
    assert training.pilot.searches == 1


def test_a_probe_without_energy_is_tried_again():
    """Promise: a sensor without readings for a while delays the search, and gives no wrong
    result.
    """
    training = Training(HEAVY)
    real, training.pilot._energy = training.energy, lambda begin_s, end_s: None
    training.train(200)
    assert training.pilot.finder.probes == []
    training.pilot._energy = real
    training.train(1_000)
    assert training.pilot.state is OnlineState.HOLDING


def test_a_change_during_the_search_restarts_it():
    """Promise: probes of two workloads are not mixed where they contradict each other."""
    training = Training(HEAVY)
    while len(training.pilot.finder.probes) < 2:
        training.train(1)
    training.work = SHORT
    training.train(1_500)
    assert any("during the search" in message for message in training.messages)
    assert training.pilot.searches == 1
    for probe in training.pilot.finder.probes:
        assert abs(probe.time_s / (0.1 * SHORT[int(probe.cap_w)][0]) - 1) < 0.02


def test_work_that_never_agrees_is_not_searched_for_ever():
    """Promise: after some aborted searches, the next result is accepted."""
    training = Training(HEAVY)
    works = [HEAVY, SHORT]
    for _ in range(60):
        probes = len(training.pilot.finder.probes)
        searches = len([m for m in training.messages if "during the search" in m])
        while training.pilot.state is OnlineState.PROBING and (
            probes == len(training.pilot.finder.probes)
            and searches == len([m for m in training.messages if "during the search" in m])
        ):
            training.train(1)
        works.reverse()
        training.work = works[0]
    assert training.pilot.state is OnlineState.HOLDING
    assert len([m for m in training.messages if "during the search" in m]) <= 2


def test_a_change_right_after_the_search_is_noticed():
    """Promise: the watch compares with the probe of the chosen cap."""
    training = Training(HEAVY)
    while training.pilot.state is OnlineState.PROBING:
        training.train(1)
    assert training.pilot.choice.cap_w in {p.cap_w for p in training.pilot.finder.probes}
    training.work = SHORT
    training.train(1_500)
    assert training.pilot.searches == 2


def test_without_energy_for_long_it_gives_up():
    """Promise: GPUs that cannot be read any more do not stay at a cap."""
    training = Training(HEAVY, silent_s=30.0)
    training.train(100)
    training.pilot._energy = lambda begin_s, end_s: None
    with pytest.raises(MeterUnavailable, match="could be read"):
        training.train(1_000)


def test_leaving_restores_the_caps():
    """Promise: leaving the block restores every cap."""
    training = Training(HEAVY).train(100)
    training.pilot.leave("enough")
    assert training.set[-1] is None
    training.train(100)
    assert training.set[-1] is None


def test_an_interruption_splits_a_slice():
    """Promise: time between an interruption and the next step belongs to no slice."""
    steps = [ProgressStep(0.1 * n) for n in range(11)]
    for pause_s in (0.2, 4.0):  # also an interruption too short to be detected from the steps
        later = [ProgressStep(1 + pause_s + 0.1 * n) for n in range(11)]
        part = CapSlice([*steps, ProgressStep(1.0, None), *later])
        assert abs(part.clean_s - 2.0) < 1e-9


def constant(begin_s, end_s):
    """Return a card that draws 100 W."""
    return 100.0 * (end_s - begin_s), 0.001


def test_steps_in_bursts_have_the_pace_of_the_gpu():
    """Promise: nine steps queued in 3 ms each and one that waits for the GPU are ten of 12 ms."""
    at_s, steps = 0.0, []
    for number in range(1_000):
        at_s += 0.093 if number % 10 == 9 else 0.003
        steps.append(ProgressStep(at_s))
    taken = CapSlice(steps).cost(constant)
    assert abs(taken.time_s / 0.012 - 1) < 0.02
    assert abs(taken.energy_j / 1.2 - 1) < 0.02
    assert taken.noise < 0.02


def test_steps_of_different_size_are_no_gaps():
    """Promise: a step of many units may take long; the time per unit counts."""
    at_s, steps = 0.0, []
    for number in range(100):
        units = 20.0 if number % 5 == 4 else 1.0
        at_s += 0.1 * units
        steps.append(ProgressStep(at_s, units))
    part = CapSlice(steps)
    assert len(part.undisturbed()) == 1
    assert abs(part.cost(constant).time_s / 0.1 - 1) < 0.01


def test_short_epochs_between_long_evaluations_are_what_counts():
    """Promise: evaluation is left out also where it takes most of the time."""
    at_s, steps = 0.0, []
    for number in range(200):
        at_s += 3.0 if number % 20 == 19 else 0.012
        steps.append(ProgressStep(at_s))
    taken = CapSlice(steps).cost(constant)
    assert abs(taken.time_s / 0.012 - 1) < 0.01
