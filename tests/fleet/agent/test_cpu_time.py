"""Promises of CPU times: control groups of both versions, processes without them, the node."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from wattloop.fleet.agent.cpu_time import (
    CpuTimeCurve,
    CpuTimes,
    JobKey,
    ProcessTimes,
    cgroup_file,
)
from wattloop.hardware.host import Host

V2 = "system.slice/slurmstepd.scope/job_7/cpu.stat"
V1 = "cpuacct/slurm/uid_1000/job_7/cpuacct.usage"


@pytest.mark.parametrize(
    ("place", "texts"),
    [
        (V2, ("usage_usec 1500000\nuser_usec 1\n", "usage_usec 4000000\n")),
        (V1, ("1500000000\n", "4000000000\n")),
    ],
)
def test_a_jobs_control_group_is_read(tmp_path: Path, place: str, texts: tuple[str, str]) -> None:
    """Where Slurm's plugins for version 2 and version 1 put it; gone with the job, it stays."""
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    times = CpuTimes(Host(procfs=tmp_path), partial(cgroup_file, tmp_path, "n1"), "n1")
    times.begin("run", 0.0)
    for second, text in enumerate(texts, 1):
        path.write_text(text)
        times.read([JobKey("run", "7", 1000)], float(second))
    path.unlink()
    times.read([JobKey("run", "7", 1000)], 3.0)
    assert times.between("run", 0.0, 1.0) == pytest.approx(1.5)
    assert times.between("run", 1.0, 2.5) == pytest.approx(2.5)
    assert times.between("other", 0.0, 1.0) is None


def test_the_node_is_busy_as_proc_stat_says(tmp_path: Path) -> None:
    """User, nice, system and interrupts; neither idle nor stolen time."""
    times = CpuTimes(Host(procfs=tmp_path), partial(cgroup_file, tmp_path, "n1"), "n1")
    for second, user in ((0.0, 100), (1.0, 300)):
        (tmp_path / "stat").write_text(f"cpu  {user} 0 50 9999 0 0 0 77 0 0\ncpu0 1\n")
        times.read([], second)
    assert times.busy_between(0.0, 1.0) == pytest.approx(2.0)


def test_processes_of_a_job_are_found_by_user_and_environment() -> None:
    """A real process that burns CPU, known by its SLURM_JOB_ID; not for another user's job."""
    burn = (
        "import time\nwhile time.process_time() < 0.3: pass\nprint(1, flush=True)\ntime.sleep(99)"
    )
    environment = {**os.environ, "SLURM_JOB_ID": "4711", "SLURMD_NODENAME": "n1"}
    with subprocess.Popen(
        [sys.executable, "-c", burn], env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        here, elsewhere = (ProcessTimes(Path("/proc"), node) for node in ("n1", "n2"))
        mine = here.read({"4711": os.getuid()})
        others = here.read({"4711": os.getuid() + 1})
        away = elsewhere.read({"4711": os.getuid()})
        process.kill()
    assert 0.25 <= mine["4711"] < 5
    assert not others
    assert not away


def test_a_process_that_becomes_the_jobs_is_noticed(tmp_path: Path) -> None:
    """Slurm's own process turns into the user's program a moment after it was first seen."""
    folder = tmp_path / "42"
    folder.mkdir()
    fields = " ".join(["S", *(["0"] * 10), "100", "50", "0", "0", *(["0"] * 4), "999", "0"])
    (folder / "stat").write_text(f"42 (slurm (x) step) {fields}\n")
    (folder / "environ").write_bytes(b"HOME=/\0")
    times = ProcessTimes(tmp_path, "n1")
    assert times.read({"7": os.getuid()}) == {}
    (folder / "environ").write_bytes(b"HOME=/\0SLURM_JOB_ID=7\0")
    assert times.read({"7": os.getuid()}) == {"7": pytest.approx(1.5)}


def test_strangers_are_not_looked_up_again_and_again(tmp_path: Path) -> None:
    """Once a process has belonged to no job in a few polls, its files are not opened any more."""
    folder = tmp_path / "42"
    folder.mkdir()
    stat = folder / "stat"
    stat.write_text("42 (init) " + " ".join(["S", *(["0"] * 20)]))
    (folder / "environ").write_bytes(b"")
    times = ProcessTimes(tmp_path, "n1")
    for _ in range(ProcessTimes.SETTLED):
        times.read({"7": 0})
    os.utime(stat, (0, 0))
    times.read({"7": 0})
    assert stat.stat().st_atime == 0


def test_a_curve_is_straight_between_its_points_and_never_falls() -> None:
    """A process that left takes its time with it; the job's stays."""
    curve = CpuTimeCurve()
    for time_s, value in ((0.0, 0.0), (2.0, 4.0), (4.0, 1.0)):
        curve.add(time_s, value)
    assert curve.between(0.5, 1.5) == pytest.approx(2.0)
    assert curve.between(2.0, 9.0) == 0.0
    curve.forget_before(3.0)
    assert curve.between(3.0, 4.0) == 0.0
