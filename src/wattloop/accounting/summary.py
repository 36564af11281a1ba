"""Accounting of a window (carbon, cost, efficiency, idle), familiar equivalents, and the summary
line.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wattloop.accounting.carbon import Intensity, IntensitySearch, carbon_g, find_intensity
from wattloop.accounting.device_efficiency import Efficiency, Insight, efficiencies, insights
from wattloop.accounting.idle import ApplicationEnergy, IdleLine, application_energy
from wattloop.accounting.node import FacilityEnergy, NodeEnergy, facility_energy, node_energy
from wattloop.core.errors import ConfigError
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import WindowResult
from wattloop.core.settings import Settings, parse_price
from wattloop.core.units import (
    J_PER_WH,
    format_duration,
    format_energy,
    format_error,
    format_mass,
    format_money,
    kwh_from_joules,
    short_energy,
)


class Cost(NamedTuple):
    """An amount of money."""

    amount: float
    currency: str
    tariff_per_kwh: float


def cost_of(energy_j: float, tariff_per_kwh: float, currency: str) -> Cost:
    """Return the price of an energy at a flat tariff."""
    return Cost(kwh_from_joules(energy_j) * tariff_per_kwh, currency, tariff_per_kwh)


class GpuPrice(NamedTuple):
    """Price of an hour of a GPU: its rent, or its purchase price over the hours of its life."""

    per_hour: Mapping[str, float]
    """GPU -> price; an empty name stands for every other GPU."""
    currency: str

    def cost(self, gpu: str, gpus: int, time_s: float) -> float | None:
        """Return the price of `gpus` GPUs for a time; None for a GPU without a price."""
        price = self.per_hour.get(gpu, self.per_hour.get(""))
        return None if price is None else price * gpus * time_s / 3_600


def parse_gpu_price(text: str, settings: Settings) -> GpuPrice:
    """Parse `2.50`, `'2.50 USD'` or `a100=1.50,h200='3.50 USD/h'`.

    Raises:
        ConfigError: it is not a price, names an unknown GPU, or has another currency than the
            tariff: the two are added.
    """
    from wattloop.hardware.gpus import gpu_named

    allowed = (0.0, 10_000.0, "use a price per GPU hour between 0 and 10000, such as 2.50")
    units = dict.fromkeys(("h", "hour", "gpu-h", "gpu h", "gpuh", "gpu-hour", "gpu hour"), 1.0)
    prices, currencies = {}, set()
    # A comma before a GPU's name separates; one within a number is a decimal comma.
    for part in re.split(r",(?=[^,=]+=)", text):
        name, _, price = part.rpartition("=")
        name = name and gpu_named(name.strip()).name
        if name in prices:
            raise ConfigError(f"--price {text}: two prices of one GPU; give each GPU once")
        prices[name], currency = parse_price(price.strip(), f"--price {text}:", allowed, units)
        currencies |= {currency} if currency else set()
    if settings.tariff_per_kwh is not None and "currency" in settings.sources:
        currencies.add(settings.currency)
    if len(currencies) > 1:
        raise ConfigError(
            f"--price {text}: {' and '.join(sorted(currencies))} cannot be added; give prices of "
            "GPUs and the tariff in one currency"
        )
    return GpuPrice(prices, next(iter(currencies), settings.currency))


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


LEAST_EQUIVALENT = 0.01
"""Of a charge, an hour or a kilometre; less than that tells nothing and is not shown."""
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


STRONG = (Provenance.MEASURED,)
"""Provenance that needs no word; any other is stated."""


def summary_line(accounting: "Accounting") -> str:
    """`wattloop: 3.44 Wh (12.4 kJ) ±0.3% in 61.2 s | cpu 1.14 Wh gpu 2.30 Wh | ...`."""
    parts = (
        _total(accounting.result),
        _scopes(accounting.result),
        _grid(accounting),
        _efficiency(accounting.efficiencies),
    )
    return "wattloop: " + " | ".join(part for part in parts if part)


def _total(result: WindowResult) -> str:
    lasted = format_duration(result.duration_s)
    energy_j = result.energy_j
    if energy_j is None:
        return f"nothing measured in {lasted}"
    share = f" ±{format_error(result.uncertainty_j, energy_j)}" if energy_j else ""
    return f"{format_energy(energy_j)}{share} in {lasted}"


def _scopes(result: WindowResult) -> str:
    words = []
    for scope in Scope:
        energy_j = result.scope_energy_j(scope)
        if energy_j is None:
            continue
        parts = [
            d.provenance for d in result.domains if d.scope is scope and d.energy_j is not None
        ]
        weakest = Provenance.weakest(parts)
        weak = "" if weakest in STRONG else f" ({weakest.value})"
        words.append(f"{scope.value} {short_energy(energy_j, result.energy_j)}{weak}")
    words += [f"{name} missing" for name in dict.fromkeys(m.name for m in result.missing)]
    return " ".join(words)


def _grid(accounting: "Accounting") -> str:
    """Return the energy drawn from the grid; only where carbon or cost is configured."""
    words = []
    if accounting.carbon_g is not None and accounting.intensity is not None:
        where = (accounting.intensity.zone, accounting.intensity.year)
        words.append(" ".join([_carbon(accounting.carbon_g), *(str(w) for w in where if w)]))
    if accounting.cost is not None:
        words.append(f"{format_money(accounting.cost.amount)} {accounting.cost.currency}")
    facility = accounting.facility
    if not words or facility.energy_j is None or facility.provenance is None:
        return ""
    weak = [] if facility.provenance in STRONG else [facility.provenance.value]
    hints = [*weak, *([f"PUE {facility.pue:g}"] if facility.pue != 1 else [])]
    how = f" ({', '.join(hints)})" if hints else ""
    return f"from the grid {short_energy(facility.energy_j)}{how}: {', '.join(words)}"


def _efficiency(efficiencies: Sequence[Efficiency]) -> str:
    node = next((e for e in efficiencies if e.name == "node"), None)
    if node is None:
        return ""
    weak = [] if node.provenance in STRONG else [node.provenance.value]
    hints = [*weak, *([f"of {node.basis}"] if node.capped else [])]
    extra = f" ({', '.join(hints)})" if hints else ""
    return f"efficiency {node.value:.2f} {node.label.value}{extra}"


def _carbon(mass_g: float) -> str:
    """`1.2 g CO2e`."""
    return f"{format_mass(mass_g)} CO2e"


NO_IDLE = "application energy is not known: fit this machine's idle line with 'wattloop idle'"
NO_TARIFF = (
    "set tariff: {per_kwh: 0.25, currency: EUR} to what you pay, in wattloop.yaml; or "
    "WATTLOOP_TARIFF"
)
NO_LIMIT = "no efficiency: no device has both a known power limit and a reading; set cpu_tdp_w:"


class Accounting(NamedTuple):
    """Everything derived from one window.

    Carbon, cost and equivalents are of the facility energy (node x PUE), since that is what is
    drawn from the grid and paid for. What is not known is None, and `notes` says why.
    """

    result: WindowResult
    application: ApplicationEnergy | None
    node: NodeEnergy
    facility: FacilityEnergy
    intensity: Intensity | None
    carbon_g: float | None
    carbon_reason: str
    cost: Cost | None
    cost_reason: str
    efficiencies: tuple[Efficiency, ...]
    insights: tuple[Insight, ...]
    equivalents: tuple[Equivalent, ...]
    notes: tuple[str, ...]

    @property
    def labels(self) -> dict[str, str]:
        """`low`, `medium` or `high` for `cpu`, `gpu` and `node`, as far as they are known."""
        return {
            e.name: e.label.value for e in self.efficiencies if e.name in ("cpu", "gpu", "node")
        }

    @property
    def line(self) -> str:
        return summary_line(self)

    def to_dict(self) -> dict[str, Any]:
        return {
            "application": self.application.to_dict() if self.application else None,
            "node": self.node.to_dict(),
            "facility": self.facility._asdict(),
            "carbon_g": self.carbon_g,
            "carbon_reason": self.carbon_reason,
            "carbon_intensity": self.intensity._asdict() if self.intensity else None,
            "cost": self.cost._asdict() if self.cost else None,
            "cost_reason": self.cost_reason,
            "efficiencies": [e.to_dict() for e in self.efficiencies],
            "labels": self.labels,
            "insights": [i._asdict() for i in self.insights],
            "equivalents": [e._asdict() for e in self.equivalents],
            "notes": list(self.notes),
            "summary": self.line,
        }


def account(
    result: WindowResult,
    settings: Settings,
    *,
    idle_lines: Mapping[str, IdleLine] | None = None,
    idle_note: str = "",
    started_wall_s: float | None = None,
    intensity: IntensitySearch | None = None,
) -> Accounting:
    """Account for one window. Never raises for a wrong zone, file or provider: notes say so.

    Args:
        result: the window.
        settings: PUE, zone, tariff and what else the user stated.
        idle_lines: this machine's idle lines, when it has them.
        idle_note: age of those lines (`IdleRecord.note`).
        started_wall_s: time of day at which the window began; a carbon series needs it.
        intensity: an intensity found before. Without it, it is looked for here, which may ask a
            live provider: give it when accounting for many windows of one run.
    """
    application = application_energy(result, idle_lines) if idle_lines else None
    node = node_energy(result, settings)
    facility = facility_energy(node, settings.pue, settings.sources.get("pue", "default"))
    ended_wall_s = None if started_wall_s is None else started_wall_s + result.duration_s
    search = intensity or find_intensity(settings, started_wall_s, ended_wall_s)
    mass_g, carbon_reason = _carbon_summary(facility, search)
    cost, cost_reason = _cost(facility, settings)
    found = efficiencies(result, settings.cpu_tdp_w)
    return Accounting(
        result=result,
        application=application,
        node=node,
        facility=facility,
        intensity=search.found,
        carbon_g=mass_g,
        carbon_reason=carbon_reason,
        cost=cost,
        cost_reason=cost_reason,
        efficiencies=found,
        insights=insights(found),
        equivalents=equivalents(facility.energy_j, mass_g),
        notes=(
            *_application_notes(application, idle_note),
            *node.assumptions,
            facility.assumption,
            *search.notes,
            *([] if search.found is None else [f"carbon intensity: {search.found.source}"]),
            *([f"carbon: {carbon_reason}"] if carbon_reason else []),
            *([f"cost: {cost_reason}"] if cost_reason else []),
            *([] if found else [NO_LIMIT]),
        ),
    )


def _carbon_summary(facility: FacilityEnergy, search: IntensitySearch) -> tuple[float | None, str]:
    if search.found is None:
        return None, search.reason
    if facility.energy_j is None:
        return None, "nothing was measured"
    return carbon_g(facility.energy_j, search.found.g_co2e_per_kwh), ""


def _cost(facility: FacilityEnergy, settings: Settings) -> tuple[Cost | None, str]:
    if settings.tariff_per_kwh is None:
        return None, NO_TARIFF
    if facility.energy_j is None:
        return None, "nothing was measured"
    return cost_of(facility.energy_j, settings.tariff_per_kwh, settings.currency), ""


def _application_notes(application: ApplicationEnergy | None, idle_note: str) -> list[str]:
    if application is None:
        return [NO_IDLE]
    notes = [idle_note] if idle_note else []
    notes += application.warnings
    lacking = [d for d in application.domains if d.in_total and d.energy_j is None]
    return notes + [f"application energy without {d.name}: {d.reason}" for d in lacking]
