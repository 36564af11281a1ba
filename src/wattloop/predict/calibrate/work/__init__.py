"""Cases made into calls, one module per family."""

from collections.abc import Callable, Mapping

from wattloop.predict.calibrate.bench import Bench, Work
from wattloop.predict.calibrate.work import (
    conv,
    copies,
    elementwise,
    gemm,
    normalizing,
    optimizer,
    reading,
    sequence,
)
from wattloop.predict.calibrate.work.params import Params

__all__ = ["build"]

BUILDERS: Mapping[str, Callable[[Bench, Params], Work]] = {
    "gemm": gemm.build,
    "conv": conv.build,
    "attention": sequence.attention,
    "rnn": sequence.rnn,
    "elementwise": elementwise.build,
    "copy": copies.build,
    "norm": normalizing.norm,
    "softmax": normalizing.softmax,
    "loss": normalizing.loss,
    "reduction": reading.reduction,
    "embedding": reading.embedding,
    "pool": reading.pool,
    "index": reading.index,
    "optimizer": optimizer.build,
}


def build(family: str, params: Mapping[str, object], bench: Bench) -> Work:
    """The calls of a case."""
    return BUILDERS[family](bench, Params(params))
