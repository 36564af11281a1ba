"""Promises of `results`: totals count each joule once, and data survives JSON."""

import json

import pytest

from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, Missing, WindowResult, non_overlapping


def energy(name: str, joules: float | None, **facts: object) -> DomainEnergy:
    values: dict[str, object] = {
        "name": name,
        "scope": Scope.CPU,
        "energy_j": joules,
        "uncertainty_j": 3.0,
        "provenance": Provenance.MEASURED,
        "source": "test",
        **facts,
    }
    return DomainEnergy(**values)  # type: ignore[arg-type]  # facts are fields of DomainEnergy


def window(*domains: DomainEnergy, missing: tuple[Missing, ...] = ()) -> WindowResult:
    return WindowResult(
        name="w",
        window_id=1,
        parent_id=0,
        begin_s=10.0,
        end_s=20.0,
        domains=domains,
        missing=missing,
        warnings=("short",),
        metrics={"loss": 0.5},
    )


@pytest.mark.parametrize(
    ("domains", "counted"),
    [
        ([("cpu:0/package", None), ("cpu:0/core", "cpu:0/package")], {"cpu:0/package"}),
        ([("cpu:0/core", "cpu:0/package")], {"cpu:0/core"}),
        ([("psys", None), ("cpu:0/package", None), ("dram:0", None)], {"cpu:0/package", "dram:0"}),
        ([("psys", None), ("gpu:0", None)], {"psys", "gpu:0"}),
        ([], set()),
    ],
)
def test_overlapping_domains_are_counted_once(
    domains: list[tuple[str, str | None]], counted: set[str]
) -> None:
    """A domain inside another, and psys next to a package, is left out."""
    assert non_overlapping(domains) == counted


def test_total_adds_what_is_in_total_and_errors_in_quadrature() -> None:
    """3 J and 4 J of uncertainty make 5 J."""
    result = window(energy("a", 10.0), energy("b", 20.0, uncertainty_j=4.0))
    assert result.energy_j == 30.0
    assert result.uncertainty_j == 5.0
    assert result.power_w == 3.0


def test_domain_not_in_total_is_shown_but_not_added() -> None:
    """Cores inside a package are an example."""
    assert window(energy("a", 10.0), energy("b", 7.0, in_total=False)).energy_j == 10.0


def test_unread_domain_is_none_and_missing_means_incomplete() -> None:
    """None is not 0 J, and a total with a missing part says so."""
    assert window(energy("a", None)).energy_j is None
    assert not window(energy("a", 1.0), missing=(Missing("gpu", "lost"),)).complete
    assert window(energy("a", 1.0)).complete


def test_scopes_do_not_count_cores_in_addition_to_their_package() -> None:
    """CPU energy is the sum of the packages; a scope without readings is None."""
    result = window(
        energy("cpu:0/package", 10.0),
        energy("cpu:0/core", 6.0, in_total=False),
        energy("cpu:1/package", 20.0),
        energy("dram:0", 2.0, scope=Scope.DRAM),
    )
    assert result.cpu_energy_j == 30.0
    assert result.dram_energy_j == 2.0
    assert result.gpu_energy_j is None


def test_sum_is_as_good_as_its_weakest_part() -> None:
    """Simulated is weaker than estimated, and estimated weaker than measured."""
    order = [Provenance.MEASURED, Provenance.MODELLED, Provenance.ESTIMATED, Provenance.SIMULATED]
    for weaker in order:
        assert Provenance.weakest([Provenance.MEASURED, weaker]) is weaker


def test_window_survives_json() -> None:
    """Journal and store return the window as it was measured."""
    result = window(
        energy("a", 10.0, covered=0.5, tdp_w=65.0),
        energy("b", None),
        missing=(Missing("b", "gone", "plug it in"),),
    )
    assert WindowResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
