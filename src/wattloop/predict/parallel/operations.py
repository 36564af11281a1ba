"""Operations of one micro-batch of a decoder on one GPU of a layout, from its sizes alone.

Tensor parallelism divides heads and the inner width, context parallelism the tokens of a sequence,
expert parallelism the experts. Nothing is traced: layers are alike, so one of each sort is
described, and a stage counts how many it has.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
import numpy.typing as npt

from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.constants import DEFAULTS, constants_for
from wattloop.predict.models.kernels.kernel_cost import operation_times, work_of
from wattloop.predict.models.kernels.operation_table import OperationTable
from wattloop.predict.models.kernels.step import joules, of_operation
from wattloop.predict.serving import DecoderShape
from wattloop.predict.workload.costs.call import OpContext
from wattloop.predict.workload.costs.optimizer import foreach
from wattloop.predict.workload.costs.product import gemm
from wattloop.predict.workload.costs.rows import embedding, norm
from wattloop.predict.workload.costs.sequence import attention
from wattloop.predict.workload.costs.stream import copy, elementwise
from wattloop.predict.workload.operation import Kind, Operation, Phase

Work = npt.NDArray[np.float64]
"""Compute seconds, memory seconds, host seconds, compute joules, memory joules of a part."""
NO_WORK: Work = np.zeros(5)
ATTENTION = ("flash", "flash2", "unfused")
"""Kernels of attention: those made for the GPU (cuDNN, FlashAttention 3 on Hopper), FlashAttention
1 and 2, which use the instructions of Ampere, and products with a softmax in between.
"""
KERNELS = ("eager", "fused")
"""Operations between products: PyTorch's own, one after the other, or fused ones, which pass once
over each tensor (`torch.compile`, Megatron-LM, Transformer Engine).
"""
AMPERE_INSTRUCTIONS = {"hopper": 0.63, "blackwell": 0.35}
"""Share of the peak that Ampere's matrix instructions reach on newer GPUs: 62.9% of an H100's in
Luo et al., arXiv 2402.13499; Blackwell's matrix units are twice as wide.
"""


@dataclass(frozen=True, slots=True)
class Shard:
    """What one GPU computes of one micro-batch.

    Attributes:
        batch: sequences of the micro-batch.
        seq: tokens of a sequence.
        tp, cp, ep: GPUs that share a layer, a sequence, the experts.
        sequence_parallel: norms and residuals are divided over `tp`, too.
        precision: `bf16`, `fp16`, `fp32`, `tf32` or `fp8` (products of layers).
        attention: one of `ATTENTION`.
        kernels: one of `KERNELS`.
    """

    batch: int
    seq: int
    tp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    precision: str = "bf16"
    attention: str = "flash"
    kernels: str = "eager"

    @property
    def tokens(self) -> int:
        return max(self.batch * self.seq // self.cp, 1)

    @property
    def narrow_tokens(self) -> int:
        """Return the tokens of norms and residuals."""
        return max(self.tokens // self.tp, 1) if self.sequence_parallel else self.tokens

    @property
    def dtype(self) -> str:
        """Return the type of activations."""
        return "bf16" if self.precision == "fp8" else self.precision


class _Layer:
    """Operations of one part, forward and backward."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self.dtype = shard, shard.dtype
        self.operations: list[Operation] = []

    def product(self, m: int, n: int, k: int, groups: int = 1, *, fp8: bool = True) -> None:
        """Add linear layers that are alike: one product forward, two backward, each."""
        m, n, k = max(m, 1), max(n, 1), max(k, 1)
        is_fp8 = fp8 and self.shard.precision == "fp8"
        for dims, layout, phase in (
            ((m, n, k), "nt", Phase.FORWARD),
            ((m, k, n), "nn", Phase.BACKWARD),
            ((n, k, m), "tn", Phase.BACKWARD),
        ):
            made = gemm(1, *dims, dtype=self.dtype, layout=layout, phase=phase, count=groups)
            if is_fp8:
                made = replace(made, detail={**made.detail, "fp8": True})
            self.operations.append(made)
        if is_fp8:  # operands are converted, and once more turned for the gradient of the weight
            for elements, phase in ((m * k, Phase.FORWARD), (m * n, Phase.BACKWARD)):
                self.stream(groups * elements, 1.0, 1.0, phase)
            self.stream(groups * n * k, 1.0, 1.0, Phase.FORWARD)

    def stream(self, elements: float, read: float, written: float, phase: Phase) -> None:
        self.operations.append(
            elementwise(max(int(elements), 1), read, written, self.dtype, phase=phase)
        )

    def norm(self, rows: int, columns: int, kind: str) -> None:
        for direction in ("forward", "backward"):
            self.operations.append(norm(direction, kind, rows, columns, dtype=self.dtype))

    def residual(self, rows: int, columns: int) -> None:
        self.stream(rows * columns, 2.0, 1.0, Phase.FORWARD)
        self.stream(rows * columns, 2.0, 1.0, Phase.BACKWARD)


