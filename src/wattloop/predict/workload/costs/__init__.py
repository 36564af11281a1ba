"""Shapes -> an Operation, without torch: what each kind of operation computes and moves.

The tracer writes its operations through these functions, and a microbenchmark describes its case
by them; so a measured case and a traced operation have the same features.

place         what every function takes by keyword beside its shapes (phase, module, op, ...)
products      gemm
convolutions  conv, forward and both gradients
attentions    attention as one operation
recurrent     rnn: LSTM, GRU and plain cells as cuDNN runs them
rows          norm, softmax, loss, pool, embedding
streams       elementwise, reduction, copy, index, random, view, other
optimizers    foreach, and all operations of an optimizer step
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
