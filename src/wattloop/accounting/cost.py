"""Cost of electricity, and familiar equivalents of an energy or a mass of CO2e."""

from typing import NamedTuple

from wattloop.core.units import J_PER_WH, kwh_from_joules


class Cost(NamedTuple):
    """An amount of money."""

    amount: float
    currency: str
    tariff_per_kwh: float


def cost_of(energy_j: float, tariff_per_kwh: float, currency: str) -> Cost:
    """Return the price of an energy at a flat tariff."""
    return Cost(kwh_from_joules(energy_j) * tariff_per_kwh, currency, tariff_per_kwh)


# Familiar equivalents of an energy or a mass of CO2e, each with its factor's source and year. They
# only illustrate the size: no other number is computed from them.


class Factor(NamedTuple):
    """Conversion factor from joules or grams of CO2e to a familiar unit."""

    name: str
    unit: str
    cost_per_unit: float
    """Joules (energy factors) or grams of CO2e (carbon factors) of one unit."""
    text: str
    source: str
    year: int | None


class Equivalent(NamedTuple):
    """A number of familiar units."""

    name: str
    amount: float
    unit: str
    text: str
    source: str
    year: int | None


CARBON_FACTORS = (
    Factor(
        "car",
        "km",
        108.1,
        "driven by an average new car in Europe",
        "European Environment Agency, CO2 performance of new passenger cars (WLTP, no upstream)",
        2022,
    ),
)
ENERGY_FACTORS = (
    Factor(
        "phone",
        "charges",
        15.4 * J_PER_WH / 0.8,
        "of a smartphone",
        "arithmetic: a battery of 4 Ah x 3.85 V as usual that year, charged at 80% efficiency",
        2024,
    ),
    Factor(
        "laptop",
        "h",
        30 * 3_600.0,
        "of a laptop at 30 W",
        "by definition: an everyday draw of a 65 W laptop",
        None,
    ),
    Factor(
        "led",
        "h",
        10 * 3_600.0,
        "of a 10 W LED lamp",
        "by definition",
        None,
    ),
    Factor(
        "water",
        "l",
        4_186.0 * 80,
        "of water brought from 20 to 100 °C, without losses",
        "specific heat of water, 4.186 kJ/(kg K)",
        None,
    ),
)


def equivalents(energy_j: float | None, mass_g: float | None) -> tuple[Equivalent, ...]:
    """Return equivalents of an energy and its CO2e; unknown ones are left out."""
    found = []
    for quantity, factors in ((mass_g, CARBON_FACTORS), (energy_j, ENERGY_FACTORS)):
        if quantity is not None:
            found += [
                Equivalent(f.name, quantity / f.cost_per_unit, f.unit, f.text, f.source, f.year)
                for f in factors
            ]
    return tuple(found)
