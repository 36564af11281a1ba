"""What is to be run: kinds of jobs, tables of jobs, and where they come from."""

from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.jobs.table import JobTable

__all__ = ["JobKind", "JobTable"]
