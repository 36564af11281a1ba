"""How much of the GPU an operation keeps busy while it runs.

A product has as many tiles as its result asks for, times the parts its sum is cut into; the last
wave of them may be short. torch's batch norms give each channel to one multiprocessor. What moves
bytes otherwise fills the GPU, unless it is so small that it takes no longer than an empty kernel.
"""

import numpy as np

from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.attention import BLOCK
from wattloop.predict.models.kernels.classes import size_of
from wattloop.predict.models.kernels.products import conv_dims
from wattloop.predict.models.kernels.table import Floats, OperationTable
from wattloop.predict.models.kernels.tiles import filled_share
from wattloop.predict.workload.costs.recurrent import GATES
from wattloop.predict.workload.operation import Kind, Operation

__all__ = ["occupancy_of"]

LEAST = 0.02


def occupancy_of(table: OperationTable, gpu: Gpu) -> Floats:
    """Share of the multiprocessors that each row keeps busy, the mean over its waves."""
    shares = np.ones(len(table))
    products = np.flatnonzero(
        [name.split(".")[0] in ("gemm", "conv", "grouped") for name in table.classes]
    )
    if len(products):
        dims = table.dims(products)
        convs = table.kinds[products] == str(Kind.CONV)
        real = conv_dims(dims, table.directions[products])
        shares[products] = filled_share(np.where(convs[:, None], real, dims), gpu.sms)
    rnn = table.rows_of(Kind.RNN)
    if len(rnn):
        steps = [_time_step(table.operations[i], str(table.directions[i])) for i in rnn]
        shares[rnn] = filled_share(np.array(steps), gpu.sms)
    for i in table.rows_of(Kind.ATTENTION):
        shares[i] = _waves(_blocks(table.operations[i], str(table.directions[i])), gpu.sms)
    for i in table.rows_of(Kind.NORM):
        if table.classes[i].startswith("norm.batch"):
            shares[i] = min(size_of(table.operations[i].detail, "columns") / gpu.sms, 1.0)
    return np.clip(shares, LEAST, 1.0)


def _time_step(op: Operation, direction: str) -> tuple[float, float, float, float]:
    """(B, M, N, K) of the product that a recurrent layer makes in each time step."""
    hidden = size_of(op.detail, "hidden")
    wide = GATES.get(str(op.detail.get("cell", "lstm")), 4) * hidden
    n, k = (hidden, wide) if direction == "backward" else (wide, hidden)
    return 1.0, size_of(op.detail, "batch"), n, k


def _blocks(op: Operation, direction: str) -> float:
    length = size_of(op.detail, "kv_len" if direction == "backward" else "q_len")
    heads = size_of(op.detail, "batch") * size_of(op.detail, "heads")
    return heads * float(np.ceil(length / BLOCK))


def _waves(blocks: float, sms: int) -> float:
    return blocks / (float(np.ceil(blocks / sms)) * sms)
