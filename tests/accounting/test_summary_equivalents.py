import pytest

from wattloop.accounting.summary import CARBON_FACTORS, ENERGY_FACTORS, equivalents


def test_kilometres_and_lamp_hours():
    """108.1 g are one km; 10 Wh are one hour of a 10 W lamp."""
    found = {e.name: e for e in equivalents(36_000.0, 108.1)}
    assert found["car"].amount == pytest.approx(1.0)
    assert found["led"].amount == pytest.approx(1.0)


def test_without_carbon_there_are_no_kilometres():
    """An unknown equivalent is left out, not zero."""
    assert "car" not in {e.name for e in equivalents(36_000.0, None)}
    assert equivalents(None, None) == ()


def test_every_factor_names_its_source():
    """A factor is published with a year, or marked as a definition or as arithmetic."""
    for factor in (*CARBON_FACTORS, *ENERGY_FACTORS):
        assert factor.source
        assert factor.year or "definition" in factor.source or "heat" in factor.source
        assert factor.cost_per_unit > 0
