"""What the electricity costs: kilowatt-hours times the user's tariff."""

from typing import Any, NamedTuple

from wattloop.core.units import kwh_from_joules

__all__ = ["Cost", "cost_of"]


class Cost(NamedTuple):
    """An amount of money."""

    amount: float
    currency: str
    tariff_per_kwh: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return self._asdict()


def cost_of(energy_j: float, tariff_per_kwh: float, currency: str) -> Cost:
    """Price of an energy at a flat tariff."""
    return Cost(kwh_from_joules(energy_j) * tariff_per_kwh, currency, tariff_per_kwh)
