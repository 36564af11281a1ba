import pytest

from wattloop.accounting.summary import cost_of, parse_gpu_price
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings


def test_cost_is_kilowatt_hours_times_tariff():
    """Half a kilowatt-hour at 0.25."""
    cost = cost_of(1_800_000, 0.25, "EUR")
    assert cost.amount == pytest.approx(0.125)
    assert cost._asdict() == {"amount": cost.amount, "currency": "EUR", "tariff_per_kwh": 0.25}


@pytest.mark.parametrize("text", ["2.50", "2,50 EUR", "EUR 2.50", "2.50€/h", "2.50 EUR/GPU-hour"])
def test_a_gpu_price_is_understood_as_people_write_it(text: str) -> None:
    """Promise: eight GPUs for half an hour at 2.50 an hour are 10."""
    price = parse_gpu_price(text, Settings())
    assert price.currency == "EUR"
    assert price.cost("h200", 8, 1_800) == pytest.approx(10.0)


def test_each_gpu_may_have_its_own_price() -> None:
    """Promise: names are those of --gpu; a GPU without a price has no cost."""
    price = parse_gpu_price("a100-sxm-40=1,50,h200=3.50 USD", Settings())
    assert price.currency == "USD"
    assert price.cost("a100-sxm-40", 1, 3_600) == pytest.approx(1.50)
    assert price.cost("h200", 2, 3_600) == pytest.approx(7.0)
    assert price.cost("l40", 1, 3_600) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cheap", "must be a number"),
        ("-1", "between 0 and 10000"),
        ("2 EUR/kWh", "must be a number"),
        ("nan", "must be a number"),
        ("h200=1,h200=2", "two prices of one GPU"),
        ("h200=1 EUR,l40=2 USD", "EUR and USD cannot be added"),
        ("3 USD", "CHF and USD cannot be added"),
        ("h2000=3", "h2000"),
    ],
)
def test_a_wrong_gpu_price_is_refused(text: str, reason: str) -> None:
    """Promise: a price per kWh or a sum of two currencies is refused."""
    settings = Settings().overridden({"tariff_per_kwh": "0.2 CHF"}, "test")
    with pytest.raises(ConfigError, match=reason):
        parse_gpu_price(text, settings)
