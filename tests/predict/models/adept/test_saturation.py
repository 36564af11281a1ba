"""Promises of the five saturation functions."""

import math

import numpy as np
import pytest

from wattloop.predict.models.adept.equations import SATURATIONS

AT_ONE = {
    "sigmoid": 1 / (1 + math.exp(-1)),
    "tanh": math.tanh(1),
    "arctan": 0.5,
    "softsign": 0.5,
    "algebraic": 1 / math.sqrt(2),
}


@pytest.mark.parametrize("name", SATURATIONS)
def test_saturations_grow_and_stay_below_one(name: str) -> None:
    """A larger size is never less efficient, nor above the base efficiency."""
    values = SATURATIONS[name](np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 400)]))
    assert (np.diff(values) >= 0).all()
    assert values[0] == (0.5 if name == "sigmoid" else 0.0)
    assert values[-1] == pytest.approx(1.0, abs=1e-5)
    assert values.max() <= 1.0


@pytest.mark.parametrize("name", SATURATIONS)
def test_saturations_are_the_functions_they_are_named_after(name: str) -> None:
    """At the reference each has its textbook's value."""
    assert SATURATIONS[name](np.array([1.0]))[0] == pytest.approx(AT_ONE[name])
