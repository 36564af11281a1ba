"""Promise: Slurm's latencies of starting and clearing jobs are measured from its jobs."""

from pathlib import Path

import pytest

from wattloop.schedule.slurm.replay.latency import (
    JobTimes,
    driver_end_latency,
    measure_latency,
    read_times,
)
from wattloop.schedule.slurm.replay.result import ReplayedRun

GPU, OTHER = ("n1", 0), ("n1", 1)


def test_start_and_end_latencies_come_from_decisions_and_work() -> None:
    """Work began 0.5 s after each decision; the GPU was assigned 0.8 s after it was left."""
    ran = [
        ReplayedRun(0, 10, (GPU,), 1.5, 5.0, 1.0),
        ReplayedRun(1, 11, (GPU,), 6.3, 9.0, 1.0),
    ]
    found = measure_latency(ran, {0: 1.0, 1: 1.0}, JobTimes({10: 1.0, 11: 5.8}, {}, "log"))
    assert found.start_s == pytest.approx(0.5)
    assert found.end_s == pytest.approx(0.8)
    assert (found.starts, found.ends) == (2, 1)


def test_a_job_that_came_later_says_nothing_of_the_end_before() -> None:
    """Its GPU had been free for a while: no job waited for it."""
    ran = [ReplayedRun(0, 10, (GPU,), 1.0, 2.0, 1.0), ReplayedRun(1, 11, (GPU,), 60.0, 61.0, 1.0)]
    assert (
        measure_latency(ran, {0: 0.0, 1: 59.0}, JobTimes({10: 0.5, 11: 59.5}, {}, "log")).end_s
        is None
    )


def test_jobs_that_waited_for_their_turn_do_not_count() -> None:
    """Two start in one pass: the second had a free GPU, and waited for the first."""
    ran = [
        ReplayedRun(0, 10, (OTHER,), 0.1, 2.0, 1.0),
        ReplayedRun(1, 11, (GPU,), 0.1, 10.0, 1.0),
        ReplayedRun(2, 12, (GPU,), 11.0, 12.0, 1.0),
        ReplayedRun(3, 13, (OTHER,), 11.0, 12.0, 1.0),
    ]
    submitted_s = dict.fromkeys(range(4), 0.0)
    started_s = {10: 0.0, 11: 0.0, 12: 10.4, 13: 10.41}
    assert measure_latency(ran, submitted_s, JobTimes(started_s, {}, "log")).end_s == pytest.approx(
        0.4
    )


def test_what_slurm_backfilled_waited_for_its_look() -> None:
    """The simulator knows when Slurm looks for gaps; that wait is not latency."""
    ran = [ReplayedRun(0, 10, (GPU,), 1.5, 5.0, 1.0), ReplayedRun(1, 11, (GPU,), 6.3, 9.0, 1.0)]
    times = JobTimes({10: 1.0, 11: 5.8}, {}, "log", frozenset({11}))
    assert measure_latency(ran, {0: 1.0, 1: 1.0}, times).ends == 1
    found = measure_latency(ran, {0: 1.0, 1: 1.0}, times, with_backfilled=False)
    assert (found.starts, found.ends, found.end_s) == (2, 0, None)


def test_starts_are_read_from_the_log_of_slurmctld(tmp_path: Path) -> None:
    """Both schedulers' lines, in milliseconds."""
    log = tmp_path / "slurmctld.log"
    log.write_text(
        "[2026-11-15T18:38:31.002] sched: Allocate JobId=4 NodeList=n1 #CPUs=1 Partition=all\n"
        "[2026-11-15T18:38:34.373] sched/backfill: _start_job: Started JobId=7 in all on n1\n"
        "[2026-11-15T18:38:34.400] _job_complete: JobId=7 done\n"
    )
    found = read_times(lambda *command: f"SlurmctldLogFile        = {log}\n")
    assert found.started_s[7] - found.started_s[4] == pytest.approx(3.371)
    assert found.ended_s[7] - found.started_s[7] == pytest.approx(0.027, abs=1e-3)
    assert "milliseconds" in found.source
    assert found.backfilled == {7}


def test_without_the_log_a_start_is_taken_in_the_middle_of_its_second() -> None:
    """squeue shows whole seconds."""

    def slurm(*command: str) -> str:
        if command[0] == "scontrol":
            return "SlurmctldLogFile        = /nowhere/slurmctld.log\n"
        return "4 2026-11-15T18:38:31\n5 N/A\n"

    found = read_times(slurm)
    assert list(found.started_s) == [4]
    assert "whole seconds" in found.source


def test_under_a_budget_the_parts_of_the_latency_are_added() -> None:
    """0.1 s until Slurm knew, a poll every 0.5 s, 0.3 s until it was done: 0.65 s."""
    ran = [ReplayedRun(0, 10, (GPU,), 1.0, 5.0, 1.0)]
    times = JobTimes({11: 7.3}, {10: 5.1}, "log")
    looks = [(0.5 * number, [11] if number == 14 else []) for number in range(20)]
    assert driver_end_latency(ran, times, looks) == pytest.approx(0.1 + 0.25 + 0.3)
    assert driver_end_latency(ran, JobTimes({11: 7.3}, {}, "log"), looks) is None
    assert driver_end_latency(ran, times, looks[:3]) is None
