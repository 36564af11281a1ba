"""Promise: GPUs of a replayed job draw the oracle's power for the oracle's time."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.schedule.slurm.replay.small_plan import IDLE_W, small_plan
from wattloop.schedule.slurm.replay.result import read_records
from wattloop.schedule.slurm.replay.runner import PROGRAM, virtual_gpus, write_plan

NAMES = {0: "n1", 1: "n2"}


def started(folder: Path, job: int, **variables: str) -> "subprocess.Popen[str]":
    """Start a job as slurmd would on n2."""
    environment = {**os.environ, "SLURMD_NODENAME": "n2", "SLURM_JOB_ID": "7", **variables}
    command = [sys.executable, "-m", PROGRAM, str(folder), str(job)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def test_gpus_of_the_job_draw_its_power_for_its_time(tmp_path: Path) -> None:
    """0.3 s of 300 W on its one GPU, and idle power on all others."""
    plan = small_plan([(0, 0.3)])
    write_plan(plan, tmp_path, NAMES)
    assert started(tmp_path, 0, CUDA_VISIBLE_DEVICES="1").wait() == 0
    (ran,) = read_records(tmp_path)
    assert ran.gpus == (("n2", 1),)
    assert (ran.job, ran.slurm_job, ran.done) == (0, 7, 1.0)
    assert ran.end_s - ran.begin_s >= 0.3
    cards = virtual_gpus(plan.cluster, tmp_path, NAMES)
    middle_s = (ran.begin_s + ran.end_s) / 2
    assert cards["n2"][1].power_w(middle_s) == pytest.approx(300.0)
    assert cards["n2"][1].power_w(ran.end_s + 1.0) == pytest.approx(IDLE_W)
    assert cards["n2"][0].power_w(middle_s) == cards["n1"][1].power_w(middle_s) == IDLE_W


def test_a_stopped_job_leaves_idle_gpus_and_keeps_its_work_if_told(tmp_path: Path) -> None:
    """Stopped by SIGTERM it writes its progress; started again, it does the rest."""
    plan = small_plan([(0, 6.0)])  # it was stopped long before its end
    write_plan(plan, tmp_path, NAMES)
    keeps = {"CUDA_VISIBLE_DEVICES": "0", "WATTLOOP_REPLAY_KEEPS": "work"}
    card = virtual_gpus(plan.cluster, tmp_path, NAMES)["n2"][0]
    with started(tmp_path, 0, **keeps) as process:
        give_up_s = time.monotonic() + 120
        while card.power_w(time.monotonic()) < 299 and time.monotonic() < give_up_s:
            time.sleep(0.01)
        time.sleep(0.9)
        process.send_signal(signal.SIGTERM)
    assert started(tmp_path, 0, **keeps).wait() == 0
    first, second = read_records(tmp_path)
    assert 0.1 < first.done < 1.0
    assert second.done == 1.0
    assert card.power_w(second.end_s + 1.0) == pytest.approx(IDLE_W)


def test_a_job_without_gpus_says_so(tmp_path: Path) -> None:
    """Exit code 2 and one line of text."""
    write_plan(small_plan([(0, 1)]), tmp_path, NAMES)
    with started(tmp_path, 0, CUDA_VISIBLE_DEVICES="") as process:
        assert process.stderr is not None
        assert "CUDA_VISIBLE_DEVICES is empty" in process.stderr.read()
    assert process.returncode == 2
