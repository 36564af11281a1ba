"""Shapes -> an Operation, without torch: what each kind of operation computes and moves.

The tracer writes its operations through these functions, and a microbenchmark describes its case
by them; so a measured case and a traced operation have the same features.
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
