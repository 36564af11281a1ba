"""Promises of the view: Slurm's state for policies, and their answers as a plan."""

import math
from collections.abc import Sequence

import pytest

from wattloop.core.errors import ConfigError
from wattloop.schedule.actions import Action, Preempt, Recap, Start, Wake
from wattloop.schedule.driver.inventory import ReleasedJob, SchedulerNode, known_nodes
from wattloop.schedule.driver.planner import Planner, plan_round
from wattloop.schedule.driver.power_readings import NodePower, power_now, readings_from
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.registry import POLICIES, policy_from
from wattloop.schedule.slurm.executor import planned_release, release_fields

from .slurm_world import NOW_S, job, seen, site, view


class Says(Policy):
    """A policy that gives one answer, once."""

    name = "says"
    needs_free_gpus = False

    def __init__(self, *actions: object) -> None:
        self.actions = list(actions)

    def decide(self, view: object) -> Sequence[Action]:
        """Return the given actions, and nothing the second time."""
        actions, self.actions = self.actions, []
        return actions  # type: ignore[return-value]  # whatever a test gives


def test_jobs_are_sorted_by_what_there_is_to_do() -> None:
    """To place, released, another's, ending, uninvited, or not eligible."""
    place = site()
    opened = {
        "2": ReleasedJob(key="2", user="ada", why="start", nodes=("n1",), gpus=1),
        "3": ReleasedJob(key="3", user="ada", why="standby", gpus=1),
    }
    found = seen(
        place,
        job("1"),
        job("2", reservation="gate"),
        job("3", reservation="gate"),
        job("4", partition="other"),
        job("5", gpus=0),
        job("6", reservation="gate"),
        job("7", reservation="theirs"),
        job("8", reason="Dependency"),
        job("9", partition="elsewhere"),
        job("10", "RUNNING"),
        job("11", "RUNNING", partition="other", placed=(("n2", 1),)),
        job("12", "COMPLETING", placed=(("n2", 2),)),
        job("13", "RUNNING", placed=(("login", 1),)),
        opened=opened,
    )
    assert [each.key for each in found.waiting] == ["1", "3"]
    assert [each.key for each in found.coming] == ["2"]
    assert [each.key for each in found.passing] == ["4", "5"]
    assert [each.key for each in found.unreleased] == ["6"]
    assert [each.key for each in found.running] == ["10", "11"]
    assert [each.key for each in found.ending] == ["12"]


def test_gpus_of_all_jobs_are_busy_and_those_of_others_are_not_ours_to_stop() -> None:
    """Running, ending and about to start: none of their GPUs is free."""
    place = site()
    opened = {"2": ReleasedJob(key="2", user="ada", why="start", nodes=("n2",), gpus=2)}
    live = view(
        place,
        job("1", "RUNNING", gpus=2, placed=(("n1", 2),)),
        job("2", gpus=2, reservation="gate"),
        job("3", "RUNNING", partition="other", placed=(("n2", 1),)),
        job("4", "COMPLETING", placed=(("n1", 1),)),
        job("5", "RUNNING", may_requeue=False, placed=(("n1", 1),)),
        opened=opened,
    )
    assert live.view.free.nodes_with == [[1, 1, 0, 0, 0]]
    by_key = {each.key: number for number, each in enumerate(live.jobs)}
    assert live.untouchable == {by_key["2"], by_key["3"], by_key["5"]}
    assert math.isinf(live.view.loss(live.view.running[by_key["3"]]).energy_j)
    assert live.view.loss(live.view.running[by_key["1"]]).energy_j > 0
    assert live.view.use.gpu_s(NOW_S)[0] == pytest.approx(1000 + 30 * 4)


