"""Kinds of jobs: equal in everything except size, owner and time."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class JobKind:
    """What a job trains and how it may run: the key of all that an oracle answers.

    A rigid job is one with a single choice everywhere.

    Attributes:
        model: name the oracle knows: `hf:google/vit-base-patch16-224`, a row of a table, ...
        precision: `fp32`, `tf32`, `bf16`, `fp16`; empty where the oracle's table has one only.
        gpus: GPU counts it may run on.
        batches: samples per GPU and step it may run with.
        caps: power limits it may run under, as shares of the GPU's TDP.
        types: names of GPU types it may run on; empty is any.
        sequence: tokens of a sample, where that is a choice of the model.
        may_spread: may take GPUs of one node's worth from several nodes, over the network.
    """

    model: str
    precision: str = ""
    gpus: tuple[int, ...] = (1,)
    batches: tuple[int, ...] = (1,)
    caps: tuple[float, ...] = (1.0,)
    types: tuple[str, ...] = ()
    sequence: int | None = None
    may_spread: bool = False

    @property
    def label(self) -> str:
        """For people: `vit-base-patch16-224 fp32`."""
        return f"{self.model.rpartition('/')[2].removeprefix('hf:')} {self.precision}".strip()


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """A kind of job, how much of it there is to do, and how often it comes.

    Attributes:
        kind: what is trained and how it may run.
        least_work, most_work: samples to train on; drawn evenly on a logarithmic scale between
            the two, or the one figure when both are equal. Nothing to do with traces, which
            have durations.
        weight: how often it comes, against the others.
        trace_gpus: GPU counts of a trace's jobs that may be this one, from, to.
        trace_s: durations of a trace's jobs that may be this one, from, to.
        called: names under which traces know this model, beside its own.
    """

    kind: JobKind
    least_work: float = math.nan
    most_work: float = math.nan
    weight: float = 1.0
    trace_gpus: tuple[float, float] = (0.0, math.inf)
    trace_s: tuple[float, float] = (0.0, math.inf)
    called: tuple[str, ...] = ()

    def work(self, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        """Samples of jobs, by one number from 0 to 1 each."""
        if self.least_work == self.most_work:
            return np.full(len(uniform), self.least_work)
        low, high = math.log(self.least_work), math.log(self.most_work)
        return np.asarray(np.exp(low + (high - low) * uniform))
