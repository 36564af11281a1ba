"""Cost functions from shapes to an Operation, without torch: FLOPs and bytes of each kind.

The tracer and the microbenchmarks use the same functions, so that a measured case and a traced
operation have the same features.
"""

from wattloop.predict.workload.costs.compute import attention, conv, gemm, rnn
from wattloop.predict.workload.costs.context import OpContext
from wattloop.predict.workload.costs.memory import (
    copy,
    elementwise,
    embedding,
    index,
    loss,
    norm,
    other,
    pool,
    random,
    reduction,
    softmax,
    view,
)
from wattloop.predict.workload.costs.optimizer import foreach, optimizer_step

__all__ = [
    "OpContext",
    "attention",
    "conv",
    "copy",
    "elementwise",
    "embedding",
    "foreach",
    "gemm",
    "index",
    "loss",
    "norm",
    "optimizer_step",
    "other",
    "pool",
    "random",
    "reduction",
    "rnn",
    "softmax",
    "view",
]
