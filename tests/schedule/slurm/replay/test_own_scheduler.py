"""Promise: the simulator uses the scheduler that this Slurm is configured with."""

import pytest

from wattloop.core.errors import ConfigError
from wattloop.schedule.slurm.replay.simulation import own_scheduler


def policy_for(*lines: str) -> str:
    """Return the policy for a Slurm with this configuration."""
    return own_scheduler(lambda *command: "\n".join(lines) + "\n").policy


def test_first_in_first_out_and_backfill_with_its_looks() -> None:
    """The interval is `bf_interval`, or Slurm's default of half a minute."""
    backfill = "SchedulerType           = sched/backfill"
    assert policy_for("SchedulerType           = sched/builtin") == "fifo"
    assert policy_for(backfill) == "backfill{look_s: 30}"
    parameters = "SchedulerParameters     = batch_sched_delay=0,bf_interval=2,bf_resolution=1"
    assert policy_for(parameters, backfill) == "backfill{look_s: 2}"


def test_an_unknown_scheduler_is_refused() -> None:
    """The simulator does not know its rules."""
    with pytest.raises(ConfigError, match="SchedulerType"):
        policy_for("SchedulerType           = sched/other")
