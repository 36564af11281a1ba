"""Terminal output of a run's result: domains, missing devices, warnings."""

from collections.abc import Iterable

from wattloop.core.results import Missing, WindowResult
from wattloop.core.units import format_energy, format_power

UNKNOWN = "-"
DOMAIN_HEADERS = ("domain", "energy", "±", "power", "how", "source")


def domain_rows(result: WindowResult) -> list[tuple[str, ...]]:
    """Return energy, uncertainty, mean power and provenance of each domain."""
    rows: list[tuple[str, ...]] = []
    for domain in result.domains:
        energy_j = domain.energy_j
        power_w = None
        if energy_j is not None and result.duration_s > 0:
            power_w = energy_j / result.duration_s
        rows.append(
            (
                domain.name if domain.in_total else f"{domain.name} (in another)",
                UNKNOWN if energy_j is None else format_energy(energy_j),
                UNKNOWN if energy_j is None else short_energy(domain.uncertainty_j),
                UNKNOWN if power_w is None else format_power(power_w),
                domain.provenance.value,
                domain.source,
            )
        )
    return rows


def remarks(missing: Iterable[Missing], warnings: Iterable[str]) -> list[str]:
    """Return missing devices and warnings."""
    lines = []
    for part in missing:
        remedy = f"; {part.remedy}" if part.remedy else ""
        lines.append(f"missing {part.name}: {part.reason}{remedy}")
    return lines + [f"note: {warning}" for warning in warnings]


def short_energy(energy_j: float) -> str:
    """Format joules without watt-hours."""
    return format_energy(energy_j).partition(" (")[0]
