import pytest

from tests.accounting.windows import domain, window
from wattloop.accounting.node import node_energy
from wattloop.core.records import Provenance, Scope
from wattloop.core.settings import Settings

WH = 3_600.0


def test_a_measured_node_is_taken_as_it_is():
    """Where a wall meter or the BMC reads the node, no model is added."""
    node = node_energy(window(10, domain("node", 5_000, uncertainty_j=50.0)), Settings())
    assert (node.energy_j, node.uncertainty_j) == (5_000, 50.0)
    assert node.provenance is Provenance.MEASURED


def test_psys_is_not_the_node():
    """psys ends at the board: power supply and fans are still to be added."""
    node = node_energy(window(10, domain("psys", 1_000)), Settings())
    assert node.provenance is Provenance.MODELLED
    assert node.energy_j > 1_000


def test_the_model_is_the_stated_formula():
    """(measured + 62 W + 10% fans) / 0.92, and the text states the formula."""
    node = node_energy(window(10, domain("cpu:0/package", 2_000)), Settings())
    assert node.energy_j == pytest.approx((2_000 + (62 + 0.10 * 200) * 10) / 0.92)
    assert node.provenance is Provenance.MODELLED
    assert any("power supply 0.92" in text for text in node.assumptions)
    assert any("other parts 82.0 W" in text for text in node.assumptions)


def test_a_job_on_a_shared_node_carries_its_share_of_the_board():
    """A quarter of the 62 W and all of its own fans, and the text says so."""
    node = node_energy(window(10, domain("gpu:0", 2_000)), Settings(node_share=0.25))
    assert node.energy_j == pytest.approx((2_000 + (62 / 4 + 0.10 * 200) * 10) / 0.92)
    assert any("25% of board" in text for text in node.assumptions)


def test_an_unknown_share_of_the_board_is_not_zero():
    """Promise: where the run's share of the processors is unknown, its share of the node is too."""
    settings = Settings(node_share=0.5).of_part(None)
    node = node_energy(window(10, domain("gpu:0", 2_000)), settings)
    assert (node.energy_j, node.complete) == (None, False)
    assert "--share device" in node.reason
    assert Settings(node_share=0.5).of_part(0.5) == Settings(node_share=0.25)


def test_a_virtual_machine_carries_the_host_as_it_carries_the_processor():
    """2 of the host's 192 threads: 1/96 of the 62 W too; a job's share is a part of that."""
    package = domain("cpu:0/package", 20, host_share=2 / 192)
    node = node_energy(window(10, package), Settings())
    assert node.energy_j == pytest.approx((20 + (62 / 96 + 0.10 * 2) * 10) / 0.92)
    assert any("1% of board" in text and "host's threads" in text for text in node.assumptions)
    of_job = node_energy(window(10, package), Settings(node_share=0.5))
    assert of_job.energy_j == pytest.approx((20 + (31 / 96 + 0.10 * 2) * 10) / 0.92)
    stated = node_energy(window(10, package), Settings(node_overhead_w=5.0))
    assert stated.energy_j == pytest.approx((20 + 5 * 10) / 0.92)


def test_the_users_own_numbers_replace_the_defaults():
    """With both values stated, only the sensors' uncertainty is left."""
    settings = Settings(node_overhead_w=30.0, psu_efficiency=0.8)
    node = node_energy(window(10, domain("gpu:0", 1_700, uncertainty_j=8.0)), settings)
    assert node.energy_j == pytest.approx(2_000 / 0.8)
    assert node.uncertainty_j == pytest.approx(10.0)


def test_the_example_of_energyscopium_lies_within_the_stated_uncertainty():
    """209.06 Wh measured became 338.00 Wh at PUE 1.3: a node of 260 Wh, at about 1400 W.

    A guard for the defaults, not a validation: they were chosen with this example in view.
    """
    duration_s = 209.06 * WH / 1_400
    node = node_energy(window(duration_s, domain("gpu:0", 209.06 * WH)), Settings())
    assert abs(node.energy_j - 338.00 / 1.3 * WH) <= node.uncertainty_j
    assert node.uncertainty_j < 0.1 * node.energy_j


def test_the_model_is_no_stronger_than_its_input():
    """A simulated GPU does not become a modelled node."""
    node = node_energy(
        window(10, domain("gpu:0", 1_000, provenance=Provenance.SIMULATED)), Settings()
    )
    assert node.provenance is Provenance.SIMULATED


def test_missing_parts_make_the_estimate_incomplete():
    """The model does not hide that a device was not read."""
    node = node_energy(window(10, domain("gpu:0", 1_000), missing=("cpu:0/package",)), Settings())
    assert not node.complete
    assert "cpu:0/package" in node.assumptions[-1]


def test_nothing_measured_gives_nothing():
    """Constants alone do not make a node energy."""
    node = node_energy(window(10), Settings())
    assert node.energy_j is None
    assert node.reason


def test_a_window_of_no_length_does_not_divide_by_zero():
    """An instant has no overhead."""
    assert node_energy(window(0, domain("gpu:0", 1.0)), Settings()).energy_j == pytest.approx(
        1 / 0.92
    )


def test_a_node_of_several_measured_modules_is_their_sum():
    """Two Grace modules, or two batteries, make up the node: the first alone is half of it."""
    modules = [domain(f"module:{n}", 3_000, scope=Scope.NODE, uncertainty_j=30.0) for n in (0, 1)]
    inside = domain("gpu:0", 1_000, in_total=False)
    node = node_energy(window(10, *modules, inside), Settings())
    assert node.energy_j == 6_000
    assert node.uncertainty_j == pytest.approx(30 * 2**0.5)


def test_a_node_meter_that_is_not_in_the_total_is_not_taken():
    """Next to a power meter, a listed battery does not replace it."""
    battery = domain("battery:BAT0", 4_000, scope=Scope.NODE, in_total=False)
    node = node_energy(window(10, battery, domain("node", 5_000)), Settings())
    assert node.energy_j == 5_000


def test_a_node_meter_that_fell_silent_gives_no_whole_node():
    """Half of the time read is half of the energy, and the result is marked incomplete."""
    node = node_energy(window(10, domain("node", 2_500, covered=0.5)), Settings())
    assert not node.complete
