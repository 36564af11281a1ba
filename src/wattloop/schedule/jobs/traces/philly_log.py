"""Philly's own `cluster_job_log`: JSON, a job with its attempts."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.schedule.jobs.traces.detection import Layout
from wattloop.schedule.jobs.traces.format import TraceFormat

__all__ = ["philly_log_layout", "philly_log_rows"]

HEADER = ("jobid", "vc", "user", "status", "submitted_time", "gpus", "duration")
FORM = TraceFormat(
    name="philly-log",
    columns={
        "name": ("jobid",),
        "user": ("user",),
        "state": ("status",),
        "arrival": ("submitted_time",),
        "gpus": ("gpus",),
        "duration": ("duration",),
    },
    units={"arrival": "date"},
    unusable="leave_out",  # the log has attempts without an end, and says so
)


def philly_log_layout() -> Layout:
    """How `philly_log_rows` are to be read."""
    return Layout(FORM, ",", HEADER, False, FORM.positions(HEADER))


def philly_log_rows(name: str, text: str) -> Iterator[list[str]]:
    """One row per job: GPUs of its last attempt, and the time of all of them together.

    Raises:
        ConfigError: not the JSON of that log.
    """
    try:
        jobs = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name}: not valid JSON: {error}") from None
    for number, job in enumerate(jobs):
        try:
            attempts = job["attempts"]
            gpus = sum(len(part["gpus"]) for part in attempts[-1]["detail"]) if attempts else ""
            times_s = [_lasted_s(attempt) for attempt in attempts]
            known = [time_s for time_s in times_s if time_s is not None]
            row = [job[key] for key in HEADER[:5]]
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{name}: job {number} is not one of Philly's cluster_job_log: {error} is missing"
            ) from None
        duration = sum(known) if len(known) == len(times_s) and known else ""
        yield [*("" if cell is None else str(cell) for cell in row), str(gpus), str(duration)]


def _lasted_s(attempt: dict[str, Any]) -> float | None:
    try:
        begin, end = (datetime.fromisoformat(attempt[key]) for key in ("start_time", "end_time"))
    except (TypeError, ValueError):
        return None  # a fault of logging, or still running
    return (end - begin).total_seconds()
