"""Random attributes of jobs: deadlines, users, rigid options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.estimates.oracle import Oracle
from wattloop.schedule.jobs.kind import JobKind


class Draws:
    """Random streams, one for each aspect of a workload.

    Jobs draw in order, so a longer workload begins with the jobs of a shorter one.

    Args:
        seed: seed of the whole workload, 0 or more.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, aspect: str) -> np.random.Generator:
        """Return the generator of an aspect such as `arrivals`, from its beginning."""
        return np.random.default_rng([self.seed, crc32(aspect.encode())])

    def uniform(self, aspect: str, count: int) -> NDArray[np.float64]:
        """Draw a number from 0 to below 1 for each job."""
        return self.stream(aspect).random(count)


def chosen(uniform: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Map uniform numbers to indices of weighted choices."""
    upper = np.cumsum(weights)
    picked = np.searchsorted(upper / upper[-1], uniform, side="right")
    return np.minimum(picked, len(weights) - 1).astype(np.int64)


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Deadlines of a share of the jobs: arrival + factor x best runtime (thesis 5.5.1).

    The urgent jobs of a smaller share stay urgent with a larger one.
    """

    share: float
    factor: float

    def draw(self, draws: Draws, arrival_s: Floats, best_s: Floats) -> Floats:
        """Draw the deadline of each job; infinite without one.

        Args:
            draws: random streams of the workload.
            arrival_s: arrival of each job.
            best_s: runtime on the fastest placement; infinite for a job that can never run, which
                gets no deadline.
        """
        urgent = draws.uniform("deadlines", len(arrival_s)) < self.share
        return np.where(urgent, arrival_s + self.factor * best_s, np.inf)


def best_runtime_s(
    kinds: Sequence[JobKind], kind: NDArray[np.int64], work: Floats, oracle: Oracle
) -> Floats:
    """Return the runtime of each job on its fastest placement on an empty cluster."""
    fastest = np.full(len(kinds), np.inf)
    for number, each in enumerate(kinds):
        options = oracle.options(each)
        if len(options):
            fastest[number] = options.sample_s.min()
    return np.asarray(work * fastest[kind])


@dataclass(frozen=True, slots=True)
class People:
    """Users and the share of jobs that each submits.

    Attributes:
        names: names of the users.
        shares: share of each user, with any sum.
    """

    names: tuple[str, ...]
    shares: tuple[float, ...]

    @classmethod
    def equal(cls, count: int) -> "People":
        """Return users `user-0`, `user-1`, ... with equal shares."""
        return cls(tuple(f"user-{n}" for n in range(count)), (1.0,) * count)

    @classmethod
    def with_majority(cls, count: int, share: float = 0.5) -> "People":
        """Return users of which `user-0` submits `share` of all jobs (thesis 5.5.2.5)."""
        rest = (1 - share) / (count - 1) if count > 1 else 0.0
        return cls(cls.equal(count).names, (share, *(rest,) * (count - 1)))

    @classmethod
    def named(cls, shares: Mapping[str, float]) -> "People":
        return cls(tuple(shares), tuple(shares.values()))

    def draw(self, draws: Draws, count: int) -> NDArray[np.int64]:
        """Draw the user of each of `count` jobs, as an index into `names`."""
        return chosen(draws.uniform("users", count), np.asarray(self.shares))


Ints = NDArray[np.int64]


def pinned(
    kinds: Sequence[JobKind], kind: Ints, draws: Draws, oracle: Oracle
) -> tuple[tuple[JobKind, ...], Ints]:
    """Fix one GPU count and one batch per job, drawn from the feasible ones of its kind.

    GPU type and power limit stay open, because the operator chooses them (thesis 5.5.2.1: "a fixed
    number of GPUs with a fixed batch size").

    Returns:
        The resulting kinds, and the kind of each job.
    """
    found: list[JobKind] = []
    first, count = np.zeros(len(kinds), np.int64), np.ones(len(kinds), np.int64)
    for number, each in enumerate(kinds):
        options = oracle.options(each)
        ways = sorted(set(zip(options.gpus.tolist(), options.batch.tolist(), strict=True)))
        # a kind that fits nowhere stays unchanged and is reported as one that can never run
        first[number], count[number] = len(found), max(1, len(ways))
        found += [replace(each, gpus=(gpus,), batches=(batch,)) for gpus, batch in ways] or [each]
    uniform = draws.uniform("rigid", len(kind))
    return tuple(found), first[kind] + (uniform * count[kind]).astype(np.int64)
