"""Promise: a decision examines few jobs closely, however many wait."""

from dataclasses import replace

import numpy as np
import pytest

from tests.schedule.policies.two_types import WrongOracle, random_jobs, two_types
from wattloop.schedule.engine import EngineSettings, Simulation
from wattloop.schedule.objectives import Estimates
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.queue import PlacementEstimates
from wattloop.schedule.step_function import StepFunction

BUDGET = StepFunction((0.0, 3600.0), (3000.0, 2000.0), 7200.0)


def _estimated(policy: str, waiting: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many jobs are estimated singly in the first 600 s, with so many waiting at
    once.
    """
    calls = 0
    of = PlacementEstimates.of

    def counted(self: PlacementEstimates, job: int, work: float) -> Estimates:
        nonlocal calls
        calls += 1
        return of(self, job, work)

    monkeypatch.setattr(PlacementEstimates, "of", counted)
    jobs = random_jobs(0, waiting, urgent=0.3)
    # Late enough for all of them to be urgent all the time.
    late = np.where(np.isfinite(jobs.deadline_s), 1e6, np.inf)
    jobs = replace(jobs, arrival_s=np.zeros(waiting), deadline_s=late)
    rules = EngineSettings(budget_w=BUDGET)
    policy_ = policy_from(policy)
    Simulation(two_types(), jobs, policy_, truth=WrongOracle(), settings=rules).run(until_s=600.0)
    monkeypatch.setattr(PlacementEstimates, "of", of)
    return calls


@pytest.mark.parametrize("policy", ["charon", "aurachronos", "helios"])
def test_ten_times_the_queue_is_not_ten_times_the_work(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a backlog, deadlines, two GPU types and a budget that falls."""
    few, many = (_estimated(policy, waiting, monkeypatch) for waiting in (300, 3000))
    assert many <= 3 * few
