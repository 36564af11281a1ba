"""Promise: what a Slurm takes to start a job and to clear away another is told from its jobs."""

from pathlib import Path

import pytest

from wattloop.schedule.slurm.replay.latency import latency_of, read_starts
from wattloop.schedule.slurm.replay.notes import Ran

GPU, OTHER = ("n1", 0), ("n1", 1)


def test_start_and_end_latencies_come_from_decisions_and_work() -> None:
    """Work began 0.5 s after each decision; the GPU was given away 0.8 s after it was left."""
    ran = [
        Ran(0, 10, (GPU,), 1.5, 5.0, 1.0),
        Ran(1, 11, (GPU,), 6.3, 9.0, 1.0),
    ]
    found = latency_of(ran, {0: 1.0, 1: 1.0}, {10: 1.0, 11: 5.8}, "log")
    assert found.start_s == pytest.approx(0.5)
    assert found.end_s == pytest.approx(0.8)
    assert (found.starts, found.ends) == (2, 1)


def test_a_job_that_came_later_says_nothing_of_the_end_before() -> None:
    """Its GPU had been free for a while: nobody waited for it."""
    ran = [Ran(0, 10, (GPU,), 1.0, 2.0, 1.0), Ran(1, 11, (GPU,), 60.0, 61.0, 1.0)]
    assert latency_of(ran, {0: 0.0, 1: 59.0}, {10: 0.5, 11: 59.5}, "log").end_s is None


def test_jobs_that_waited_for_their_turn_do_not_count() -> None:
    """Two start in one pass: the second had a free GPU all along, and waited for the first."""
    ran = [
        Ran(0, 10, (OTHER,), 0.1, 2.0, 1.0),
        Ran(1, 11, (GPU,), 0.1, 10.0, 1.0),
        Ran(2, 12, (GPU,), 11.0, 12.0, 1.0),
        Ran(3, 13, (OTHER,), 11.0, 12.0, 1.0),
    ]
    submitted_s = dict.fromkeys(range(4), 0.0)
    started_s = {10: 0.0, 11: 0.0, 12: 10.4, 13: 10.41}
    assert latency_of(ran, submitted_s, started_s, "log").end_s == pytest.approx(0.4)


def test_starts_are_read_from_the_log_of_slurmctld(tmp_path: Path) -> None:
    """Both schedulers' lines, in milliseconds."""
    log = tmp_path / "slurmctld.log"
    log.write_text(
        "[2026-11-15T18:38:31.002] sched: Allocate JobId=4 NodeList=n1 #CPUs=1 Partition=all\n"
        "[2026-11-15T18:38:34.373] sched/backfill: _start_job: Started JobId=7 in all on n1\n"
        "[2026-11-15T18:38:34.400] _job_complete: JobId=7 done\n"
    )
    found, source = read_starts(lambda *command: f"SlurmctldLogFile        = {log}\n")
    assert found[7] - found[4] == pytest.approx(3.371)
    assert "milliseconds" in source


def test_without_the_log_a_start_is_taken_in_the_middle_of_its_second() -> None:
    """squeue shows whole seconds."""

    def slurm(*command: str) -> str:
        if command[0] == "scontrol":
            return "SlurmctldLogFile        = /nowhere/slurmctld.log\n"
        return "4 2026-11-15T18:38:31\n5 N/A\n"

    found, source = read_starts(slurm)
    assert list(found) == [4]
    assert "whole seconds" in source
