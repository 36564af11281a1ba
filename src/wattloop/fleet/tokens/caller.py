"""Who asks, and what a role allows."""

from enum import StrEnum
from typing import NamedTuple

__all__ = ["ADMIN", "ANYBODY", "Caller", "Role"]


class Role(StrEnum):
    """What a token is for."""

    NODE = "node"
    """Writes runs and status of one node, and reads nothing."""
    READER = "reader"
    """Reads everything."""
    WRITER = "writer"
    """Reads everything, and writes runs of machines that are no node."""
    SCHEDULER = "scheduler"
    """Reads everything: power of the fleet, predictions, jobs."""
    ADMIN = "admin"
    """The server's own `--token`: everything."""
    ANYBODY = "anybody"
    """Without a token."""


class Caller(NamedTuple):
    """Who asks."""

    name: str
    role: Role
    node: str = ""

    @property
    def may_read(self) -> bool:
        """Whether pages and data are answered."""
        return self.role not in (Role.NODE, Role.ANYBODY)

    @property
    def may_write_runs(self) -> bool:
        """Whether pieces of journals are taken."""
        return self.role in (Role.NODE, Role.WRITER, Role.ADMIN)

    def may_speak_for(self, node: str) -> bool:
        """Whether the status of a node is taken."""
        return self.role is Role.ADMIN or (self.role is Role.NODE and self.node == node)

    def __str__(self) -> str:
        if self.role is Role.ANYBODY:
            return "somebody without a token"
        where = f" of {self.node}" if self.node else ""
        return f"token {self.name!r} ({self.role.value}{where})"


ADMIN = Caller("--token", Role.ADMIN)
ANYBODY = Caller("", Role.ANYBODY)
