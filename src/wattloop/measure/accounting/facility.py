"""Energy of the room: what the node used, times the PUE the user states.

E_facility = E_node x PUE
"""

from typing import Any, NamedTuple

from wattloop.core.provenance import Provenance
from wattloop.measure.accounting.node import NodeEnergy

__all__ = ["FacilityEnergy", "facility_energy"]


class FacilityEnergy(NamedTuple):
    """Joules with cooling and distribution. The PUE is stated, so it adds no uncertainty."""

    energy_j: float | None
    uncertainty_j: float
    pue: float
    provenance: Provenance | None
    assumption: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return self._asdict()


def facility_energy(node: NodeEnergy, pue: float, pue_source: str = "default") -> FacilityEnergy:
    """Node energy times PUE; None stays None."""
    return FacilityEnergy(
        energy_j=None if node.energy_j is None else node.energy_j * pue,
        uncertainty_j=node.uncertainty_j * pue,
        pue=pue,
        provenance=node.provenance,
        assumption="PUE 1: cooling and distribution of the room are not counted; set pue"
        if pue == 1.0 and pue_source == "default"
        else f"PUE {pue:g} ({pue_source})",
    )
