"""Promise: a failing node stops its jobs and its power, and a repair restores its GPUs."""

import numpy as np
import pytest

from tests.schedule.engine.scripted import Scripted
from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.schedule.actions import Start
from wattloop.schedule.engine import (
    EngineSettings,
    Keeps,
    NodeEvent,
    Preemption,
    Simulation,
    SimulationEnd,
)
from wattloop.schedule.engine.event_log import EventKind
from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.jobs import JobKind
from wattloop.schedule.policies.fifo import Fifo

DOWN_5_UP_20 = (NodeEvent(5.0, 0, False), NodeEvent(20.0, 0, True))
RESTART = Preemption(Keeps.NOTHING)


def test_a_job_on_a_dead_node_waits_and_runs_again() -> None:
    """One node: dead from 5 s to 20 s; its job of 10 s begins again at 20 s."""
    cluster = small_cluster(nodes=1, host_w=100.0)
    settings = EngineSettings(node_events=DOWN_5_UP_20, preemption=RESTART, checks=True)
    truth = PlainOracle(cluster)
    result = Simulation(cluster, jobs_of([(0, 10)]), Fifo(), truth=truth, settings=settings).run()
    assert result.finished_s.tolist() == [30]
    assert result.interruptions.tolist() == [1]
    assert result.preemptions.tolist() == [0]
    assert result.wasted_j.tolist() == [1500]
    assert result.down_gpu_s == (30,)
    whats = [event.what for event in result.log]
    assert (
        whats.index(EventKind.INTERRUPT)
        < whats.index(EventKind.NODE_DOWN)
        < whats.index(EventKind.NODE_UP)
    )


def test_a_dead_node_draws_nothing() -> None:
    """Hosts and idle GPUs: 15 s alive, 15 s dead."""
    cluster = small_cluster(nodes=1, host_w=100.0)
    settings = EngineSettings(node_events=DOWN_5_UP_20, preemption=RESTART, checks=True)
    truth = PlainOracle(cluster)
    result = Simulation(cluster, jobs_of([(0, 10)]), Fifo(), truth=truth, settings=settings).run()
    assert result.host_j == pytest.approx(15 * 100)
    assert result.idle_j == pytest.approx(15 * 50)
    assert result.active_j == pytest.approx(15 * 300)


def test_jobs_of_other_nodes_go_on() -> None:
    """Four jobs on two nodes: the two of node 0 are interrupted and start again at 10 s."""
    cluster = small_cluster(nodes=2)
    settings = EngineSettings(node_events=DOWN_5_UP_20, preemption=RESTART, checks=True)
    jobs = jobs_of([(0, 10), (0, 10), (0, 10), (0, 10)])
    result = Simulation(cluster, jobs, Fifo(), truth=PlainOracle(cluster), settings=settings).run()
    assert sorted(result.finished_s.tolist()) == [10, 10, 20, 20]
    assert result.interruptions.tolist() == [1, 1, 0, 0]


class Spreading(PlainOracle):
    """An oracle whose jobs take four GPUs of any nodes."""

    def options(self, kind: JobKind) -> PlacementOptions:
        """Return one spread option."""
        if kind not in self._known:
            one = np.array([1])
            self._known[kind] = PlacementOptions(
                0 * one, 4 * one, one, np.array([400.0]), one > 0, np.array([0.25]),
                np.array([1200.0]), np.array([1.0]),
            )  # fmt: skip
        return self._known[kind]


def test_a_job_of_several_nodes_stops_wholly() -> None:
    """Four GPUs of two nodes: those of the other node are freed, too."""
    cluster = small_cluster(nodes=2)
    settings = EngineSettings(node_events=DOWN_5_UP_20, preemption=RESTART, checks=True)
    kind = JobKind("toy", gpus=(4,), may_spread=True)
    simulation = Simulation(
        cluster, jobs_of([(0, 40)], kind=kind), Fifo(), truth=Spreading(cluster), settings=settings
    )
    simulation.run(until_s=6.0)
    assert simulation.view.free.by_type == [2]
    assert not simulation.view.running
    assert simulation.run().finished_s.tolist() == [30]


def test_a_job_stuck_for_lack_of_nodes_is_reported() -> None:
    """The only node fails and is not repaired."""
    cluster = small_cluster()
    settings = EngineSettings(node_events=(NodeEvent(5.0, 0, False),), checks=True)
    truth = PlainOracle(cluster)
    result = Simulation(cluster, jobs_of([(0, 10)]), Fifo(), truth=truth, settings=settings).run()
    assert result.ended is SimulationEnd.STUCK
    assert result.left == {0: "toy: impossible: its GPUs are down: node-0"}


def test_a_node_that_is_down_already_does_not_die_again() -> None:
    """Two failures of one node overlap, and nothing is counted twice."""
    cluster = small_cluster()
    events = (*DOWN_5_UP_20, NodeEvent(7.0, 0, False), NodeEvent(25.0, 0, True))
    settings = EngineSettings(node_events=events, preemption=RESTART, checks=True)
    truth = PlainOracle(cluster)
    result = Simulation(cluster, jobs_of([(0, 10)]), Fifo(), truth=truth, settings=settings).run()
    assert result.interruptions.tolist() == [1]
    assert result.down_gpu_s == (30,)


def test_a_start_on_a_dead_node_is_refused() -> None:
    """Its GPUs are not free while it is down."""
    cluster = small_cluster()
    settings = EngineSettings(node_events=(NodeEvent(0.0, 0, False), NodeEvent(9.0, 0, True)))
    policy = Scripted({0.0: [Start(0, 0)], 9.0: [Start(0, 0)]})
    result = Simulation(
        cluster, jobs_of([(0, 1)]), policy, truth=PlainOracle(cluster), settings=settings
    ).run()
    assert result.refusals == 1
    assert "needs 1 a100 together, 0 are free" in result.refused[0]
    assert result.finished_s.tolist() == [10]
