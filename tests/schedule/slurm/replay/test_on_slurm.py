"""Promise: jobs replayed on a real Slurm take the time and power that the oracle says."""

import os
import sys
from collections.abc import Iterator

import pytest

import wattloop
from tests.schedule.slurm.replay.small_plan import small_plan
from tests.support.slurm_lab import SlurmLab, why_no_slurm
from wattloop.core.errors import ConfigError, WattloopError
from wattloop.schedule.slurm.replay import runner
from wattloop.schedule.slurm.replay.runner import OWN, replay

pytestmark = pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm() or "-")


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    source = os.path.dirname(os.path.dirname(wattloop.__file__))  # noqa: PTH120 - as text
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = source  # jobs start in a folder of their own
    try:
        with SlurmLab(nodes=2, gpus=2, extra="SchedulerType=sched/builtin") as lab:
            yield lab
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def test_a_replay_is_measured_and_compared(lab: SlurmLab) -> None:
    """Five jobs, one of two nodes: energy of all GPUs from the meters, latencies, no job lost."""
    plan = small_plan([(0, 1.0), (0, 1.0), (0.1, 1.0), (0.2, 0.5), (0.3, 0.5)])
    wide = small_plan([(0, 2.0)], gpus=4)
    told: list[int] = []
    (found,) = replay(
        plan,
        [OWN],
        slurm=lab.run,
        folder=lab.folder,
        tell=lambda policy: lambda submitted, done, jobs, power_w: told.append(done),
    )
    figures, samples = found.real.figures, found.real.samples
    assert figures.done == 5
    assert told[-1] == 5
    assert found.policy == "slurm (sched/builtin)"
    idle_j = 4 * 50 * figures.makespan_s  # all GPUs, all the time
    busy_j = 4.0 * 250 * plan.speedup  # the additional energy of four GPU seconds of work
    assert figures.gpu_energy_j == pytest.approx(idle_j + busy_j, rel=0.15)
    assert max(sample.power_w for sample in samples) == pytest.approx(figures.peak_w)
    assert min(sample.power_w for sample in samples) >= 50 * 4 - 1
    assert figures.peak_w <= 4 * 300 + 1
    assert found.real.latency.starts == 5
    assert found.real.latency.start_s > 0
    assert found.to_dict()["power"].startswith("Power is simulated")
    (both,) = replay(wide, [OWN], slurm=lab.run, folder=lab.folder)
    (ran,) = both.real.ran
    assert [node for node, _ in ran.gpus] == ["n1", "n1", "n2", "n2"]


def test_a_job_that_fails_ends_the_replay_with_its_name(
    lab: SlurmLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end would never be noted: the replay must not wait for it for ever."""
    monkeypatch.setattr(runner, "ASK_SLURM_S", 0.5)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WattloopError, match="1 jobs failed, the first is job 0"):
        replay(small_plan([(0, 1.0)]), [OWN], slurm=lab.run, folder=lab.folder)


def test_jobs_of_others_are_in_the_way(lab: SlurmLab) -> None:
    """The simulator would assume that their GPUs are free."""
    number = lab.submit("sleep 100", "--gres=gpu:1")
    lab.wait_for_state(number, "RUNNING")
    with pytest.raises(ConfigError, match="1 jobs run on n1,n2"):
        replay(small_plan([(0, 1.0)]), [OWN], slurm=lab.run, folder=lab.folder)
    lab.run("scancel", str(number))
    lab.wait_for_jobs()
