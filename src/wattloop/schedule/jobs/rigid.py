"""Jobs that can run in one way only."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.jobs.draws import Draws
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.oracle.oracle import Oracle

__all__ = ["pinned"]

Ints = NDArray[np.int64]


def pinned(
    kinds: Sequence[JobKind], kind: Ints, draws: Draws, oracle: Oracle
) -> tuple[tuple[JobKind, ...], Ints]:
    """Each job with one GPU count and one batch, drawn from those its kind can really run with.

    GPU type and power limit stay open: they are the operator's to choose, not the job's
    (thesis 5.5.2.1: "a fixed number of GPUs with a fixed batch size").

    Returns:
        The kinds that came of it, and which of them each job is.
    """
    found: list[JobKind] = []
    first, count = np.zeros(len(kinds), np.int64), np.ones(len(kinds), np.int64)
    for number, each in enumerate(kinds):
        options = oracle.options(each)
        ways = sorted(set(zip(options.gpus.tolist(), options.batch.tolist(), strict=True)))
        # a kind that fits nowhere stays as it is, to be reported as one that can never run
        first[number], count[number] = len(found), max(1, len(ways))
        found += [replace(each, gpus=(gpus,), batches=(batch,)) for gpus, batch in ways] or [each]
    uniform = draws.uniform("rigid", len(kind))
    return tuple(found), first[kind] + (uniform * count[kind]).astype(np.int64)
