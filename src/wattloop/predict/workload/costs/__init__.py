"""Costs of operations: from shapes (without torch) or a traced call to FLOPs and bytes.

The tracer and the microbenchmarks use the same functions, so that a measured case and a traced
operation have the same features.
"""

from wattloop.predict.workload.costs.call import Call, ModuleCall, OpContext
from wattloop.predict.workload.costs.convolution import conv
from wattloop.predict.workload.costs.optimizer import foreach, optimizer_step
from wattloop.predict.workload.costs.product import gemm
from wattloop.predict.workload.costs.rows import embedding, loss, norm, pool, softmax
from wattloop.predict.workload.costs.sequence import attention, rnn
from wattloop.predict.workload.costs.stream import (
    copy,
    elementwise,
    index,
    other,
    random,
    reduction,
    view,
)

__all__ = [
    "Call",
    "ModuleCall",
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
