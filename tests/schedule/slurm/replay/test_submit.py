"""Promise: a job is submitted with its user's options, and on request describes its training."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.schedule.slurm.replay.small_plan import small_plan
from wattloop.core.errors import ConfigError
from wattloop.schedule.estimates.fleet_file import FleetOracle
from wattloop.schedule.estimates.job_estimator import JobEstimator
from wattloop.schedule.estimates.job_rules import SubmittedJob
from wattloop.schedule.scenarios.file import load_scenario
from wattloop.schedule.slurm.replay.plan import replay_plan
from wattloop.schedule.slurm.replay.runner import job_comment, sbatch_command, write_plan

NAMES = {0: "n1", 1: "n2"}


def test_a_job_asks_for_gpus_of_one_node(tmp_path: Path) -> None:
    """By node, so that a driver may change the count; with a time limit, for backfilling."""
    command = sbatch_command(small_plan([(0, 10)], gpus=2), 0, tmp_path)
    assert {"--nodes=1", "--gres=gpu:2", "--time=1"} <= set(command)
    assert not any(word.startswith("--comment") for word in command)
    assert "srun" not in command[-1]


def test_a_wide_job_runs_on_all_its_nodes(tmp_path: Path) -> None:
    """Its program starts once on each."""
    command = sbatch_command(small_plan([(0, 10)], gpus=4), 0, tmp_path)
    assert {"--nodes=2", "--gres=gpu:2"} <= set(command)
    assert "; srun --ntasks-per-node=1 " in command[-1]
    assert not any(word.startswith("--export") for word in command)  # a login shell per job


def test_a_job_that_no_nodes_can_share_is_refused(tmp_path: Path) -> None:
    """Three GPUs on nodes of two."""
    with pytest.raises(ConfigError, match="cannot share evenly"):
        sbatch_command(small_plan([(0, 10)], gpus=3), 0, tmp_path)


def test_a_described_job_says_what_it_trains(tmp_path: Path) -> None:
    """The text is a job's comment; its deadline counts from its submission."""
    plan = small_plan([(5, 10)], gpus=2)
    due = replace(plan.open, deadline_s=np.array([35.0]))
    assert job_comment(plan, 0) == "wattloop:model=toy,batch=1,samples=10,gpus=1|2"
    assert job_comment(replace(plan, open=due), 0).endswith(",deadline=30s")
    assert math.isinf(plan.open.deadline_s[0])
    assert "--comment=wattloop:model=toy,batch=1,samples=10,gpus=1|2" in sbatch_command(
        plan, 0, tmp_path, described=True
    )


def test_jobs_find_time_and_power_of_every_placement(tmp_path: Path) -> None:
    """Seconds of the whole job and watts of each GPU, by GPU type and count."""
    write_plan(small_plan([(0, 10)], gpus=1), tmp_path, NAMES)
    options = json.loads((tmp_path / "jobs" / "0.json").read_text())["options"]
    assert options == {"a100/1": [10.0, 300.0], "a100/2": [5.0, 300.0]}
    assert json.loads((tmp_path / "plan.json").read_text()) == {
        "nodes": {"n1": "a100", "n2": "a100"}
    }


def test_a_driver_understands_every_comment_of_the_shipped_lab() -> None:
    """The simulator and a driver that reads the comment know the same of a job."""
    plan = replay_plan(load_scenario("slurm-lab"), speedup=10, most_jobs=60)
    describer = JobEstimator(FleetOracle.of(plan.cluster, plan.oracle))
    first = {int(kind): job for job, kind in reversed(list(enumerate(plan.open.kind)))}
    for number, job in first.items():
        kind = plan.open.kinds[number]
        comment = job_comment(plan, job)
        found = describer.describe(SubmittedJob(comment=comment, gpus=1))
        assert found.refusals == ()
        assert found.work == pytest.approx(float(plan.open.work[job]), rel=1e-5)
        assert found.kind is not None
        ours, theirs = plan.truth.options(kind), describer.oracle.options(found.kind)
        assert theirs.power_w == pytest.approx(ours.power_w)
        assert theirs.sample_s == pytest.approx(ours.sample_s)