def test_power_is_idle_and_busy_and_measured_where_it_is() -> None:
    """A reading replaces the estimate of its node, and jobs that began since are added."""
    place = site()
    kind = place.known.cluster.types[0]
    old = job("1", "RUNNING", placed=(("n1", 1),))
    new = job("2", "RUNNING", placed=(("n1", 1),), start_s=NOW_S - 1)
    estimated_w = 8 * kind.idle_w + 2 * (kind.tdp_w - kind.idle_w)
    assert power_now(view(place, old, new), {}).watts == pytest.approx(estimated_w)
    readings = {0: NodePower(777.0, NOW_S - 2)}
    found = power_now(view(place, old, new), readings)
    assert found.measured_nodes == 1
    assert found.watts == pytest.approx(777 + kind.tdp_w - kind.idle_w + 4 * kind.idle_w)
    stale = power_now(view(place, old, new), {0: NodePower(777.0, NOW_S - 100)})
    assert stale.watts == pytest.approx(estimated_w)


def test_no_job_is_stopped_for_power_that_no_node_has_read() -> None:
    """A job that has just begun counts at its estimate: it keeps others out, and stays."""
    place = site()
    live = view(place, job("1", "RUNNING", placed=(("n1", 1),), start_s=NOW_S - 1))
    found = power_now(live, {node: NodePower(100.0, NOW_S - 2) for node in (0, 1)})
    assert found.under(found.watts + 1) == found.watts
    assert found.under(found.watts - 1) == found.watts - 1
    assert found.under(150.0) == found.read_w == 200.0
    one_node = power_now(live, {1: NodePower(100.0, NOW_S - 2)})
    assert one_node.under(150.0) == one_node.watts


def test_readings_that_cannot_be_are_refused() -> None:
    """A reading above a node's possible power, or not a number, is ignored."""
    known = site().known
    listed = [
        {"node": "n1", "age_s": 1.0, "power_by_domain_w": {"gpu:0": 250.0, "cpu:0/package": 80.0}},
        {"node": "n2", "age_s": 1.0, "power_by_domain_w": {"gpu:0": 1e9}},
        {"node": "stranger", "age_s": 1.0, "power_by_domain_w": {"gpu:0": 1.0}},
        {"node": "n2", "age_s": "soon", "power_by_domain_w": {"gpu:0": math.nan}},
        "nonsense",
    ]
    found, refusals = readings_from({"nodes": listed}, known, NOW_S)
    assert found == {0: NodePower(250.0, NOW_S - 1)}
    assert len(refusals) == 1
    with pytest.raises(ValueError, match="no list"):
        readings_from([], known, NOW_S)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_runs_on_a_live_view(name: str) -> None:
    """The objects are those of the simulator, and no action is refused."""
    place = site(budget_w=3_000.0)
    comment = "wattloop:model=resnet-50,batch=128,samples=1e7,deadline=3h"
    jobs = [
        *(job(str(n), comment=comment if n % 2 else "", gpus=1 + n % 4) for n in range(1, 20)),
        job("30", "RUNNING", gpus=2, placed=(("n1", 2),)),
        job("31", "RUNNING", partition="other", placed=(("n2", 1),)),
    ]
    live = view(place, *jobs)
    plan = plan_round(live, place, policy_from(name), 3.0)
    if not plan.starts:  # a policy that decides at intervals names the next time
        live = view(place, *jobs, now_s=plan.wake_s)
        plan = plan_round(live, place, policy_from(name), 3.0)
    assert plan.refusals == []
    assert plan.starts
    assert live.view.power_w <= 3_000


def test_impossible_actions_are_refused_in_words() -> None:
    """Jobs that do not wait, invalid options and other errors are refused one by one."""
    place = site()
    live = view(place, job("1"), job("2", "RUNNING", partition="other", placed=(("n2", 1),)))
    waits, runs = 0, 1
    bad = (
        Start(99, 0), Start(runs, 0), Start(waits, 77), Start("x", 0), Preempt(waits),  # type: ignore[arg-type]  # what a bad policy says
        Preempt(runs), Recap(runs, 0), "go", None, Wake(float("nan")),
    )  # fmt: skip
    plan = Planner(live, Says(*bad, Start(waits, 0))).ask()
    assert [start.job for start in plan.starts] == [waits]
    assert len(plan.refusals) == len(bad) - 1
    assert not plan.preempts
    assert math.isinf(plan.wake_s)


