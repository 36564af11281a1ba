"""Processes of one job that can wait for each other and send each other small things."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any, Protocol

__all__ = ["AloneRanks", "MpiRanks", "Ranks", "TorchRanks", "current_ranks"]

PATIENCE_S = 120.0
"""A rank that has not come after so long has died; the others go on without it."""
POLL_S = 0.002


class Ranks(Protocol):
    """The processes of a job, seen from one of them."""

    rank: int
    size: int

    def barrier(self) -> None:
        """Wait for the others; raises when one of them does not come."""
        ...

    def gather(self, item: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Every rank's item, in order, on rank 0; None on the others."""
        ...


def current_ranks() -> Ranks:
    """What the program uses already: torch.distributed, else MPI, else nobody else.

    Every rank must call this, since a group of its own may have to be made.
    """
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return TorchRanks(distributed)
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        return MpiRanks(mpi)
    return AloneRanks()


class AloneRanks:
    """A job of one process."""

    rank = 0
    size = 1

    def barrier(self) -> None:
        """Nobody to wait for."""

    def gather(self, item: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Our own."""
        return [item]


class TorchRanks:
    """torch.distributed, over a group on the CPU so that no GPU has to work for it."""

    def __init__(self, distributed: Any, patience_s: float = PATIENCE_S) -> None:
        self._distributed = distributed
        self.rank = int(distributed.get_rank())
        self.size = int(distributed.get_world_size())
        self._group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=patience_s))

    def barrier(self) -> None:
        """Wait for the others."""
        self._distributed.barrier(group=self._group)

    def gather(self, item: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Every rank's item on rank 0."""
        items: list[Any] | None = [None] * self.size if self.rank == 0 else None
        self._distributed.gather_object(item, items, dst=0, group=self._group)
        return items


class MpiRanks:
    """MPI, over a duplicate of the world's communicator so that no message meets the program's."""

    def __init__(self, mpi: Any, patience_s: float = PATIENCE_S) -> None:
        self._world = mpi.COMM_WORLD.Dup()
        self._patience_s = patience_s
        self.rank = int(self._world.Get_rank())
        self.size = int(self._world.Get_size())

    def barrier(self) -> None:
        """Wait for the others without burning a core."""
        request = self._world.Ibarrier()
        limit_s = time.monotonic() + self._patience_s
        while not request.Test():
            if time.monotonic() > limit_s:
                raise TimeoutError(f"a rank did not come within {self._patience_s:g} s")
            time.sleep(POLL_S)

    def gather(self, item: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Every rank's item on rank 0."""
        items: list[dict[str, Any]] | None = self._world.gather(item, root=0)
        return items
