"""Promises of nodes that come and go while a driver runs, on a real Slurm."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.slurm_lab import SlurmLab, why_no_slurm
from wattloop.fleet.slurm_text import expand_nodes
from wattloop.schedule.driver.managed_cluster import DriverSettings
from wattloop.schedule.slurm.driver import SlurmDriver

from .lab_driver import client_of, driver_of, events_of

pytestmark = pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm() or "-")

OFTEN = DriverSettings(interval_s=0.3, lease_s=10.0, nodes_every_s=0.0)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    with SlurmLab(tmp_path_factory.mktemp("lab"), nodes=2, gpus=2, extra="KillWait=1") as found:
        yield found


def use(lab: SlurmLab, nodes: str) -> None:
    """Set the nodes of the partition."""
    lab.run("scontrol", "update", "PartitionName=all", f"Nodes={nodes}")


def rounds_until(driver: SlurmDriver, done: Callable[[], bool]) -> None:
    """Run rounds until a condition holds."""
    give_up_s = time.monotonic() + 120
    while not done():
        assert time.monotonic() < give_up_s, "it does not come to be"
        driver.round()
        time.sleep(0.1)


def test_a_node_that_joins_is_gated_and_used_without_a_restart(
    lab: SlurmLab, tmp_path: Path
) -> None:
    """Only the policy's jobs begin there; a node that leaves is released."""
    use(lab, "n1")
    driver = driver_of(lab, tmp_path, settings=OFTEN)
    try:
        driver.begin()
        driver.round()
        assert driver.site.known.names == ("n1",)
        use(lab, "n1,n2")
        driver.round()
        assert driver.site.known.names == ("n1", "n2")
        gate = client_of(lab).reservations()[0]
        assert sorted(expand_nodes(gate.nodes)) == ["n1", "n2"]
        wide = lab.submit("sleep 30", "--nodes=2", "--gres=gpu:2", "--time=1")
        rounds_until(driver, lambda: lab.job_state(wide) == "RUNNING")
        use(lab, "n1")
        driver.round()
        assert driver.site.known.names == ("n1",)
        lab.run("scancel", str(wide))
        small = lab.submit("sleep 30", "--gres=gpu:1", "--time=1")
        rounds_until(driver, lambda: lab.job_state(small) == "RUNNING")
        said = [each["message"] for each in events_of(tmp_path) if each["event"] == "nodes"]
        assert said == ["nodes are now n1,n2", "nodes are now n1"]
    finally:
        driver.restore()
        driver.state.unlock()
        use(lab, "n1,n2")


def test_nodes_under_which_no_job_could_start_are_not_taken_in(
    lab: SlurmLab, tmp_path: Path
) -> None:
    """Their idle power alone would break the budget: the operator is told, and the rest
    continues.
    """
    use(lab, "n1")
    driver = driver_of(lab, tmp_path, settings=OFTEN)
    idle_w = driver.site.known.cluster.idle_w
    driver.state.unlock()
    driver = driver_of(lab, tmp_path, settings=OFTEN, budget=f"{1.5 * idle_w} W")
    try:
        driver.begin()
        driver.round()
        use(lab, "n1,n2")
        driver.round()
        driver.round()
        assert driver.site.known.names == ("n1",)
        said = [each["message"] for each in events_of(tmp_path) if each["event"] == "warning"]
        assert len(said) == 1
        assert "not taken in: budget" in said[0]
    finally:
        driver.restore()
        driver.state.unlock()
        use(lab, "n1,n2")
