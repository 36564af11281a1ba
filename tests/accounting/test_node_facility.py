import pytest

from wattloop.accounting.node import NodeEnergy, facility_energy
from wattloop.core.records import Provenance


def test_facility_energy_is_node_energy_times_pue():
    """Energy and its uncertainty scale; provenance stays."""
    node = NodeEnergy(energy_j=260.0, uncertainty_j=20.0, provenance=Provenance.MODELLED)
    facility = facility_energy(node, 1.3, "file wattloop.yaml:2")
    assert facility.energy_j == pytest.approx(338.0)
    assert facility.uncertainty_j == pytest.approx(26.0)
    assert facility.provenance is Provenance.MODELLED
    assert facility.assumption == "PUE 1.3 (file wattloop.yaml:2)"


def test_an_unset_pue_is_reported():
    """The text says that the default of 1 leaves cooling out."""
    assert "not counted" in facility_energy(NodeEnergy(energy_j=1.0), 1.0).assumption


def test_unknown_stays_unknown():
    """A missing energy times the PUE is missing."""
    assert facility_energy(NodeEnergy(energy_j=None), 1.3).energy_j is None
