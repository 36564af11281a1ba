"""Limit of journals on disk, and the order in which they are dropped.

1. journals that the server refused, oldest first;
2. samples of finished runs, oldest first: header, events and the energy by domain stay;
3. whole finished runs, oldest first, when even that is too much.

Journals that grow are never touched: a day of ten domains at 1 Hz is 8 MB.
"""

import os
from pathlib import Path
from typing import NamedTuple

from wattloop.fleet.delivery.outbox import THINNED, Outbox, Waiting
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.journal import (
    END,
    EVENT,
    HEADER,
    SAMPLES,
    frames_in,
    json_frame,
    pack_frame,
    read_journal,
)

SMALL_B = 4_096


"""Of less than that, samples are not the bulk."""


NOTE = "its samples were dropped on the node to make room while the server was away"


class Made(NamedTuple):
    """Data that were dropped."""

    refused: int = 0
    thinned: int = 0
    lost: int = 0


def make_room(outbox: Outbox, limit_b: int, idle_s: float = 600.0) -> Made:
    """Drop the least valuable data until at most `limit_b` wait.

    Journals written to within `idle_s` are left alone: an agent may continue them.
    """
    waiting = outbox.waiting()
    aside = outbox.refused()
    used_b = sum(one.size_b for one in waiting) + sum(path.stat().st_size for path in aside)
    if used_b <= limit_b:
        return Made()
    refused = thinned = lost = 0
    for path in aside:
        if used_b <= limit_b:
            break
        used_b -= path.stat().st_size
        path.unlink(missing_ok=True)
        refused += 1
    finished = [
        one for one in waiting if one.is_closed or (one.idle_s() > idle_s and not one.is_growing())
    ]
    for one in finished:
        if used_b <= limit_b:
            break
        if not one.is_thinned and one.size_b > SMALL_B:
            used_b -= one.size_b - thin(one).stat().st_size
            thinned += 1
    for one in finished:
        if used_b <= limit_b:
            break
        used_b -= _size_b(one)
        outbox.remove(one.run_id)
        lost += 1
    return Made(refused, thinned, lost)


def thin(waiting: Waiting) -> Path:
    """The same run without its samples, which are the bulk of it; killed at any moment, one of
    both files is whole.
    """
    target = waiting.path.with_suffix(THINNED)
    fresh = target.with_name(f".{target.name}")
    with fresh.open("wb") as file:
        file.write(_without_samples(waiting.path))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(target)
    waiting.path.unlink(missing_ok=True)
    return target


def _without_samples(path: Path) -> bytes:
    kept, ended = [], False
    for kind, payload, _ in frames_in(path.read_bytes()):
        if kind == END:
            ended = True
            kept.append(json_frame(EVENT, {"type": "note", "text": NOTE}))
        if kind != SAMPLES:
            kept.append(pack_frame(kind, payload))
        if kind == HEADER and not ended and len(kept) > 1:
            break  # a second header: not ours
    journal = None if ended else read_journal(path)
    if journal is not None:
        # its writer died: the energy of what it read is worked out while the samples are there
        kept.append(json_frame(EVENT, {"type": "note", "text": NOTE}))
        kept.append(json_frame(END, finalize_orphaned_run(journal)))
    return b"".join(kept)


def _size_b(waiting: Waiting) -> int:
    path = waiting.path.with_suffix(THINNED)
    return path.stat().st_size if path.exists() else waiting.size_b
