import pytest

from wattloop.accounting.summary import cost_of


def test_cost_is_kilowatt_hours_times_tariff():
    """Half a kilowatt-hour at 0.25."""
    cost = cost_of(1_800_000, 0.25, "EUR")
    assert cost.amount == pytest.approx(0.125)
    assert cost._asdict() == {"amount": cost.amount, "currency": "EUR", "tariff_per_kwh": 0.25}
