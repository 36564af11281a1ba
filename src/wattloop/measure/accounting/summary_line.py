"""One line that fits a log: energy, where it went, what it cost, and how sure we are."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wattloop.core.provenance import Provenance
from wattloop.core.records import Scope
from wattloop.core.results import WindowResult
from wattloop.core.units import format_duration, format_energy, format_mass
from wattloop.measure.accounting.efficiency import Efficiency

if TYPE_CHECKING:
    from wattloop.measure.accounting.summary import Accounting

__all__ = ["summary_line"]

STRONG = (Provenance.MEASURED,)
"""Provenance that needs no word; any other is stated."""


def summary_line(accounting: "Accounting") -> str:
    """`wattloop: 12.4 kJ (3.44 Wh) ±0.3% in 61.2 s | cpu 4.1 kJ gpu 8.0 kJ | ...`."""
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
    share = f" ±{_percent(result.uncertainty_j / abs(energy_j))}" if energy_j else ""
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
        words.append(f"{scope.value} {_short(energy_j)}{weak}")
    words += [f"{name} missing" for name in dict.fromkeys(m.name for m in result.missing)]
    return " ".join(words)


def _grid(accounting: "Accounting") -> str:
    """What was drawn from the grid; only where carbon or cost is asked for."""
    words = []
    if accounting.carbon_g is not None and accounting.intensity is not None:
        where = (accounting.intensity.zone, accounting.intensity.year)
        words.append(" ".join([_carbon(accounting.carbon_g), *(str(w) for w in where if w)]))
    if accounting.cost is not None:
        words.append(f"{accounting.cost.amount:.2g} {accounting.cost.currency}")
    facility = accounting.facility
    if not words or facility.energy_j is None or facility.provenance is None:
        return ""
    weak = [] if facility.provenance in STRONG else [facility.provenance.value]
    hints = [*weak, *([f"PUE {facility.pue:g}"] if facility.pue != 1 else [])]
    how = f" ({', '.join(hints)})" if hints else ""
    return f"from the grid {_short(facility.energy_j)}{how}: {', '.join(words)}"


def _efficiency(efficiencies: Sequence[Efficiency]) -> str:
    node = next((e for e in efficiencies if e.name == "node"), None)
    if node is None:
        return ""
    weak = [] if node.provenance in STRONG else [node.provenance.value]
    hints = [*weak, *([f"of {node.basis}"] if node.capped else [])]
    extra = f" ({', '.join(hints)})" if hints else ""
    return f"efficiency {node.value:.2f} {node.label.value}{extra}"


def _short(energy_j: float) -> str:
    """Joules without the watt-hours in brackets."""
    return format_energy(energy_j).partition(" (")[0]


def _carbon(mass_g: float) -> str:
    """`1.2 gCO2e`."""
    return f"{format_mass(mass_g)}CO2e"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
