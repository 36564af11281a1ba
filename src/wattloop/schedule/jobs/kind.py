"""Job kinds: jobs that are equal except for size, user and time; and templates of jobs."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class ServiceLoad(NamedTuple):
    """Requests that a served language model answers.

    Attributes:
        requests_per_s: of all its GPUs together.
        prompt, output: tokens of a request, read and generated.
        weights: arithmetic type of the weights.
        tp: GPUs that share every layer; a service has as many copies as its GPUs allow.
        most_token_s: longest mean time between two tokens of a request.
    """

    requests_per_s: float
    prompt: int = 512
    output: int = 512
    weights: str = "bf16"
    tp: int = 1
    most_token_s: float = math.inf


@dataclass(frozen=True, slots=True)
class JobKind:
    """Model and allowed placements of a job: the key of an oracle's answers.

    A rigid job has a single choice for each attribute.

    Attributes:
        model: name in the oracle: `hf:google/vit-base-patch16-224`, a row of a table, ...
        precision: `fp32`, `tf32`, `bf16`, `fp16`; empty where the oracle's table has only one.
        batches: allowed batches, in samples per GPU and step.
        caps: allowed power limits, as shares of the GPU's TDP.
        types: allowed GPU types; empty for any.
        sequence: tokens of a sample, for models with a variable length.
        may_spread: GPUs that would fit into one node may come from several, over the network.
        zero: what its GPUs divide: 0 nothing, 1 the optimizer's state, 2 gradients as well, 3
            weights as well (FSDP).
        parallel: layout of a decoder over its GPUs, such as `tp=4,pp=2`; data parallelism takes the
            rest, and batches are sequences of one pass of a data parallel group.
        checkpointing, global_batch: of a job with a layout; sequences of a step, None for one pass
            per stage.
        service: the job answers requests instead of training; its work is in seconds.
    """

    model: str
    precision: str = ""
    gpus: tuple[int, ...] = (1,)
    batches: tuple[int, ...] = (1,)
    caps: tuple[float, ...] = (1.0,)
    types: tuple[str, ...] = ()
    sequence: int | None = None
    may_spread: bool = False
    zero: int = 0
    parallel: str = ""
    checkpointing: str = "none"
    global_batch: int | None = None
    service: ServiceLoad | None = None

    @property
    def label(self) -> str:
        what = self.precision if self.service is None else "service"
        return f"{self.model.rpartition('/')[2].removeprefix('hf:')} {what}".strip()

    @property
    def is_laid_out(self) -> bool:
        """Return True if its figures come from the sizes of a decoder, not from a traced step."""
        return bool(self.parallel) or self.service is not None


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """Job kind with the distribution of its work and its frequency.

    Attributes:
        least_work, most_work: range of samples, drawn uniformly on a logarithmic scale. Not used
            for traces, which have durations.
        trace_gpus: GPU counts of a trace's jobs that may use this template, from, to.
        trace_s: durations of a trace's jobs that may use this template, from, to.
        called: further names of this model in traces.
    """

    kind: JobKind
    least_work: float = math.nan
    most_work: float = math.nan
    weight: float = 1.0
    trace_gpus: tuple[float, float] = (0.0, math.inf)
    trace_s: tuple[float, float] = (0.0, math.inf)
    called: tuple[str, ...] = ()

    def work(self, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the samples of jobs, from one number from 0 to 1 each."""
        if self.least_work == self.most_work:
            return np.full(len(uniform), self.least_work)
        low, high = math.log(self.least_work), math.log(self.most_work)
        return np.asarray(np.exp(low + (high - low) * uniform))
