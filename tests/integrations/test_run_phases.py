"""Promises of phases: they are disjoint, cover the run, and share its energy."""

import random
from itertools import pairwise

import pytest

from wattloop.integrations.run_phases import (
    ORDER,
    PhaseTotals,
    merge,
    phase_energies,
    split_run,
    subtract,
)


def test_a_training_with_pauses() -> None:
    """Start-up before the first step, tail after the last, pauses taken out of the training."""
    parts = split_run(
        (0, 100),
        [(10, 90)],
        {"evaluation": [(40, 50)], "checkpoint": [(45, 55)], "waiting for data": [(10, 12)]},
    )
    assert parts == {
        "start-up": [(0, 10)],
        "checkpoint": [(45, 55)],
        "evaluation": [(40, 45)],
        "waiting for data": [(10, 12)],
        "training": [(12, 40), (55, 90)],
        "tail": [(90, 100)],
    }


@pytest.mark.parametrize("seed", range(20))
def test_any_phases_cover_the_run_once(seed: int) -> None:
    """Overlapping, nested, empty, outside the run: every second belongs to exactly one phase."""
    rng = random.Random(seed)

    def spans(count: int) -> list[tuple[float, float]]:
        begins = [rng.uniform(-10, 110) for _ in range(count)]
        return [(b, b + rng.choice([0, 1, 5, 30]) * rng.random()) for b in begins]

    named = {name: spans(rng.randrange(6)) for name in ORDER[1:5]}
    parts = split_run((0, 100), merge(spans(3)), named)
    pieces = sorted(span for found in parts.values() for span in found)
    assert pieces[0][0] == 0
    assert pieces[-1][1] == 100
    assert all(a[1] == b[0] for a, b in pairwise(pieces))


def test_energies_add_up_to_the_run() -> None:
    """Training has the energy outside the other phases; thousands of waits are sampled."""
    waits = [(10 + i * 0.01, 10 + i * 0.01 + 0.002) for i in range(5_000)]
    parts = split_run((0, 100), [(10, 90)], {"waiting for data": waits})
    calls = []

    def energy_j(begin_s: float, end_s: float) -> float:
        calls.append(begin_s)
        return 50 * (end_s - begin_s)

    phases = {p.name: p for p in phase_energies(parts, energy_j, 5_000.0)}
    assert sum(p.energy_j or 0 for p in phases.values()) == pytest.approx(5_000)
    assert phases["waiting for data"].energy_j == pytest.approx(50 * 10.0)
    assert phases["training"].energy_j == pytest.approx(50 * 70.0)
    assert len(calls) < 1_300


def test_energy_that_was_not_read_is_not_zero() -> None:
    parts = split_run((0, 10), [(2, 8)], {})
    phases = phase_energies(parts, lambda a, b: None, None)
    assert [p.energy_j for p in phases] == [None, None, None]
    assert [p.time_s for p in phases] == [2, 6, 2]


def test_subtract_touching_spans() -> None:
    assert subtract([(0, 10)], [(0, 2), (4, 6), (9, 20)]) == [(2, 4), (6, 9)]


@pytest.mark.parametrize("seed", range(20))
def test_phases_of_a_run_that_goes_on_become_those_of_its_end(seed: int) -> None:
    """Promise: looked at whenever, the phases only grow, share the time and energy up to the last
    step, and end as the record of the run.
    """
    rng = random.Random(seed)
    now, training, spans = rng.uniform(0.5, 5), [], {}
    begin_s, known = 0.0, []
    live, looks = PhaseTotals(begin_s), []

    def energy_j(begin_s: float, end_s: float) -> float:
        return 50 * (end_s - begin_s) + 3 * (end_s**2 - begin_s**2)

    spans["compilation"] = [(0.3, 0.4)]
    for _ in range(60):
        kind = rng.choice(["step", "step", "step", "evaluation", "checkpoint"])
        end_s = now + rng.uniform(0.05, 2)
        if kind == "step":
            known.append(end_s)
            training[:] = [((training[0][0] if training else now), end_s)]
            spans.setdefault("waiting for data", []).append((now, now + rng.uniform(0, 0.05)))
        else:
            spans.setdefault(kind, []).append((now, end_s))
        now = end_s
        if rng.random() < 0.3:
            live.add(now, training, spans, energy_j)
            looks.append((dict(live.time_s), dict(live.energy_j)))
            assert sum(live.time_s.values()) == pytest.approx(now)
            assert sum(j or 0.0 for j in live.energy_j.values()) == pytest.approx(energy_j(0, now))
    now += 1.5
    live.add(now, training, spans, energy_j, ended=True)
    looks.append((dict(live.time_s), dict(live.energy_j)))
    for (times, joules), (later_times, later_joules) in pairwise(looks):
        assert all(later_times[name] >= times[name] for name in ORDER)
        assert all(later_joules[name] >= joules[name] for name in ORDER)
    parts = split_run((0.0, now), training, spans)
    phases = {p.name: p for p in phase_energies(parts, energy_j, energy_j(0, now))}
    for name in ORDER:
        stored = phases.get(name)
        assert live.time_s[name] == pytest.approx(stored.time_s if stored else 0.0, abs=1e-6)
        assert live.energy_j[name] == pytest.approx(stored.energy_j if stored else 0, abs=0.05)


def test_joules_that_cannot_be_read_stay_unknown() -> None:
    """Promise: a phase with a gap shows no joules, rather than a part of them."""
    live = PhaseTotals(0.0)
    live.add(10.0, [(2.0, 10.0)], {}, lambda a, b: 100.0 * (b - a))
    live.add(20.0, [(2.0, 20.0)], {}, lambda a, b: None)
    assert live.time_s["training"] == pytest.approx(8.0), "the sensor may be slow"
    live.add(30.0, [(2.0, 30.0)], {}, lambda a, b: 100.0 * (b - a))
    assert live.energy_j["training"] == pytest.approx(2_800.0)
    live.add(100.0, [(2.0, 100.0)], {}, lambda a, b: None)
    live.add(110.0, [(2.0, 110.0)], {}, lambda a, b: 100.0 * (b - a))
    assert live.energy_j["start-up"] == pytest.approx(200.0)
    assert live.energy_j["training"] is None
    assert live.time_s["training"] == pytest.approx(108.0)


def test_a_machine_without_sensors_shows_the_time_of_phases() -> None:
    live = PhaseTotals(0.0, measured=False)
    live.add(10.0, [(2.0, 10.0)], {}, lambda a, b: None)
    assert live.time_s["training"] == pytest.approx(8.0)
    assert set(live.energy_j.values()) == {None}
