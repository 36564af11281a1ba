"""Promises of `parameters`: what each kind may be, draws only that, and says what is wrong."""

import math
from collections import Counter

import numpy as np
import pytest

from wattloop.core.errors import ConfigError
from wattloop.tune.space import Choice, Fixed, Integer, Linked, Parameter, Real

KINDS: list[Parameter] = [
    Choice(values=(1, True, "a", None, 0.5)),
    Fixed(value="resnet"),
    Integer(low=1, high=1024, log=True),
    Integer(low=-3, high=9, step=3),
    Integer(low=2, high=2),
    Real(low=1e-5, high=1e-1, log=True),
    Real(low=0.0, high=0.9, step=0.1),
    Real(low=1e-3, high=1.0, log=True, step=0.01),
    Real(low=0.5, high=0.5),
]


@pytest.mark.parametrize("parameter", KINDS)
def test_every_draw_is_a_value_it_may_have(parameter: Parameter) -> None:
    """A drawn value is accepted unchanged, and is among the listed ones where there is a list."""
    rng = np.random.default_rng(0)
    listed = parameter.listed()
    for _ in range(500):
        value = parameter.draw(rng)
        assert parameter.checked(value) == value
        assert listed is None or value in listed
        assert not isinstance(value, np.generic)  # JSON and repr know Python's own numbers


@pytest.mark.parametrize("parameter", [p for p in KINDS if p.listed() is not None])
def test_every_listed_value_is_allowed(parameter: Parameter) -> None:
    """And none is listed twice."""
    listed = parameter.listed() or ()
    assert [parameter.checked(value) for value in listed] == list(listed)
    assert len({(type(v), v) for v in listed}) == len(listed)


def test_draws_cover_both_ends_evenly() -> None:
    """Steps are equally likely; a logarithmic scale gives each decade its share."""
    rng = np.random.default_rng(1)
    steps = Counter(Real(low=0.0, high=0.9, step=0.1).draw(rng) for _ in range(5_000))
    assert len(steps) == 10 and min(steps.values()) > 350
    decades = Counter(
        math.floor(math.log10(float(Real(low=1e-4, high=1.0, log=True).draw(rng) or 1)))
        for _ in range(4_000)
    )
    assert all(800 < decades[decade] < 1_200 for decade in (-4, -3, -2, -1))
    whole = Counter(Integer(low=1, high=8, log=True).draw(rng) for _ in range(8_000))
    assert set(whole) == set(range(1, 9)) and whole[1] > 3 * whole[8]


def test_steps_are_the_numbers_people_write() -> None:
    """0.3 is the third step of 0.1, not 0.30000000000000004; the end is included."""
    assert Real(low=0.0, high=0.9, step=0.1).listed() == tuple(i / 10 for i in range(10))
    assert Real(low=0.1, high=0.3, step=0.1).checked(0.1 + 0.2) == 0.3
    assert Integer(low=1, high=10, step=4).listed() == (1, 5, 9)


def test_long_ranges_are_not_listed() -> None:
    """A grid over them would never end."""
    assert Integer(low=0, high=1_000).listed() is None
    assert len(Integer(low=0, high=999).listed() or ()) == 1_000
    assert Real(low=0.0, high=1.0).listed() is None
    assert Real(low=0.0, high=1.0, step=1e-6).listed() is None


def test_true_is_not_one() -> None:
    """Booleans and numbers differ, whole and real numbers do not."""
    both = Choice(values=(True, 1, 0, False))
    assert both.checked(True) is True and both.checked(1) == 1
    assert not isinstance(both.checked(1.0), bool)
    with pytest.raises(ConfigError, match="True is not a whole number"):
        Integer(low=0, high=3).checked(True)
    with pytest.raises(ConfigError, match="fixed to 1"):
        Fixed(value=1).checked(True)


@pytest.mark.parametrize("value", [math.nan, math.inf, "3", None, 2.5, True, 11, -1])
def test_a_wrong_number_is_refused(value: object) -> None:
    """NaN and infinity are no numbers of a range, and no reason to crash."""
    with pytest.raises(ConfigError):
        Integer(low=0, high=10).checked(value)  # type: ignore[arg-type]  # wrong on purpose
    if value != 2.5:
        with pytest.raises(ConfigError):
            Real(low=0, high=10).checked(value)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Choice(values=()), "no values"),
        (lambda: Choice(values=(1, 1.0)), "given twice"),
        (lambda: Choice(values=(1.0, math.nan)), "give finite numbers"),
        (lambda: Choice(values=([1], 2)), "a value is a number, a text"),
        (lambda: Integer(low=3, high=1), "min 3 is above max 1"),
        (lambda: Integer(low=0, high=8, log=True), "begins above 0"),
        (lambda: Integer(low=1, high=8, step=0), "step 0"),
        (lambda: Integer(low=1, high=8, step=2, log=True), "none on a logarithmic scale"),
        (lambda: Integer(low=1, high=2.5), "whole numbers"),
        (lambda: Real(low=0, high=math.inf), "both ends must be numbers"),
        (lambda: Real(low=-1, high=1, log=True), "begins above 0"),
        (lambda: Real(low=0, high=1, step=0), "step 0"),
        (lambda: Real(low=0, high=1, step=0.3).checked(0.5), "on no step of 0.3"),
    ],
)
def test_a_contradiction_is_refused(make: object, said: str) -> None:
    """With the number that is wrong."""
    with pytest.raises(ConfigError, match=said):
        make()  # type: ignore[operator]  # a lambda


def test_a_link_has_nothing_of_its_own() -> None:
    """It takes what it is linked to."""
    link = Linked(same_as="batch_size")
    assert link.listed() == (None,) and link.checked(7) == 7
