"""Promises of the dry run: the policy's decisions are shown next to Slurm's."""

from tests.schedule.slurm.slurm_world import NOW_S, job, seen, site, view
from tests.schedule.slurm.test_view import Says
from wattloop.schedule.actions import Start
from wattloop.schedule.driver.planner import Planner
from wattloop.schedule.driver.rounds import DecisionTable


def test_both_decisions_stand_side_by_side() -> None:
    """The first time counts; jobs that began before the first poll are left out."""
    place = site()
    table = DecisionTable(place, sets_caps=False, since_s=NOW_S - 10)
    waits = job("1", gpus=2, gpus_per_node=2)
    quick = job("2", "RUNNING", start_s=NOW_S - 1)
    old = job("3", "RUNNING", start_s=NOW_S - 30)
    table.update(seen(place, waits, quick, old))
    assert list(table.rows) == ["1", "2"]
    live = view(place, waits)
    plan = Planner(live, Says(Start(0, 0))).ask()
    assert table.add(live, plan.starts[0])
    assert not table.add(live, plan.starts[0])
    table.update(seen(place, job("1", "RUNNING", start_s=NOW_S + 5)))
    row = table.rows["1"].to_dict()
    assert (row["would_s"], row["began_s"], row["nodes"], row["gpus"]) == (
        NOW_S,
        NOW_S + 5,
        ("n1",),
        2,
    )
    assert (row["source"], row["time_s"]) == ("time-limit", 3600)
    tdp_w = place.known.cluster.types[0].tdp_w
    assert row["gpu_energy_j"] == 2 * tdp_w * 3600
    assert table.rows["2"].would_s is None