def layer_operations(shape: DecoderShape, shard: Shard, *, experts: bool) -> list[Operation]:
    """Return one layer of one micro-batch, forward and backward."""
    layer = _Layer(shard)
    hidden, tp = shape.hidden, shard.tp
    tokens, narrow = shard.tokens, shard.narrow_tokens
    kind = "rms" if shape.gated else "layer"
    layer.norm(narrow, hidden, kind)
    _attention(layer, shape)
    layer.residual(narrow, hidden)
    layer.norm(narrow, hidden, kind)
    matrices = 2 if shape.gated else 1
    if experts:
        _experts(layer, shape)
    inner = shape.shared_inner if experts else shape.inner
    if inner:
        width = inner // tp
        layer.product(tokens, matrices * width, hidden)
        layer.stream(tokens * width, matrices, 1.0, Phase.FORWARD)
        layer.stream(tokens * width, 1 + matrices, matrices, Phase.BACKWARD)
        layer.product(tokens, hidden, width)
    layer.residual(narrow, hidden)
    return layer.operations


def _attention(layer: _Layer, shape: DecoderShape) -> None:
    shard, tokens, hidden = layer.shard, layer.shard.tokens, shape.hidden
    heads = max(shape.heads // shard.tp, 1)
    kv_heads = max(shape.kv_heads // shard.tp, 1)
    width = heads * shape.head_dim
    after = shape.heads * shape.head_dim
    before = int((shape.attention_weights / hidden - after) / shard.tp)
    layer.product(tokens, max(before, 1), hidden)
    if shape.gated:  # rotary positions: queries and keys, read and written
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            layer.stream(tokens * (heads + kv_heads) * shape.head_dim, 1.0, 1.0, phase)
    unfused = shard.attention == "unfused"
    pairs = shard.batch * heads * _pairs(shard.seq, shape) / shard.cp
    if unfused:
        _unfused_attention(layer, shape, heads)
    else:
        for direction in ("forward", "backward"):
            made = attention(
                direction,
                shard.batch,
                heads,
                kv_heads,
                max(shard.seq // shard.cp, 1),
                shard.seq,
                shape.head_dim,
                causal=True,
                masked=False,
                dtype=layer.dtype,
                algorithm="flash",
            )
            # Zigzag order gives each GPU of a context group the same share of the causal pairs.
            flops = pairs * 2.0 * shape.head_dim * (2 if direction == "forward" else 5)
            layer.operations.append(replace(made, flops=flops))
    layer.product(tokens, hidden, width)


def _unfused_attention(layer: _Layer, shape: DecoderShape, heads: int) -> None:
    """Add the scores, a fused softmax with mask, dropout, and the weighted sum of values."""
    shard, dim = layer.shard, shape.head_dim
    groups, rows = shard.batch * heads, max(shard.seq // shard.cp, 1)
    scores = groups * rows * shard.seq
    for n, k in ((shard.seq, dim), (dim, shard.seq)):
        for dims, phase in (
            ((rows, n, k), Phase.FORWARD),
            ((rows, k, n), Phase.BACKWARD),
            ((n, k, rows), Phase.BACKWARD),
        ):
            layer.operations.append(
                replace(
                    gemm(groups, *dims, dtype=layer.dtype, phase=phase),
                    detail={"layout": "nn", "bias": False, "core": True},
                )
            )
    for phase, read, written in ((Phase.FORWARD, 2.0, 2.5), (Phase.BACKWARD, 3.5, 2.0)):
        made = elementwise(scores, read, written, layer.dtype, phase=phase)
        layer.operations.append(replace(made, detail={**made.detail, "core": True}))


def _pairs(seq: int, shape: DecoderShape) -> float:
    """Return the mean over layers of the pairs of query and key in a sequence."""
    whole = seq * (seq + 1) / 2
    if not shape.windowed_layers or seq <= shape.window:
        return whole
    local = shape.window * (shape.window + 1) / 2 + (seq - shape.window) * shape.window
    share = shape.windowed_layers / shape.layers
    return share * local + (1 - share) * whole


def _experts(layer: _Layer, shape: DecoderShape) -> None:
    """Add router, permutation and the experts of one GPU, under even load."""
    shard, hidden = layer.shard, shape.hidden
    # Experts on several GPUs are whole ones; else tensor parallelism divides each of them.
    split = shard.tp if shard.ep == 1 else 1
    rows = max(shard.tokens * shape.active * split // shard.tp, 1)
    local = max(shape.experts // shard.ep, 1)
    width = max(shape.expert_inner // split, 1)
    each = max(rows // local, 1)
    matrices = 2 if shape.gated else 1
    layer.product(shard.tokens, shape.experts, hidden, fp8=False)
    for phase in (Phase.FORWARD, Phase.BACKWARD):  # sorted by expert, and back
        sort = elementwise(rows * hidden, 2.0, 2.0, layer.dtype, phase=phase)
        layer.operations.append(replace(sort, calls=ROUTER_CALLS))
    layer.product(each, matrices * width, hidden, local)
    layer.stream(rows * width, matrices, 1.0, Phase.FORWARD)
    layer.stream(rows * width, 1 + matrices, matrices, Phase.BACKWARD)
    layer.product(each, hidden, width, local)


def embedding_operations(shape: DecoderShape, shard: Shard) -> list[Operation]:
    rows = max(shape.vocabulary // shard.tp, 1)
    return [
        embedding(direction, shard.narrow_tokens, shape.hidden, rows, dtype=shard.dtype)
        for direction in ("forward", "backward")
    ]


def head_operations(shape: DecoderShape, shard: Shard) -> list[Operation]:
    """Return the last norm, the logits and a fused cross entropy."""
    layer = _Layer(shard)
    columns = max(shape.vocabulary // shard.tp, 1)
    layer.norm(shard.narrow_tokens, shape.hidden, "rms" if shape.gated else "layer")
    layer.product(shard.tokens, columns, shape.hidden, fp8=False)
    layer.stream(shard.tokens * columns, 1.0, 0.0, Phase.FORWARD)
    layer.stream(shard.tokens * columns, 1.0, 1.0, Phase.BACKWARD)
    return layer.operations


def optimizer_operations(
    parameters: float, *, masters: bool, **place: Unpack[OpContext]
) -> list[Operation]:
    """Return the update of as many fp32 parameters; `masters` also writes their bf16 copies."""
    elements = max(int(parameters), 1)
    made = [foreach("adamw", 1, elements, fused=True, **place)]
    norm_of_gradients = elementwise(elements, 1.0, 0.0, "fp32", phase=Phase.OPTIMIZER)
    made.append(norm_of_gradients)
    if masters:
        made.append(copy(elements, "fp32", "bf16", strided=False, phase=Phase.OPTIMIZER))
    return made


# Largest share of the peak that a product reaches, at the clock of the data sheet (S. Bekman,
# Machine Learning Engineering, "Maximum Achievable Matmul FLOPS", 2026: mean of 100 calls of the
# best shape). Constants from data sheets alone assume 0.69 for every GPU.
PRODUCT_SHARE = {
    "a100-sxm-40": 0.869,
    "a100-sxm-80": 0.869,
    "a100-pcie-40": 0.811,
    "a100-pcie-80": 0.811,
    "h100-sxm": 0.803,
    "h200": 0.803,
    "b200": 0.776,
    "b300": 0.786,
    "gb200": 0.729,
}
FP8_SHARE = {"h100-sxm": 0.709, "h200": 0.734, "b200": 0.763, "b300": 0.745, "gb200": 0.723}
"""The same of products in fp8."""
ROUTER_CALLS = 30
"""Operator calls of the host that choose experts, sort tokens by them and sort them back."""
LARGE = 8192
"""Rows, columns and sum of the product whose share is compared."""


@dataclass(frozen=True, slots=True)
class StepConstants:
    """The four numbers that published trainings determine (benchmarks/predict_parallel.py).

    Attributes:
        products: time of products against the largest share of the peak that one reaches.
        attention: time of attention against the kernels model.
        streams: bytes that eager operations other than products move, against one pass over each
            of their tensors: frameworks convert and copy.
        interference: seconds that a hidden second of gathering or scattering weights costs.
    """

    products: float = 1.0
    attention: float = 1.0
    streams: float = 1.0
    interference: float = 0.22


class OperationPrices:
    """Time and energy of groups of operations on one GPU type.

    Args:
        gpu: what the maker says of it.
        factors: corrections for training at scale.
    """

    def __init__(self, gpu: Gpu, factors: StepConstants) -> None:
        self.gpu, self.factors = gpu, factors
        self.constants, self.source = constants_for(gpu)
        self._product = factors.products
        if self.source == "spec-only":
            self._product *= self._against_published()

    def _against_published(self) -> float:
        """Return the factor on the time of products that gives the published share of the peak."""
        share = PRODUCT_SHARE.get(self.gpu.name)
        if share is None:
            return 1.0
        table = OperationTable.of([gemm(1, LARGE, LARGE, LARGE, dtype="bf16", layout="nt")])
        values, residuals = self.constants.values, self.constants.residuals
        seconds = float(operation_times(table, values, residuals, self.gpu).seconds[0])
        return 2.0 * LARGE**3 / (seconds * share * self.gpu.matrix_flops["bf16"])

    def _fp8(self) -> float:
        """Return the time of an fp8 product against one of bf16."""
        peaks, name = self.gpu.matrix_flops, self.gpu.name
        if "fp8" not in peaks:
            return 1.0
        bf16_share = PRODUCT_SHARE.get(name, 0.8)
        return peaks["bf16"] * bf16_share / (peaks["fp8"] * FP8_SHARE.get(name, 0.9 * bf16_share))

    def of(
        self,
        groups: Mapping[str, Iterable[Operation]],
        attention: str = "flash",
        kernels: str = "eager",
    ) -> dict[str, Work]:
        """Return the work of each group, all of them evaluated in one table."""
        streams = self.factors.streams if kernels == "eager" else 1.0
        named = [(name, op) for name, ops in groups.items() for op in ops]
        table = OperationTable.of([op for _, op in named], merge=False)
        values, gpu = self.constants.values, self.gpu
        times = operation_times(table, values, self.constants.residuals, gpu)
        is_product = table.kinds == str(Kind.GEMM)
        is_attention = table.kinds == str(Kind.ATTENTION)
        is_fp8 = np.array([bool(op.detail.get("fp8")) for op in table.operations])
        scale = np.where(is_product, self._product, streams)
        scale = np.where(is_attention, self.factors.attention, scale)
        scale = np.where(table.optimizer, 1.0, scale)
        scale = np.where(is_fp8, scale * self._fp8(), scale)
        seconds = times.seconds * scale * table.count
        if attention == "flash2" and is_attention.any():
            seconds = np.where(is_attention, self._flash2_s(table), seconds)
        work = work_of(table, seconds, values, gpu)
        # Half of the bits take half of the energy.
        compute_j, memory_j = joules(work * np.where(is_fp8, 0.5, 1.0), values)
        memory_j *= np.where(is_product | is_attention | table.optimizer, 1.0, streams)
        found = {name: NO_WORK.copy() for name in groups}
        rows = zip(
            (name for name, op in named if op.kind is not Kind.VIEW and op.kernels > 0),
            table.operations,
            seconds.tolist(),
            times.compute.tolist(),
            compute_j.tolist(),
            memory_j.tolist(),
            strict=True,
        )
        for name, op, second, is_compute, work_j, moved_j in rows:
            host_s = op.count * sum(n * values.find(cost) for cost, n in of_operation(op).items())
            busy = (second, 0.0) if is_compute else (0.0, second)
            found[name] += (*busy, host_s, work_j, moved_j)
        return found

    def _flash2_s(self, table: OperationTable) -> npt.NDArray[np.float64]:
        """Return the time of attention with the instructions of Ampere."""
        shares = {
            direction: DEFAULTS[f"attention.efficiency{suffix}"]
            for direction, suffix in (("forward", ""), ("backward", ".flash.backward"))
        }
        peak = self.gpu.matrix_flops.get("bf16") or self.gpu.vector_flops["fp32"]
        peak *= AMPERE_INSTRUCTIONS.get(self.gpu.architecture, 1.0)
        share = np.array([shares.get(str(each), 1.0) for each in table.directions])
        return self.factors.attention * table.flops / (peak * share)
