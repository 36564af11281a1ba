"""Promises of the view: which policies see power limits, and the history of stopped jobs."""

from collections.abc import Sequence

import pytest

from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.schedule.actions import Action, Preempt, Recap, Start, Wake
from wattloop.schedule.engine import Simulation
from wattloop.schedule.jobs import JobKind
from wattloop.schedule.policies import Policy
from wattloop.schedule.view import ClusterView

CAPPED = JobKind("toy", caps=(1.0, 0.25))


class _Slowest(Policy):
    """A policy that starts every job on its last option, and records its views."""

    name = "slowest"

    def __init__(self) -> None:
        self.seen: list[int] = []

    def decide(self, view: ClusterView) -> Sequence[Action]:
        job = view.queue.head()
        if job is None:
            return ()
        self.seen.append(len(view.queue.options(job)))
        return (Start(job, len(view.queue.options(job)) - 1),)


class _CapsToo(_Slowest):
    sets_caps = True


@pytest.mark.parametrize(
    ("policy", "options", "end_s"), [(_Slowest(), 1, 100), (_CapsToo(), 2, 200)]
)
def test_only_policies_that_set_caps_are_shown_capped_placements(
    policy: _Slowest, options: int, end_s: float
) -> None:
    """ADR 0031: all other policies see placements without a cap."""
    cluster = small_cluster()
    done = Simulation(
        cluster, jobs_of([(0, 100)], kind=CAPPED), policy, truth=PlainOracle(cluster)
    ).run()
    assert policy.seen == [options]
    assert done.finished_s[0] == pytest.approx(end_s)


class _StopAndGo(Policy):
    """A policy that starts a job, stops it at 10 s, and caps its second run at 20 s."""

    name = "stop and go"
    needs_free_gpus = False
    sets_caps = True

    def __init__(self) -> None:
        self.stopped: list[int] = []
        self.believed_s: list[float] = []

    def decide(self, view: ClusterView) -> Sequence[Action]:
        self.stopped.append(view.preemptions[0])
        if view.running:
            self.believed_s.append(view.running[0].expected_end_s)
        if view.now_s == 10 and view.running and not view.preemptions[0]:
            return (Preempt(0),)
        if view.now_s == 20 and view.running[0].option == 0:
            return (Recap(0, 1),)
        if len(view.queue):
            return (Start(0, 0), Wake(view.now_s + 10))
        return ()


def test_the_view_knows_how_often_a_job_was_stopped_and_when_it_ends_after_a_recap() -> None:
    """A policy that stops and caps jobs needs both to decide."""
    cluster = small_cluster()
    policy = _StopAndGo()
    done = Simulation(
        cluster, jobs_of([(0, 100)], kind=CAPPED), policy, truth=PlainOracle(cluster)
    ).run()
    assert policy.stopped[0] == 0
    assert policy.stopped[-1] == 1
    # 20 s at full speed, of which nothing is lost at an iteration's end; 80 samples at half speed
    assert policy.believed_s[-1] == pytest.approx(180)
    assert done.finished_s[0] == pytest.approx(180)
