"""Who runs next, where, and under which power limit: one policy per file."""

from wattloop.schedule.policies.base import Policy

__all__ = ["Policy"]
