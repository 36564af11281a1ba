"""The carbon of a card: of the training, of inferences, and whose electricity it was."""

from collections.abc import Iterator

from wattloop.accounting.carbon import IntensitySearch, carbon_g
from wattloop.core.units import format_mass
from wattloop.report.card_figure import NOT_KNOWN, CardFigure
from wattloop.report.card_inference import Inference
from wattloop.store.runs import RunRecord

__all__ = ["carbon_figures"]

NO_SHARE = "no source here tells it; state it with --renewable"
INFERENCES_SHOWN = 1_000


def carbon_figures(
    record: RunRecord,
    inference: Inference | None,
    intensity: IntensitySearch,
    renewable_share: float | None,
) -> Iterator[CardFigure]:
    """Training, 1,000 inferences, intensity and renewable share; what is not known says why."""
    found = intensity.found
    facility = (record.accounting or {}).get("facility") or {}
    grid_j, how = facility.get("energy_j"), str(facility.get("provenance") or "")
    keys = ("training_carbon", "Training", "g CO2e")
    if found is None or grid_j is None:
        reason = intensity.reason if found is None else "the energy of the training is not known"
        yield CardFigure(*keys[:2], None, keys[2], NOT_KNOWN, "", reason)
    else:
        mass_g = carbon_g(grid_j, found.g_co2e_per_kwh)
        text = f"{format_mass(mass_g)} CO2e"
        yield CardFigure(*keys[:2], mass_g, keys[2], text, how, "energy from the grid x intensity")
    if found and inference is not None and inference.node_energy_j is not None:
        pue = float(facility.get("pue") or 1.0)
        mass_g = carbon_g(inference.node_energy_j * INFERENCES_SHOWN * pue, found.g_co2e_per_kwh)
        label = f"{INFERENCES_SHOWN:,} inferences"
        text = f"{format_mass(mass_g)} CO2e"
        yield CardFigure(
            "inference_carbon", label, mass_g, "g CO2e", text, inference.provenance,
            f"whole node x PUE {pue:g}, intensity of the training",
        )  # fmt: skip
    if found is None:
        yield CardFigure(
            "carbon_intensity", "Intensity", None, "g CO2e/kWh", NOT_KNOWN, "", intensity.reason
        )
    else:
        text = f"{found.g_co2e_per_kwh:g} g CO2e/kWh" + (f", {found.zone}" if found.zone else "")
        yield CardFigure(
            "carbon_intensity", "Intensity", found.g_co2e_per_kwh, "g CO2e/kWh", text,
            found.kind.value, found.source,
        )  # fmt: skip
    if renewable_share is None:
        yield CardFigure("renewable_share", "Renewable", None, "", NOT_KNOWN, "", NO_SHARE)
    else:
        text = f"{renewable_share:.0%} of the electricity"
        yield CardFigure("renewable_share", "Renewable", renewable_share, "", text, "stated")
