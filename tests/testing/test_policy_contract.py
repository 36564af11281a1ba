"""Promises of `check_policy`: it passes correct policies and names a broken promise."""

import itertools
import random
from collections.abc import Sequence

import pytest

from wattloop.schedule.actions import Action, Preempt, Start
from wattloop.schedule.objectives import EDP, TIME
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.fifo import Fifo
from wattloop.schedule.policies.pollux import Pollux
from wattloop.schedule.view import ClusterView
from wattloop.testing.policy_contract import check_policy


class Lazy(Fifo):
    """A policy that never starts the last job."""

    def decide(self, view: ClusterView) -> Sequence[Action]:
        return [each for each in super().decide(view) if each.job < len(view.jobs) - 1]  # type: ignore[union-attr] # starts only


class Greedy(Fifo):
    """A policy that starts the first job, whatever is free."""

    def decide(self, view: ClusterView) -> Sequence[Action]:
        job = view.queue.head()
        return () if job is None else (Start(job, view.queue.options_by(TIME, job)[0]),)


class Grabbing(Fifo):
    """A policy that plans with the machines it is shown instead of a copy."""

    def decide(self, view: ClusterView) -> Sequence[Action]:
        starts = super().decide(view)
        for start in starts:
            assert isinstance(start, Start)
            view.free.take(view.queue.options(start.job).shape(start.option))
        return starts


class Scribbling(Pollux):
    """A policy that writes its scores into the queue's own costs."""

    def decide(self, view: ClusterView) -> Sequence[Action]:
        view.queue.cost(EDP)[:] *= 2
        return super().decide(view)


class Counting(Fifo):
    """A policy that does nothing on every other call."""

    def __init__(self) -> None:
        self._asked = 0

    def decide(self, view: ClusterView) -> Sequence[Action]:
        self._asked += 1
        return super().decide(view) if self._asked % 2 else ()


class Remembering(Fifo):
    """A policy that acts only on its first call."""

    def __init__(self) -> None:
        self._born_s: float | None = None

    def decide(self, view: ClusterView) -> Sequence[Action]:
        self._born_s = view.now_s if self._born_s is None else self._born_s
        return super().decide(view) if view.now_s == self._born_s else ()


class Moody(Fifo):
    """A policy that chooses the placement at random."""

    def decide(self, view: ClusterView) -> Sequence[Action]:
        job = view.queue.head()
        options = () if job is None else range(len(view.queue.options(job)))
        fits = [n for n in options if view.free.fits(view.queue.options(job or 0).shape(n))]
        return (Start(job or 0, random.SystemRandom().choice(fits)),) if fits else ()


class Restless(Policy):
    """A policy that stops running jobs whenever a job waits."""

    name = "restless"
    needs_free_gpus = False

    def decide(self, view: ClusterView) -> Sequence[Action]:
        stops: list[Action] = []
        if view.now_s < 1e5 and len(view.queue):
            stops = [Preempt(job) for job in itertools.islice(view.running, 1)]
        return stops or Fifo().decide(view)


class Busybody(Fifo):
    """A policy that starts a job when none waits."""

    def decide(self, view: ClusterView) -> Sequence[Action]:
        return super().decide(view) or (Start(0, 0),)


class Nameless(Fifo):
    """A policy without a name."""

    name = ""


@pytest.mark.parametrize("good", [Fifo, Pollux])
def test_a_policy_that_keeps_every_promise_passes(good: type[Policy]) -> None:
    """The contract requires only what a sound policy does."""
    check_policy(good)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (Lazy, "were never done"),
        (Greedy, "an impossible action"),
        (Grabbing, "deciding changed the free GPUs"),
        (Scribbling, "deciding changed the queue's costs"),
        (Counting, "asked twice, it differs"),
        (Remembering, "decides by what it remembers"),
        (Moody, "asked twice, it differs|what it remembers"),
        (Restless, "it never settles"),
        (Busybody, "no job waits, and it asks for"),
        (Nameless, "a policy has a name"),
    ],
)
def test_a_broken_promise_is_named(bad: type[Policy], said: str) -> None:
    """Each of these policies breaks one promise."""
    with pytest.raises(AssertionError, match=said):
        check_policy(bad)
