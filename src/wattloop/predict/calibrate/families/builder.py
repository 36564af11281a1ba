"""Build the calls of a case."""

from collections.abc import Callable, Mapping

from wattloop.predict.calibrate.case import Params
from wattloop.predict.calibrate.device import Bench, Work
from wattloop.predict.calibrate.families import convolution, memory, optimizer, product, sequence

BUILDERS: Mapping[str, Callable[[Bench, Params], Work]] = {
    "gemm": product.build_gemm,
    "conv": convolution.build_conv,
    "attention": sequence.attention,
    "rnn": sequence.rnn,
    "elementwise": memory.build_elementwise,
    "copy": memory.build_copy,
    "norm": memory.norm,
    "softmax": memory.softmax,
    "loss": memory.loss,
    "reduction": memory.reduction,
    "embedding": memory.embedding,
    "pool": memory.pool,
    "index": memory.index,
    "optimizer": optimizer.build_optimizer,
}


def build(family: str, params: Mapping[str, object], bench: Bench) -> Work:
    """The calls of a case."""
    return BUILDERS[family](bench, Params(params))