def test_a_job_that_could_run_is_not_overtaken_for_ever_under_a_budget() -> None:
    """A job that does not fit the budget now delays later jobs, unless it could never fit."""
    kind = site().known.cluster.types[0]
    budget_w = 8 * kind.idle_w + 2.5 * (kind.tdp_w - kind.idle_w)
    place = site(budget_w)
    jobs = [
        job("1"),
        job("2", gpus=2, gpus_per_node=2),
        job("3"),
        job("4", gpus=4, gpus_per_node=4),
    ]
    plan = Planner(view(place, *jobs), Says(*(Start(n, 0) for n in range(3)))).ask()
    assert [start.job for start in plan.starts] == [0]
    assert plan.short_of_power == 2
    plan = Planner(view(place, *jobs), Says(Start(3, 0), Start(0, 0))).ask()
    assert [start.job for start in plan.starts] == [0]


def test_standby_counts_power_as_if_no_job_ended() -> None:
    """Jobs are released ahead for GPUs that may become free, within the budget at any time."""
    place = site()
    runs = [job(str(n), "RUNNING", gpus=4, placed=((f"n{n}", 4),)) for n in (1, 2)]
    waits = [job(str(n)) for n in range(10, 30)]
    live = view(place, *runs, *waits)
    plan = plan_round(live, place, policy_from("fifo"), 2.0)
    assert not plan.starts
    assert [live.jobs[each.job].key for each in plan.standby] == [str(n) for n in range(10, 18)]
    full = site(budget_w=power_now(view(place, *runs), {}).watts + 1)
    assert not plan_round(view(full, *runs, *waits), full, policy_from("fifo"), 2.0).standby


def test_a_start_is_one_command_and_can_be_undone() -> None:
    """Gate, node and count are in one call; the user's request is remembered."""
    place = site()
    live = view(place, job("1", required_nodes=""), job("2", required_nodes="n2"))
    plan = Planner(live, Says(Start(0, 0), Start(1, 0))).ask()
    first, second = (
        planned_release(live, place, start, "start", before=None, sets_caps=False)
        for start in plan.starts
    )
    assert release_fields(first, live.jobs[0], "gate", None) == {
        "ReservationName": "gate",
        "ReqNodeList": "n1",
    }
    assert second.nodes == ()  # the user's own choice stands
    assert release_fields(first, job("1", reservation="gate"), "gate", first) == {}


def test_nodes_become_a_cluster() -> None:
    """Types come from the hardware table; unknown nodes are left out with the reason."""
    nodes = (
        SchedulerNode("n1", "a100", 4, ("gpu",), True),
        SchedulerNode("n2", "v100", 2, ("gpu",), True),
        SchedulerNode("n3", "warp9", 2, ("gpu",), True),
        SchedulerNode("n4", "", 2, ("gpu",), True),
        SchedulerNode("n5", "", 0, ("gpu",), True),
        SchedulerNode("n6", "a100", 4, ("gpu",), True),
        SchedulerNode("n7", "a100", 4, ("cpu",), True),
    )
    found = known_nodes(nodes, ["gpu"])
    assert found.names == ("n1", "n6", "n2")
    assert [each.name for each in found.cluster.types] == ["a100", "v100"]
    assert [line.partition(":")[0] for line in found.left_out] == ["n3", "n4", "n5"]
    assert found.cluster.groups[0].host_w > 0
    with pytest.raises(ConfigError, match="no partition 'gpus'"):
        known_nodes(nodes, ["gpus"])
    with pytest.raises(ConfigError, match="no usable node"):
        known_nodes(nodes[4:5], ["gpu"])


def test_what_a_comment_says_in_vain_is_told_once() -> None:
    """With an unknown field the job is scheduled by its time limit, and the log says why."""
    place, told = site(), list[tuple[str, str]]()
    place.estimates.on_refusal = lambda job, why: told.append((job.key, why))
    misspelt = job("7", comment="wattloop:model=resnet-50,sequence=256")
    for _ in range(3):
        view(place, misspelt, job("8"))
    assert [key for key, _ in told] == ["7"]
    assert "unknown field 'sequence'; did you mean 'seq'?" in told[0][1]
