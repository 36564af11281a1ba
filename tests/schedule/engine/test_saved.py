"""Promise: a saved and loaded simulation continues like an uninterrupted one."""

from pathlib import Path

import pytest

from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.core.errors import ConfigError
from wattloop.schedule.engine import Simulation
from wattloop.schedule.policies.fifo import Fifo
from wattloop.schedule.policies.registry import policy_from
from wattloop.testing.synthetic_cluster import random_world


def worldly(seed: int, policy: str) -> Simulation:
    """Return a random simulation with a shipped policy."""
    world = random_world(seed)
    return Simulation(
        world.cluster,
        world.jobs,
        policy_from(policy),
        truth=world.truth,
        oracle=world.oracle,
        settings=world.settings,
    )


@pytest.mark.parametrize("policy", ["fifo", "zeus", "backfill", "helios"])
@pytest.mark.parametrize("seed", range(4))
def test_a_resumed_simulation_is_the_uninterrupted_one(
    seed: int, policy: str, tmp_path: Path
) -> None:
    """Saved and loaded at three moments: the same events, and the same joules."""
    whole = worldly(seed, policy).run()
    simulation = worldly(seed, policy)
    path = tmp_path / "half"
    for part in (0.1, 0.5, 0.9):
        simulation.run(until_s=part * whole.end_s)
        simulation.save(path)
        simulation = Simulation.load(path)
    resumed = simulation.run()
    assert resumed.event_hash == whole.event_hash
    assert resumed.total_j == pytest.approx(whole.total_j, rel=1e-12)
    assert resumed.energy_j.tolist() == pytest.approx(whole.energy_j.tolist())
    assert resumed.ended is whole.ended


def saved(path: Path) -> Simulation:
    """Return a file with a small, half-finished simulation."""
    cluster = small_cluster()
    simulation = Simulation(cluster, jobs_of([(0, 10)]), Fifo(), truth=PlainOracle(cluster))
    simulation.run(until_s=5.0)
    simulation.save(path)
    return simulation


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """One byte differs: the checksum does not match."""
    path = tmp_path / "half"
    saved(path)
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="half: damaged"):
        Simulation.load(path)


def test_another_version_is_named(tmp_path: Path) -> None:
    """A file of another version is not even unpickled."""
    path = tmp_path / "half"
    path.write_bytes(b"wattloop simulation 0\nwhatever")
    with pytest.raises(ConfigError, match="no simulation saved by this version"):
        Simulation.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """It is a ConfigError, not a traceback of the system."""
    with pytest.raises(ConfigError, match="nowhere: cannot be read: No such file"):
        Simulation.load(tmp_path / "nowhere")


def test_what_cannot_be_saved_leaves_the_old_file_alone(tmp_path: Path) -> None:
    """A policy with a lambda gives a clear error, and the file is unchanged."""
    path = tmp_path / "half"
    simulation = saved(path)
    before = path.read_bytes()
    simulation.decisions.policy.whim = lambda: 1  # type: ignore[attr-defined] # cannot be pickled
    with pytest.raises(ConfigError, match="cannot be saved"):
        simulation.save(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["half"]
