"""What a program that was killed had not yet written: its sampling process still has it.

Another process of the job may take over at the same moment, and counts from where the journal of
the dead one ends. So the journal is only completed by whoever holds the job's claim.
"""

import math
import os
from array import array
from collections.abc import Iterable
from pathlib import Path

from wattloop.measure.claims import Claim
from wattloop.measure.feeds import STAMP_SLACK_S
from wattloop.store.frames import SAMPLES, SampleBlock, block_from, frames_in, samples_frame
from wattloop.store.holding import held
from wattloop.store.journal import read_journal

__all__ = ["bequeath", "complete_journal"]


def bequeath(job_id: str, run_id: str, path: Path, sent: Iterable[bytes]) -> None:
    """Complete the journal of a dead run, unless another run counts the node already."""
    claim = Claim(job_id)
    owner = claim.owner()
    if owner is not None and owner.get("run_id") == run_id and claim.take(owner):
        claim.release(complete_journal(path, sent))


def complete_journal(path: Path, sent: Iterable[bytes]) -> float | None:
    """Append the readings among the frames `sent` that are newer than those in a dead journal.

    Holds the journal's lock, as whoever folds it would: it is left alone when somebody has it,
    when it was folded meanwhile, or when the run has an end.

    Returns:
        When the last reading in it was taken; None if it was left alone.
    """
    with held(path) as refusal:
        if refusal is not None:
            return None
        journal = read_journal(path)
        if journal is None or journal.end is not None:
            return None
        last_s: dict[int, float] = {}
        for block in journal.blocks:
            if block.times_s:
                # Two processes stamped them: what is this close may be in the wrong order.
                until_s = block.times_s[-1] + STAMP_SLACK_S
                last_s[block.feed] = max(last_s.get(block.feed, -math.inf), until_s)
        rests = [
            rest
            for kind, payload, _ in frames_in(b"".join(sent))
            if kind == SAMPLES
            and (rest := _after(block := block_from(payload), last_s.get(block.feed, -math.inf)))
        ]
        size_b = path.stat().st_size - journal.torn_bytes
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.ftruncate(file, size_b)  # what stands behind a torn frame is never read
            data = b"".join(samples_frame(*rest) for rest in rests)
            if os.write(file, data) != len(data):
                os.ftruncate(file, size_b)
                return None
        finally:
            os.close(file)
        times_s = [
            *(b.times_s[-1] for b in journal.blocks if b.times_s),
            *(rest.times_s[-1] for rest in rests),
        ]
    return max(times_s, default=None)


def _after(block: SampleBlock, time_s: float) -> SampleBlock | None:
    """The readings of a block that are later than `time_s`."""
    first = next((i for i, t in enumerate(block.times_s) if t > time_s), None)
    if first is None:
        return None
    values: array[float] = block.values[first * block.width :]
    return SampleBlock(block.feed, block.width, block.times_s[first:], values)
