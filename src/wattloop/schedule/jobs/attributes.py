"""Random attributes of jobs: deadlines, users, rigid options."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from wattloop.schedule.estimates.oracle import Oracle
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.yaml_model import Positive, Share, StrictModel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Draws:
    """Random streams, one for each aspect of a workload.

    Jobs draw in order, so a longer workload begins with the jobs of a shorter one.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, aspect: str) -> np.random.Generator:
        """Return the generator of an aspect such as `arrivals`, from its beginning."""
        return np.random.default_rng([self.seed, crc32(aspect.encode())])

    def uniform(self, aspect: str, count: int) -> NDArray[np.float64]:
        return self.stream(aspect).random(count)


def weighted_choice(
    uniform: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Map uniform numbers to indices of weighted choices."""
    upper = np.cumsum(weights)
    picked = np.searchsorted(upper / upper[-1], uniform, side="right")
    return np.minimum(picked, len(weights) - 1).astype(np.int64)


class Deadlines(StrictModel):
    """Deadlines of a share of the jobs: arrival + factor x best runtime (thesis 5.5.1).

    The urgent jobs of a smaller share stay urgent with a larger one.
    """

    share: Share = 0.1
    factor: Positive = 3.5

    def draw(self, draws: Draws, arrival_s: Floats, best_s: Floats) -> Floats:
        """Draw the deadline of each job; infinite for jobs without one."""
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


class Users(StrictModel):
    """Users: a number of equal ones, one with a `majority` of jobs, or shares by name.

    With a majority (thesis 5.5.2.5), `user-0` submits that share of the jobs.
    """

    count: Annotated[int, Field(ge=1, le=100_000)] = 1
    majority: Share | None = None
    shares: dict[str, Positive] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _plain_count(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return {"count": value}
        if not isinstance(value, Mapping):
            raise ValueError("write a number, or count and majority, or shares by name")
        return value

    @model_validator(mode="after")
    def _one_way(self) -> "Users":
        if self.shares and (self.count != 1 or self.majority is not None):
            raise ValueError("shares name every user; leave count and majority out")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.shares) or tuple(f"user-{number}" for number in range(self.count))

    def draw(self, draws: Draws, count: int) -> Ints:
        """Draw the user of each of `count` jobs, as an index into `names`."""
        weights = np.ones(self.count)
        if self.shares:
            weights = np.array(list(self.shares.values()))
        elif self.majority is not None:
            weights[1:] = (1 - self.majority) / (self.count - 1) if self.count > 1 else 0.0
            weights[0] = self.majority
        return weighted_choice(draws.uniform("users", count), weights)


def pin_options(
    kinds: Sequence[JobKind], kind: Ints, draws: Draws, oracle: Oracle
) -> tuple[tuple[JobKind, ...], Ints]:
    """Fix one GPU count and one batch per job, drawn from the feasible ones of its kind.

    GPU type and power limit stay open, because the operator chooses them (thesis 5.5.2.1: "a fixed
    number of GPUs with a fixed batch size").
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
