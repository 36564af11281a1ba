"""Promises of the agent with what it meets on a machine: a powercap tree, NVIDIA's library."""

from pathlib import Path

import pytest

from tests.fleet.agent.conftest import Node
from tests.fleet.agent.scripted_node import domains_of
from tests.support.nvml_stub import NoCompiler, StubNvml
from tests.support.power_curves import Constant
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import PowercapTree, Writing
from wattloop.fleet.agent.job_facts import minor_numbers
from wattloop.hardware.host import Host
from wattloop.measure.recovery import finalize_orphaned_run

PACKAGES = ("cpu:0/package", "cpu:1/package")


def test_packages_of_a_powercap_tree_are_shared_and_add_up(node: Node) -> None:
    """Counters that run and wrap in real files; a job with a quarter of the CPUs, and the rest."""
    tree = PowercapTree(node.sysfs)
    zones = [tree.add_package(0, energy_uj=990_000, range_uj=1_000_000_000), tree.add_package(1)]
    node.config |= {"virtual_gpus": 0, "meters": ("rapl",), "cpu_idle_w": 20.0}
    curves = {zones[0]: Constant(100.0), zones[1]: Constant(60.0)}
    with Driver(curves, update_period_s=0.005, writing=Writing.IN_PLACE) as driver:
        node.start()
        node.work(0.3)
        node.begin("7")
        node.work(1.0)
        node.end("7")
        (journal,) = node.ended("7")
        node.stop()
        rest = next(j for j in node.journals() if j.header["kind"] == "unallocated")
        nobody = finalize_orphaned_run(rest)
        begin_s, end_s = rest.header["started_s"], nobody["time_s"]
        true_j = [driver.true_energy_j(zone, begin_s, end_s) for zone in zones]
    assert journal.end is not None
    job, others = domains_of(journal.end), domains_of(nobody)
    for name, whole_j in zip(PACKAGES, true_j, strict=True):
        assert job[name]["provenance"] == "modelled"
        assert job[name]["energy_j"] > 0
        parts_j = job[name]["energy_j"] + others[name]["energy_j"]
        late_j = 2 * driver.longest_s * whole_j / (end_s - begin_s)
        assert parts_j == pytest.approx(whole_j, abs=0.02 * whole_j + late_j)


@pytest.fixture
def stub(tmp_path: Path) -> StubNvml:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    try:
        return StubNvml(tmp_path, gpus=2)
    except NoCompiler as reason:
        pytest.skip(str(reason))


def test_cards_of_nvidias_library_are_exact_by_job(node: Node, stub: StubNvml) -> None:
    """Counter and power of the busy card are the job's; those of the idle card are unassigned."""
    node.config |= {"virtual_gpus": 0, "meters": ("nvidia",)}
    with stub as cards:
        node.start()
        cards.set_load(0, 1.0)
        node.work(0.5)
        node.begin("7", "0")
        node.work(1.2)
        node.end("7")
        (journal,) = node.ended("7")
        assert journal.end is not None
        true_j = cards.true_energy_j(0, journal.header["started_s"], journal.end["time_s"])
        node.stop()
    found = domains_of(journal.end)
    assert list(found) == ["gpu:0"]
    assert found["gpu:0"]["energy_j"] == pytest.approx(true_j, rel=0.12)
    assert found["gpu:0"]["provenance"] == "measured"
    signals = journal.header["feeds"][0]["signals"]
    assert {"gpu:0/utilisation", "gpu:0/power_limit"} <= {s["name"] for s in signals}


def test_minor_numbers_are_asked_of_the_driver(stub: StubNvml) -> None:
    """Slurm's number of a card is its device file's, not NVML's index; without driver, none."""
    with stub:
        assert set(minor_numbers(Host()).values()) <= {0, 1}
    assert minor_numbers(Host()) == {}
