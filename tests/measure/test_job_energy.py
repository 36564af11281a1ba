"""Promises of the energy of a job: its total has every node once, however its processes ended."""

from pathlib import Path
from typing import Any

import pytest

from wattloop.cli.commands.runs.command import find_job
from wattloop.core.errors import RunNotFound
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.database import Store, open_store
from wattloop.store.journal_import import import_orphaned
from wattloop.testing.journals import STARTED_WALL_S, ended, header, write_journal

NODE_J = 350.0 * 10
"""50 W of CPU and 300 W of GPU for 10 s."""


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with open_store(tmp_path / "runs.db") as opened:
        yield opened


def job(rank: int, name: str = "ranks-host-29500") -> dict[str, Any]:
    return {"id": name, "kind": "user", "rank": rank, "local_rank": rank % 2, "world_size": 4}


def keep(store: Store, number: int, *, end: dict[str, Any] | None = None, **changes: Any) -> str:
    run_id = f"20270115-080000-{number:06x}"
    head = header(run_id, **{"job": job(number), "missing": [], **changes})
    write_journal(store.journals, run_id, head=head, end=end)
    import_orphaned(store, finalize_orphaned_run)
    return run_id


def test_ranks_of_a_node_are_counted_once(store: Store) -> None:
    """Four ranks on two nodes: twice a node's energy, not four times."""
    for number in range(4):
        keep(store, number, host=f"node{number // 2}", end=ended(counted=number % 2 == 0))
    found = find_job(store, "ranks-host-29500")
    assert [(n.host, n.ranks) for n in found.nodes] == [("node0", (0, 1)), ("node1", (2, 3))]
    assert found.energy_j == pytest.approx(2 * NODE_J, rel=0.01)
    assert found.nodes[0].result.gpu_energy_j == pytest.approx(3_000.0, rel=0.01)
    assert found.world_size == 4
    assert found.complete
    assert found.to_dict()["nodes"][1]["cpu_energy_j"] == pytest.approx(500.0, rel=0.01)


def test_crashed_rank_does_not_lose_the_total(store: Store) -> None:
    """The leader was killed; the others have the rest, and the crash is reported."""
    keep(store, 0)
    keep(store, 1, end=ended(counted=False))
    found = find_job(store)
    assert found.energy_j == pytest.approx(NODE_J, rel=0.01)
    assert found.nodes[0].died == 1


def test_a_run_that_names_no_kind_of_job(store: Store) -> None:
    """Promise: the energy of a job whose journal has only its name is shown."""
    keep(store, 0, job={"id": "mine"}, end=ended())
    found = find_job(store, "mine")
    assert found.kind == "wattloop"
    assert found.energy_j == pytest.approx(NODE_J, rel=0.01)


def test_jobs_of_the_same_name_are_distinguished_by_time(store: Store) -> None:
    """Launchers use the same port every day: yesterday's ranks are not in today's total."""
    old = keep(store, 0, end=ended())
    keep(store, 1, started_wall_s=STARTED_WALL_S + 3_600, end=ended())
    latest = find_job(store, "ranks-host-29500")
    assert len(latest.nodes[0].runs) == 1
    assert latest.earlier == 1
    assert find_job(store, old).nodes[0].runs == (old,)


def test_run_with_its_measured_children_is_a_job(store: Store) -> None:
    """`wattloop run` around a program that measures itself: one machine, one total."""
    outer = keep(store, 0, job=None, end=ended())
    inner = {**job(1, outer), "kind": "wattloop", "rank": None}
    keep(store, 1, job=inner, end=ended(counted=False, counted_by=outer))
    assert find_job(store, outer).energy_j == pytest.approx(NODE_J, rel=0.01)


def test_devices_of_all_ranks_are_combined(store: Store) -> None:
    """Rank 0 measures the CPU and rank 1 the GPU, so the job has both."""
    keep(store, 0, settings={"devices": ["cpu"]}, end=ended())
    keep(store, 1, settings={"devices": ["gpu:0"]}, end=ended(counted=False))
    names = {d.name for d in find_job(store).nodes[0].result.domains}
    assert names == {"cpu:0/package", "gpu:0"}


def test_part_is_missing_only_if_no_rank_reads_it(store: Store) -> None:
    """Another rank may read a domain that one rank may not."""
    dram = {"name": "dram", "reason": "none", "remedy": ""}
    disk = {"name": "disk", "reason": "none", "remedy": ""}
    keep(store, 0, missing=[dram, disk], end=ended())
    keep(store, 1, missing=[dram], end=ended(counted=False))
    assert [m.name for m in find_job(store).nodes[0].result.missing] == ["dram"]


def test_run_without_a_job_says_how_to_see_it(store: Store) -> None:
    """An ordinary run is not a job, and the message says where to look."""
    run_id = keep(store, 0, job=None, end=ended())
    with pytest.raises(RunNotFound, match=f"wattloop runs show {run_id}"):
        find_job(store, run_id)
    with pytest.raises(RunNotFound, match="wattloop runs list"):
        find_job(store, "no-such-job")
