"""Restatement of a stored run: its carbon and cost with the present settings.

A run is stored with the carbon and cost that were known as it ended. If you state a zone or a
tariff later, every view of the run uses it; the store stays unchanged.

- What the run did not know is filled in from flags, environment or file.
- What it knew is replaced only by a flag or an environment variable with another value: the
file
  of this machine says nothing about a run that was measured elsewhere.
- A live intensity holds for now and not for the time of the run, so no provider is asked.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wattloop.accounting.carbon import IntensitySearch, carbon_g, find_intensity
from wattloop.accounting.node import NodeEnergy, facility_energy
from wattloop.accounting.summary import cost_of, equivalents
from wattloop.core.records import Provenance
from wattloop.core.settings import GRID, Settings
from wattloop.store.run_record import RunRecord

CARBON = ("zone", "carbon_g_per_kwh", "carbon_file")
STALE_NOTES = ("carbon: ", "carbon intensity: ", "cost: ", "PUE ")


def restated(record: RunRecord, settings: Settings) -> RunRecord:
    """Return the run with the accounting of `settings`, or the same object if unchanged."""
    accounting = record.accounting or {}
    node = accounting.get("node") or {}
    given = [name for name in settings.sources if _applies(name, settings, record)]
    reasons = _faults(accounting, settings)
    if node.get("energy_j") is None or not (given or reasons):
        return record
    changed = {**accounting, **_facility(accounting, given, settings)}
    energy_j = changed["facility"]["energy_j"]
    if set(CARBON) & set(given):
        changed |= _carbon(energy_j, accounting, _search(given, settings, record))
    elif accounting.get("carbon_g") is not None and accounting.get("carbon_intensity"):
        grams = accounting["carbon_intensity"]["g_co2e_per_kwh"]
        changed["carbon_g"] = carbon_g(energy_j, grams)
    cost = accounting.get("cost") or {}
    if "tariff_per_kwh" in given and settings.tariff_per_kwh is not None:
        cost = {"tariff_per_kwh": settings.tariff_per_kwh, "currency": settings.currency}
    if cost.get("tariff_per_kwh") is not None:
        paid = cost_of(energy_j, cost["tariff_per_kwh"], cost["currency"])
        changed |= {"cost": paid._asdict(), "cost_reason": ""}
    changed |= reasons
    alike = equivalents(energy_j, changed.get("carbon_g"))
    changed["equivalents"] = [each._asdict() for each in alike]
    changed["notes"] = _notes(changed, given, settings)
    return replace(record, accounting=changed)


def _applies(name: str, settings: Settings, record: RunRecord) -> bool:
    if name not in GRID or name in ("carbon_url", "carbon_provider"):
        return False
    if settings.sources[name].startswith(("environment", "flag")):
        return bool(getattr(settings, name) != record.settings.get(name))
    return name not in (record.settings.get("sources") or {})


def _facility(
    accounting: Mapping[str, Any], given: list[str], settings: Settings
) -> dict[str, Any]:
    facility = accounting.get("facility") or {}
    if "pue" not in given and facility.get("energy_j") is not None:
        return {"facility": facility}
    pue, source = facility.get("pue") or 1.0, "default"
    if "pue" in given:
        pue, source = settings.pue, settings.sources["pue"]
    stored = accounting["node"]
    provenance = stored.get("provenance")
    node = NodeEnergy(
        energy_j=stored["energy_j"],
        uncertainty_j=stored.get("uncertainty_j") or 0.0,
        provenance=None if provenance is None else Provenance(provenance),
    )
    return {"facility": facility_energy(node, pue, source)._asdict()}


def _search(given: list[str], settings: Settings, record: RunRecord) -> IntensitySearch:
    """Find the intensity of the present settings; a series may need the run's zone."""
    stated: dict[str, Any] = {name: getattr(settings, name) for name in CARBON if name in given}
    if "carbon_file" in given:
        stated.setdefault("zone", settings.zone or str(record.settings.get("zone") or ""))
    begin_s, lasted_s = record.started_wall_s, record.duration_s or 0.0
    return find_intensity(Settings(**stated, sources=settings.sources), begin_s, begin_s + lasted_s)


def _carbon(
    energy_j: float, accounting: Mapping[str, Any], search: IntensitySearch
) -> dict[str, Any]:
    if search.found is None:
        # Values of the run remain; an invalid present setting does not remove them.
        return {} if accounting.get("carbon_g") is not None else {"carbon_reason": search.reason}
    return {
        "carbon_g": carbon_g(energy_j, search.found.g_co2e_per_kwh),
        "carbon_reason": "",
        "carbon_intensity": search.found._asdict(),
    }


def _faults(accounting: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return why a value is still unknown: its setting is invalid."""
    found = {}
    if accounting.get("cost") is None and "tariff_per_kwh" in settings.faults:
        found["cost_reason"] = settings.faults["tariff_per_kwh"]
    carbon = [settings.faults[name] for name in CARBON if name in settings.faults]
    if accounting.get("carbon_g") is None and carbon:
        found["carbon_reason"] = "; ".join(carbon)
    return found


def _notes(changed: Mapping[str, Any], given: list[str], settings: Settings) -> list[str]:
    kept = [note for note in changed.get("notes") or () if not note.startswith(STALE_NOTES)]
    kept.append(changed["facility"].get("assumption") or "")
    intensity = changed.get("carbon_intensity")
    if intensity:
        kept.append(f"carbon intensity: {intensity['source']}")
    for what in ("carbon", "cost"):
        if changed.get(f"{what}_reason"):
            kept.append(f"{what}: {changed[f'{what}_reason']}")
    if given:
        sources = dict.fromkeys(settings.sources[name] for name in given)
        kept.append(f"carbon and cost with the settings of now: {', '.join(sources)}")
    return [note for note in kept if note]
