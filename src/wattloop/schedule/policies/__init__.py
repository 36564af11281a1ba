"""Scheduling policies: order of jobs, their placements and power caps; one policy per module."""

from wattloop.schedule.policies.base import Policy

__all__ = ["Policy"]
