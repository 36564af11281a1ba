"""Parts of a report on a run: its figures, sensors, labels and what they mean."""

from collections.abc import Mapping, Sequence
from typing import Any

from wattloop.core.results import WindowResult
from wattloop.core.units import format_energy, format_mass, format_power
from wattloop.report.document import Badge, Badges, Fact, Facts, Note, Table
from wattloop.store.runs import RunRecord

__all__ = ["grid_facts", "labels", "remarks", "sensors", "windows_table"]

LABEL_TONES = {"high": "good", "medium": "info", "low": "warning"}
INSIGHT_TONES = {"good": "good", "info": "info", "warning": "warning"}
WINDOWS_SHOWN = 30


def sensors(record: RunRecord) -> Table:
    """Energy of every domain, how sure it is, and which sensor it comes from."""
    assert record.result is not None
    result = record.result
    rows = []
    for domain in result.domains:
        energy_j = domain.energy_j
        power_w = (
            None if energy_j is None or not result.duration_s else energy_j / result.duration_s
        )
        rows.append(
            (
                domain.name + ("" if domain.in_total else " (within another)"),
                _or_dash(energy_j, format_energy),
                "–" if energy_j is None else f"± {_percent(domain.uncertainty_j, energy_j)}",
                _or_dash(power_w, format_power),
                "–" if domain.tdp_w is None else format_power(domain.tdp_w),
                domain.provenance.value,
                domain.source,
            )
        )
    rows += [
        (part.name, "not known", "", "", "", "missing", part.reason) for part in result.missing
    ]
    return Table(
        ("domain", "energy", "uncertainty", "mean power", "limit", "how", "sensor"),
        tuple(rows),
        caption="Energy by component, and where each figure comes from",
        numbers=frozenset((1, 2, 3, 4)),
        notes=tuple(f"{part.name}: {part.remedy}" for part in result.missing if part.remedy),
    )


def labels(accounting: Mapping[str, Any]) -> Badges | None:
    """Efficiency E / (TDP x T) of every device, of CPU, GPU and node, with its label."""
    badges = [
        Badge(
            label=one["name"],
            value=f"{one['value']:.2f} {one['label']}",
            tone=LABEL_TONES.get(one["label"], "plain"),
            meaning=f"{format_power(one['power_w'])} of {format_power(one['tdp_w'])} "
            f"({one['basis']}), {one['provenance']}",
        )
        for one in accounting.get("efficiencies") or ()
    ]
    return Badges(tuple(badges)) if badges else None


def remarks(record: RunRecord) -> list[Note]:
    """Insights, warnings and notes of a run."""
    accounting = record.accounting or {}
    found = [
        Note(one["text"], tone=INSIGHT_TONES.get(str(one["severity"]), "plain"), title="Insight:")
        for one in accounting.get("insights") or ()
    ]
    if record.result is not None:
        found += [Note(text, tone="warning", title="Beware:") for text in record.result.warnings]
    return found + [Note(text, tone="info") for text in record.notes]


def grid_facts(accounting: Mapping[str, Any]) -> Facts | None:
    """From the wall: the node, the room, carbon and cost; each with how it was found."""
    facts = []
    node = accounting.get("node") or {}
    if node.get("energy_j") is not None:
        facts.append(
            Fact("Whole node", format_energy(node["energy_j"]), str(node.get("provenance") or ""))
        )
    facility = accounting.get("facility") or {}
    if facility.get("energy_j") is not None:
        said = [f"PUE {facility['pue']:g}"] if facility.get("pue") else []
        said += [str(facility["provenance"])] if facility.get("provenance") else []
        facts.append(Fact("From the grid", format_energy(facility["energy_j"]), "; ".join(said)))
    if accounting.get("carbon_g") is not None:
        intensity = accounting.get("carbon_intensity") or {}
        grams, source = intensity.get("g_co2e_per_kwh"), str(intensity.get("source") or "")
        how = source if grams is None else f"{grams:g} g/kWh, {source}"
        facts.append(Fact("Carbon", f"{format_mass(accounting['carbon_g'])}CO2e", how))
    else:
        facts.append(Fact("Carbon", "not known", str(accounting.get("carbon_reason") or "")))
    cost = accounting.get("cost")
    if cost:
        facts.append(Fact("Cost", f"{cost['amount']:.3g} {cost['currency']}"))
    else:
        facts.append(Fact("Cost", "not known", str(accounting.get("cost_reason") or "")))
    alike = [
        f"{one['amount']:.3g} {one['unit']} {one['text']}"
        for one in accounting.get("equivalents") or ()
    ]
    if alike:
        facts.append(Fact("As much as", alike[0], "; ".join(alike[1:])))
    return Facts(tuple(facts))


def windows_table(windows: Sequence[WindowResult]) -> Table | None:
    """The measured regions within a run."""
    if not windows:
        return None
    from wattloop.core.units import format_duration

    rows = tuple(
        (
            window.name,
            format_duration(window.duration_s),
            _or_dash(window.energy_j, format_energy),
            "–"
            if window.energy_j is None
            else f"± {_percent(window.uncertainty_j, window.energy_j)}",
        )
        for window in windows[:WINDOWS_SHOWN]
    )
    more = len(windows) - len(rows)
    return Table(
        ("window", "duration", "energy", "uncertainty"),
        rows,
        caption="Windows",
        numbers=frozenset((1, 2, 3)),
        notes=(f"and {more} more; 'wattloop runs export --what windows' has them all",)
        if more > 0
        else (),
    )


def _or_dash(value: float | None, shown: Any) -> str:
    return "–" if value is None else str(shown(value))


def _percent(part: float, whole: float) -> str:
    return "?" if not whole else f"{abs(part / whole):.1%}"
