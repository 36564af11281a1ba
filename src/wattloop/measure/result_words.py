"""A measurement in a few words, as an interactive session shows it."""

from wattloop.core.results import WindowResult
from wattloop.core.units import format_duration, format_energy

__all__ = ["in_words"]


def in_words(result: WindowResult, going: bool = False) -> str:
    """Such as `9.81 J ± 0.42 J in 1.23 s, measured`."""
    took = f"in {format_duration(result.duration_s)}{' so far' * going}"
    if result.energy_j is None:
        return f"nothing could be read {took}"
    energy = f"{format_energy(result.energy_j)} ± {format_energy(result.uncertainty_j)}"
    part = "" if result.complete else ", incomplete"
    return f"{energy} {took}, {result.provenance}{part}"
