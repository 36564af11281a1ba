"""Promises of squeue's jobs: user texts of any content stay in their column."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattloop.core.errors import SlurmError
from wattloop.schedule.driver.inventory import SchedulerJob
from wattloop.schedule.slurm.squeue import COLUMNS, JobLister


def read_jobs(text: bytes) -> list[SchedulerJob]:
    """Return the jobs of a squeue that prints this."""
    return JobLister(lambda *command: text).jobs()


HEAD = {name: heading for name, (heading, _) in COLUMNS.items()}


def record(values: dict[str, str]) -> bytes:
    """Return one line as squeue prints it: cut and filled by bytes."""
    return (
        b"".join(
            values.get(name, "").encode()[:width].ljust(width)
            for name, (_, width) in COLUMNS.items()
        )
        + b"\n"
    )


def listing(*rows: dict[str, str]) -> bytes:
    return record(HEAD) + b"".join(map(record, rows))


WAITS = {
    "JobArrayID": "17",
    "State": "PENDING",
    "Reason": "Resources",
    "UserName": "ada",
    "Partition": "gpu",
    "Reservation": "(null)",
    "tres-per-node": "gres:gpu:a100:2",
    "tres-per-job": "N/A",
    "NumNodes": "2",
    "SubmitTime": "1794768442",
    "StartTime": "N/A",
    "TimeLimit": "1-02:03:04",
    "PriorityLong": "4294900311",
    "RestartCnt": "1",
    "Requeue": "1",
    "Name": "train",
    "Comment": "(null)",
}
RUNS = {
    **WAITS,
    "JobArrayID": "18",
    "State": "RUNNING",
    "NodeList": "n[1-2]",
    "StartTime": "1794768500",
}


def test_a_waiting_and_a_running_job() -> None:
    """Requested and allocated resources have units."""
    waits, runs = read_jobs(listing(WAITS, RUNS))
    assert (waits.key, waits.gpus, waits.gpu_type, waits.nodes) == ("17", 4, "a100", 2)
    assert waits.time_limit_s == 86_400 + 2 * 3600 + 3 * 60 + 4
    assert waits.is_eligible
    assert not waits.start_s
    assert waits.comment == ""
    assert runs.placed == (("n1", 2), ("n2", 2))
    assert runs.start_s == 1_794_768_500


@pytest.mark.parametrize(
    ("changes", "promise"),
    [
        ({"Reason": "Dependency"}, False),
        ({"Reason": "JobHeldUser", "PriorityLong": "0"}, False),
        ({"Reason": "BeginTime"}, False),
        ({"Reason": "ReqNodeNotAvail, May be reserved for other job"}, True),
    ],
)
def test_only_jobs_that_wait_for_machines_are_offered(
    changes: dict[str, str], promise: bool
) -> None:
    """Held jobs, and those that wait for a time or another job, are not the driver's to start."""
    assert read_jobs(listing({**WAITS, **changes}))[0].is_eligible is promise


def test_tasks_of_an_array_are_jobs_of_their_own() -> None:
    """One of them can be started alone; endless arrays are bounded."""
    found = read_jobs(listing({**WAITS, "JobArrayID": "5_[1-5:2,9%2]"}))
    assert [job.key for job in found] == ["5_1", "5_3", "5_5", "5_9"]
    assert len(read_jobs(listing({**WAITS, "JobArrayID": "5_[0-999999]"}))) == 200


def test_gpus_may_be_asked_for_in_three_ways() -> None:
    """By node, by job, by task."""
    by_job = {**WAITS, "tres-per-node": "N/A", "tres-per-job": "gres:gpu:3"}
    by_task = {**WAITS, "tres-per-node": "N/A", "tres-per-task": "gres:gpu:1", "NumTasks": "8"}
    first, second = read_jobs(listing(by_job, by_task))
    assert (first.gpus, first.gpus_per_node) == (3, 0)
    assert second.gpus == 8


@given(st.text(max_size=400), st.text(max_size=2_000))
def test_hostile_text_stays_in_its_column(name: str, comment: str) -> None:
    """Line breaks, columns, other jobs' numbers: the next job is read correctly."""
    hostile = {**WAITS, "Name": name, "Comment": comment, "Command": name}
    first, second = read_jobs(listing(hostile, RUNS))
    assert (first.key, first.user, first.gpus, first.admin_comment) == ("17", "ada", 4, "")
    assert (second.key, second.state, second.user) == ("18", "RUNNING", "ada")


@pytest.mark.parametrize("text", [b"", b"squeue: error\n", listing(WAITS)[:-7], b"x" * 5000])
def test_other_columns_are_no_list_of_jobs(text: bytes) -> None:
    """The output of another Slurm is detected, not misread."""
    with pytest.raises(SlurmError):
        read_jobs(text)


def test_columns_in_another_order_are_noticed() -> None:
    """Headings are compared: a missing column shifts all others."""
    with pytest.raises(SlurmError, match="for column"):
        read_jobs(record({**HEAD, "UserName": "NAME"}))
