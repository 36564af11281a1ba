"""Time and power of a job on every placement it may take."""

from wattloop.schedule.oracle.options import Options
from wattloop.schedule.oracle.oracle import Oracle

__all__ = ["Options", "Oracle"]
