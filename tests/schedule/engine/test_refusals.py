"""Promise: an impossible action is refused by name and changes nothing."""

import numpy as np
import pytest

from tests.schedule.engine.scripted import Scripted
from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.core.errors import ImpossibleAction
from wattloop.schedule.actions import Preempt, Recap, Start, Wake
from wattloop.schedule.engine import EngineSettings, Simulation
from wattloop.schedule.engine.event_log import EventKind
from wattloop.schedule.jobs import JobKind
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.view import ClusterView

CAPS = JobKind("toy", gpus=(1, 2), caps=(0.5, 1.0))
"""Options 0 and 1 on one GPU, 2 and 3 on two."""

IMPOSSIBLE = [
    (Start(9, 0), "job 9 does not wait"),
    (Start(-1, 0), "job -1 does not wait"),
    (Start(0, 0), "job 0 does not wait"),  # it runs
    (Start(1, 7), "job 1 has 4 options"),
    (Start(1, -1), "job 1 has 4 options"),
    (Start(1, 3), "needs 2 a100 together, 1 are free"),
    (Start(1.5, 0), "a job and an option are whole numbers"),
    (Start("one", 0), "a job and an option are whole numbers"),
    (Preempt(1), "job 1 does not run"),
    (Preempt(None), "jobs and options are whole numbers"),
    (Recap(1, 0), "job 1 does not run"),
    (Recap(0, 9), "job 0 has 4 options"),
    (Recap(0, 2), "option 2 differs from option 1 by more than its cap"),
    (Wake(1.0), "a later time was expected"),
    (Wake(float("nan")), "a later time was expected"),
    (Wake(float("inf")), "a later time was expected"),
    (Wake("soon"), "times are seconds"),
    ("start all", "is not an action"),
    (None, "is not an action"),
]


def simulation(script: dict[float, list[object]], *, strict: bool = False) -> Simulation:
    """Return a simulation of two jobs of 10 s on two GPUs."""
    cluster = small_cluster()
    return Simulation(
        cluster,
        jobs_of([(0, 10), (0, 10)], kind=CAPS),
        Scripted(script),
        truth=PlainOracle(cluster),
        settings=EngineSettings(checks=True, strict=strict),
    )


@pytest.mark.parametrize(("action", "why"), IMPOSSIBLE)
def test_an_impossible_action_is_named_and_changes_nothing(action: object, why: str) -> None:
    """The message has the policy, the time and the reason; both jobs run as without it."""
    script = {0.0: [Start(0, 1)], 2.0: [action], 3.0: [Start(1, 1)]}
    result = simulation(script).run()
    assert result.refusals == 1
    assert result.refused[0].startswith("at 2 s: scripted: ")
    assert why in result.refused[0]
    assert result.finished_s.tolist() == [10, 13]
    assert [event.time_s for event in result.log if event.what is EventKind.REFUSE] == [2]


@pytest.mark.parametrize(("action", "why"), IMPOSSIBLE)
def test_strict_makes_it_an_error(action: object, why: str) -> None:
    """It is an ImpossibleAction with the same message."""
    with pytest.raises(ImpossibleAction, match="at 2 s: scripted: ") as error:
        simulation({0.0: [Start(0, 1)], 2.0: [action]}, strict=True).run()
    assert why in str(error.value)


def test_numbers_of_numpy_are_numbers() -> None:
    """Values of an array need no conversion."""
    result = simulation({0.0: [Start(np.int64(0), np.int64(1)), Start(1, np.int32(1))]}).run()  # type: ignore[arg-type] # as policies do
    assert result.refusals == 0
    assert result.finished_s.tolist() == [10, 10]


def test_the_rest_of_a_list_is_carried_out() -> None:
    """One invalid action does not stop the valid ones."""
    result = simulation({0.0: [Start(7, 0), Start(0, 1), Start(1, 1)]}).run()
    assert (result.refusals, result.finished_s.tolist()) == (1, [10, 10])


class Circling(Policy):
    """A policy that starts and stops the same job for ever."""

    name = "circling"
    needs_free_gpus = False

    def decide(self, view: ClusterView) -> list[Start | Preempt]:
        """Reverse the present state."""
        return [Preempt(0)] if view.running else [Start(0, 0)]


def test_a_policy_that_goes_round_in_circles_is_stopped() -> None:
    """At one moment it may at most start and stop every job once."""
    cluster = small_cluster()
    jobs = jobs_of([(0, 10)])
    result = Simulation(cluster, jobs, Circling(), truth=PlainOracle(cluster)).run()
    assert "circling does not come to an end at 0 s" in result.refused[0]
    assert len(result.log) < 1000


class Wordless(Policy):
    """A policy that returns None."""

    name = "wordless"

    def decide(self, view: ClusterView) -> list[Start]:
        """Return None."""
        return None  # type: ignore[return-value] # that is the point


def test_no_list_of_actions_is_refused_as_well() -> None:
    """None is not an empty list."""
    cluster = small_cluster()
    result = Simulation(cluster, jobs_of([(0, 10)]), Wordless(), truth=PlainOracle(cluster)).run()
    assert "wordless: None are not actions" in result.refused[0]
