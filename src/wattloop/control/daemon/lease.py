"""A client's claim on levers, and what became of one that was given back."""

from dataclasses import dataclass

from wattloop.control.daemon.peer import Peer
from wattloop.control.lever import Setting

__all__ = ["Lease", "PutBack"]


class Lease:
    """One connection's claim; compared by identity."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.jobs: dict[str, str] = {}
        """Lever -> job in whose name it is set."""

    def __str__(self) -> str:
        jobs = ", ".join(sorted(set(filter(None, self.jobs.values()))))
        return f"{self.peer}" + (f" for job {jobs}" if jobs else "")


@dataclass(frozen=True, slots=True)
class PutBack:
    """What became of a lever when it was given back."""

    lever: str
    before: Setting
    after: Setting
    fault: str = ""
