"""Jobs: kinds, tables, generators, and completion of traces."""

from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.jobs.table import JobTable

__all__ = ["JobKind", "JobTable"]
