import math

import pytest

from wattloop.core.errors import ConfigError
from wattloop.tune.segment import RateLoss
from wattloop.tune.strategies.sm2.sm2 import stable_rate

RATES = [10 ** (-3 + 3 * i / 19) for i in range(20)]


def sweep(loss) -> list[RateLoss]:
    return [RateLoss(rate=rate, loss=loss(i, rate)) for i, rate in enumerate(RATES)]


def test_the_largest_rate_before_the_loss_becomes_restless() -> None:
    """Promise: as in figure 1, the pick lies where the loss last falls calmly."""

    def loss(i: int, rate: float) -> float:
        return 2.3 - 0.05 * i if i < 13 else 1.7 + (0.9 if i % 2 else -0.2)

    pick = stable_rate(sweep(loss))
    assert pick.rate == pick.window.high
    assert RATES[9] <= pick.rate <= RATES[13]
    assert not pick.at_edge


def test_a_calm_plateau_of_a_broken_model_is_not_taken() -> None:
    """Promise: flat is not enough; the loss has to be about as low as anywhere."""

    def loss(i: int, rate: float) -> float:
        return 1.0 - 0.02 * i if i < 10 else 2.3

    assert stable_rate(sweep(loss)).rate <= RATES[10]


def test_rates_that_broke_the_training_are_left_out() -> None:
    """Promise: an infinite loss ends what is looked at."""
    pick = stable_rate(sweep(lambda i, rate: 1.0 - 0.01 * i if i < 8 else math.inf))
    assert pick.rate == RATES[7]
    assert len(pick.windows) == 4


def test_a_pick_at_the_edge_is_said() -> None:
    """Promise: a user who may widen the range is told that a larger rate may be better."""
    pick = stable_rate(sweep(lambda i, rate: 1.0 - 0.01 * i))
    assert pick.at_edge and pick.rate == RATES[-1]


def test_windows_slide_over_all_rates() -> None:
    """Promise: every window of neighbours is there, with its curvature."""
    windows = stable_rate(sweep(lambda i, rate: math.log10(rate) ** 2)).windows
    assert len(windows) == 16
    # the second derivative of x^2 over x = log10(rate) is 2
    assert windows[7].curvature == pytest.approx(2.0)


def test_too_few_losses_say_nothing() -> None:
    """Promise: no rate is made up."""
    assert stable_rate(sweep(lambda i, rate: 1.0 if i < 2 else math.nan)) is None
    with pytest.raises(ConfigError, match="window of 1"):
        stable_rate(sweep(lambda i, rate: 1.0), width=1)
