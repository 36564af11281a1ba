"""What a run's joules mean, in words: application, node, grid, efficiency, insights."""

from collections.abc import Iterator, Mapping
from typing import Any

from wattloop.core.units import format_energy, format_mass

__all__ = ["meaning_lines"]


def meaning_lines(accounting: Mapping[str, Any] | None) -> list[str]:
    """Lines for people, from the accounting that was stored with the run."""
    if not accounting:
        return []
    return [
        *_application(accounting.get("application")),
        *_estimate("node", accounting.get("node")),
        *_grid(accounting),
        *_efficiency(accounting.get("efficiencies") or ()),
        *(f"insight      {insight['text']}" for insight in accounting.get("insights") or ()),
        *_equivalents(accounting.get("equivalents") or ()),
        *(f"note         {note}" for note in accounting.get("notes") or ()),
    ]


def _application(application: Mapping[str, Any] | None) -> Iterator[str]:
    if application and application.get("energy_j") is not None:
        yield f"application  {format_energy(application['energy_j'])} above the machine's idle line"


def _estimate(name: str, estimate: Mapping[str, Any] | None) -> Iterator[str]:
    if not estimate or estimate.get("energy_j") is None:
        return
    spread = format_energy(estimate.get("uncertainty_j") or 0.0).partition(" (")[0]
    yield f"{name:12} {format_energy(estimate['energy_j'])} ± {spread} ({estimate['provenance']})"


def _grid(accounting: Mapping[str, Any]) -> Iterator[str]:
    facility = accounting.get("facility") or {}
    words = []
    if accounting.get("carbon_g") is not None:
        words.append(f"{format_mass(accounting['carbon_g'])}CO2e")
    cost = accounting.get("cost")
    if cost:
        words.append(f"{cost['amount']:.2g} {cost['currency']}")
    if words and facility.get("energy_j") is not None:
        pue = f" at PUE {facility['pue']:g}" if facility.get("pue") else ""
        yield f"grid         {format_energy(facility['energy_j'])}{pue}: {', '.join(words)}"


def _efficiency(efficiencies: Any) -> Iterator[str]:
    for one in efficiencies:
        weak = "" if one["provenance"] == "measured" else f", {one['provenance']}"
        yield (
            f"efficiency   {one['name']}: {one['value']:.2f} {one['label']} "
            f"(of {one['tdp_w']:.0f} W: {one['basis']}{weak})"
        )


def _equivalents(equivalents: Any) -> Iterator[str]:
    words = [f"{e['amount']:.2g} {e['unit']} {e['text']}" for e in equivalents]
    if words:
        yield f"as much as   {'; '.join(words)}"
