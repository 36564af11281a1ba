"""Pieces of journals: what is answered to one, and what makes one senseless."""

import json
import re
from dataclasses import dataclass

from wattloop.core.errors import ConfigError
from wattloop.store.arriving import Source
from wattloop.store.frames import HEADER, frames_in
from wattloop.store.journal_shape import header_fault
from wattloop.store.ownership import check_host

__all__ = [
    "LARGEST_PIECE_B",
    "RUN_ID",
    "Received",
    "Unexpected",
    "check_header",
    "check_name",
]

LARGEST_PIECE_B = 8 * 1024 * 1024
RUN_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")


class Unexpected(ConfigError):
    """A piece that does not follow what is there; `offset` is where the next one begins."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Received:
    """What this end has of a run.

    Attributes:
        offset: where the next piece begins.
        ended: the run is complete and in the store.
        complete: all of it is here, and it waits for the store.
        tail: checksum of the last 4 KiB before `offset`; only where it was asked for.
    """

    offset: int
    ended: bool
    complete: bool = False
    tail: int | None = None


def check_name(run_id: str) -> None:
    """Identifiers become names of files: nothing but names may be among them."""
    if not RUN_ID.fullmatch(run_id):
        raise ConfigError(f"{run_id!r} is no identifier of a run")


def check_header(run_id: str, piece: bytes, source: Source) -> str:
    """The first piece begins with the header of that very run, of a node that may send it.

    What is wrong with that header is returned: such a journal is set aside.
    """
    for kind, payload, _ in frames_in(piece):
        try:
            header = json.loads(payload) if kind == HEADER else None
        except (ValueError, RecursionError):
            header = None
        if isinstance(header, dict) and header.get("run_id") == run_id:
            check_host(run_id, header.get("host"), source)
            return header_fault(header)
        break
    raise ConfigError(f"the first piece of {run_id} does not begin with its header")
