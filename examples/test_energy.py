"""Tests that fail when code uses more than it should: pytest examples/test_energy.py."""

import pytest


def train(steps: int) -> float:
    """A stand-in for a training step: gradient descent on (w - 3)^2."""
    weight = 0.0
    for _ in range(steps):
        weight -= 1e-4 * 2 * (weight - 3)
    return weight


def test_training_stays_below_a_limit(energy):
    """A limit in joules, and one in CPU seconds for machines without sensors."""
    with energy.measure():
        weight = train(50_000)
    assert weight == pytest.approx(3, abs=0.1)
    energy.assert_below("300 J", "10 s")


@pytest.mark.energy(baseline=True, repeats=3, tolerance="50%")
def test_training_is_no_worse_than_before():
    """Compare with energy-baselines.json in this folder; --energy-update measures it again."""
    train(50_000)
