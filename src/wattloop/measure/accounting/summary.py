"""What a window's joules mean, all together, and the line that fits a log."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from wattloop.core.results import WindowResult
from wattloop.core.settings import Settings
from wattloop.measure.accounting.carbon import (
    Intensity,
    IntensitySearch,
    carbon_g,
    find_intensity,
)
from wattloop.measure.accounting.cost import Cost, cost_of
from wattloop.measure.accounting.efficiency import Efficiency, efficiencies
from wattloop.measure.accounting.equivalents import Equivalent, equivalents
from wattloop.measure.accounting.facility import FacilityEnergy, facility_energy
from wattloop.measure.accounting.idle import ApplicationEnergy, IdleLine, application_energy
from wattloop.measure.accounting.insights import Insight, insights
from wattloop.measure.accounting.node import NodeEnergy, node_energy
from wattloop.measure.accounting.summary_line import summary_line

__all__ = ["Accounting", "account"]

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
        """One line for a log."""
        return summary_line(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "application": self.application.to_dict() if self.application else None,
            "node": self.node.to_dict(),
            "facility": self.facility.to_dict(),
            "carbon_g": self.carbon_g,
            "carbon_reason": self.carbon_reason,
            "carbon_intensity": self.intensity.to_dict() if self.intensity else None,
            "cost": self.cost.to_dict() if self.cost else None,
            "cost_reason": self.cost_reason,
            "efficiencies": [e.to_dict() for e in self.efficiencies],
            "labels": self.labels,
            "insights": [i.to_dict() for i in self.insights],
            "equivalents": [e.to_dict() for e in self.equivalents],
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
    mass_g, carbon_reason = _carbon(facility, search)
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


def _carbon(facility: FacilityEnergy, search: IntensitySearch) -> tuple[float | None, str]:
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
