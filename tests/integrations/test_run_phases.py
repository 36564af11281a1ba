"""Phases of a run are disjoint, cover it, and share its energy."""

import random
from itertools import pairwise

import pytest

from wattloop.integrations.run_phases import ORDER, merge, phase_energies, split_run, subtract


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
def test_any_spans_cover_the_run_once(seed: int) -> None:
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
    """Training has what the other phases leave; thousands of waits are sampled."""
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
