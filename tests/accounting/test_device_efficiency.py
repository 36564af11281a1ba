import pytest

from tests.accounting.windows import domain, window
from wattloop.accounting.device_efficiency import Label, efficiencies, label_of
from wattloop.core.records import Provenance


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (0.0, Label.LOW),
        (0.399, Label.LOW),
        (0.4, Label.MEDIUM),
        (0.9, Label.MEDIUM),
        (0.901, Label.HIGH),
        (1.2, Label.HIGH),
    ],
)
def test_labels_are_those_of_energyscopium(value, label):
    """Below 0.4 is low, above 0.9 high, and between them medium."""
    assert label_of(value) is label


def test_the_examples_of_energyscopium():
    """CPU at 115 W of 200 W, GPUs at their 300 W; the node against the sum of its limits."""
    found = efficiencies(
        window(
            10,
            domain("cpu:0/package", 1_150, tdp_w=200.0),
            *(domain(f"gpu:{i}", 3_000, tdp_w=300.0) for i in range(4)),
            domain("dram", 100),
        )
    )
    by_name = {e.name: e for e in found}
    assert by_name["cpu"].value == pytest.approx(0.575)
    assert by_name["gpu"].value == pytest.approx(1.0)
    assert by_name["node"].value == pytest.approx(1_315 / 1_400)
    assert by_name["gpu"].label is Label.HIGH
    assert by_name["gpu:3"].value == pytest.approx(1.0)


def test_under_a_power_cap_the_limit_is_the_enforced_one_and_says_so():
    """300 W under a cap of 300 W of 700 W is full use of what is allowed."""
    note = "enforced power limit 300 W of 700 W"
    found = efficiencies(window(10, domain("gpu:0", 2_900, tdp_w=300.0, tdp_note=note)))
    assert found[0].value == pytest.approx(2_900 / 3_000)
    assert found[0].capped
    assert {e.basis for e in found} == {note}


def test_a_device_without_limit_or_reading_is_left_out_by_name():
    """Neither counted as zero nor hidden."""
    found = efficiencies(
        window(
            10,
            domain("gpu:0", 1_000, tdp_w=200.0),
            domain("gpu:1", 1_000),
            domain("gpu:2", None, tdp_w=200.0),
        )
    )
    gpu = next(e for e in found if e.name == "gpu")
    assert gpu.value == pytest.approx(0.5)
    assert gpu.without == ("gpu:1", "gpu:2")


def test_the_users_cpu_tdp_fills_in():
    """cpu_tdp_w applies to packages with an unknown TDP, and the result says so."""
    found = efficiencies(window(10, domain("cpu:0/package", 1_000)), cpu_tdp_w=200.0)
    assert found[0].value == pytest.approx(0.5)
    assert "cpu_tdp_w" in found[0].basis


def test_cores_inside_a_package_are_not_counted_again():
    """Only whole devices are judged."""
    found = efficiencies(
        window(
            10,
            domain("cpu:0/package", 1_000, tdp_w=200.0),
            domain("cpu:0/core", 900, tdp_w=200.0, in_total=False),
        )
    )
    assert [e.name for e in found] == ["cpu:0/package", "cpu", "node"]


def test_a_device_lost_midway_is_judged_by_the_time_it_was_read():
    """Half the time read, half the energy: the same power."""
    found = efficiencies(window(10, domain("gpu:0", 500, tdp_w=200.0, covered=0.5)))
    assert found[0].value == pytest.approx(0.5)


def test_an_estimate_stays_an_estimate():
    """The weakest part's provenance is that of the node."""
    found = efficiencies(
        window(
            10,
            domain("cpu:0/package", 1_000, tdp_w=200.0, provenance=Provenance.ESTIMATED),
            domain("gpu:0", 1_000, tdp_w=200.0),
        )
    )
    assert found[-1].provenance is Provenance.ESTIMATED


def test_a_window_of_no_length_has_no_efficiency():
    """A window of zero length causes no division by zero."""
    assert efficiencies(window(0, domain("gpu:0", 5, tdp_w=200.0))) == ()
