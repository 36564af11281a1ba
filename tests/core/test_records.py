"""Data from JSON that do not have a record's shape are told by the field."""

from typing import Any

import pytest

from wattloop.core.records import shape_fault
from wattloop.core.results import DomainEnergy, WindowResult

ENERGY = {"name": "gpu:0", "scope": "gpu", "energy_j": 1, "uncertainty_j": 0.1}
ENERGY |= {"provenance": "measured", "source": "NVML", "of_a_later_version": []}
WINDOW = {"name": "w", "window_id": 1, "parent_id": None, "begin_s": 0, "end_s": 1.5}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, ""),
        ({"metrics": {"loss": 0.5}}, ""),
        ({"name": 7}, "name: not text"),
        ({"window_id": True}, "window_id: not a whole number"),
        ({"end_s": 10**400}, "end_s: not a number"),
        ({"domains": [{**ENERGY, "scope": "x"}]}, "domains.0.scope: not one of"),
        ({"domains": "x"}, "domains: not a list"),
        ({"metrics": []}, "metrics: not an object"),
        ({"missing": [{"name": "dram"}]}, "missing.0.reason: missing"),
    ],
)
def test_a_fault_is_told_by_its_field(change: dict[str, Any], fault: str) -> None:
    """Fields of later versions are no fault."""
    found = shape_fault({**WINDOW, "domains": [ENERGY], **change}, WindowResult)
    assert found.startswith(fault) and bool(found) == bool(fault)


def test_what_the_record_writes_has_its_shape() -> None:
    """A result as it is stored is never refused."""
    whole = WindowResult("w", 1, None, 0.0, 1.0).to_dict()
    assert shape_fault(whole, WindowResult) == ""
    assert shape_fault(None, DomainEnergy) == "it: not an object"
