"""Time, power, energy and memory of a decoder's training step in a layout of many GPUs.

    micro-batch = sum over the layers of a stage of computing + exposed communication
    step        = m micro-batches + (p - 1) / v bubbles + exposed data parallel exchange + optimizer

m: micro-batches of a data parallel group, p: stages, v: chunks of the interleaved schedule.
Communication of tensor, context and expert parallelism stands between products, so it is exposed;
that of data parallelism and sharding runs next to computing: what does not fit is exposed, and
what is hidden still slows the kernels by a share of itself.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu, gpu_named
from wattloop.predict.communication import GATHER_INTERFERENCE, INTERFERENCE
from wattloop.predict.intervals import CONFIDENCE
from wattloop.predict.memory import CONTEXT_BYTES, FRAGMENTATION, RESERVED_SHARE
from wattloop.predict.models.kernels.step import StepBatch, step_results, voltage_of
from wattloop.predict.parallel.layout import Group, Layout, Links, check_layout
from wattloop.predict.parallel.operations import (
    ATTENTION,
    KERNELS,
    NO_WORK,
    OperationPrices,
    Shard,
    StepConstants,
    Work,
    embedding_operations,
    head_operations,
    layer_operations,
    optimizer_operations,
)
from wattloop.predict.prediction import AT_REST, Interval
from wattloop.predict.serving import DecoderShape, decoder_named
from wattloop.predict.workload.operation import MATRIX_KINDS, Kind, Operation, Phase

CHECKPOINTING = ("none", "selective", "half", "full")
"""Activations that backward computes again: none, those inside attention (Megatron's selective),
all but attention and every second product (torchtitan's selective), those of whole layers.
"""
USUAL_SEQUENCE = 2048
MESSAGES = 12
"""Tensors of a layer, each gathered by itself in ZeRO 3."""
PRECISIONS = ("bf16", "fp16", "fp32", "tf32", "fp8")
SHIPPED = StepConstants(1.11, 1.29, 2.6, GATHER_INTERFERENCE)
GATHER_BYTES = 2.0
"""Of a weight as it is gathered: half precision."""
LOGIT_BYTES = 4.0
"""Of a logit of a fused cross entropy, with its gradient: half precision both."""
SPREADS = {"dense": 0.103, "experts": 0.321}
"""Mean size of log(measured / predicted time) of published layouts, the largest clipped: 75 rows of
dense models, 15 of mixtures of experts (docs/benchmarks/predict_parallel.md); none has a power.
"""
SETTLED = 3
"""Rounds in which clock and exposed communication are brought together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelQuestion:
    """A training over many GPUs.

    Attributes:
        model: `hf:NAME` or `hf:PATH/config.json` of a decoder-only language model, or its sizes.
        layout: as text (see `Layout.parse`) or parsed.
        gpus: how many; needed where the layout leaves data parallelism open.
        seq, micro_batch, global_batch: tokens of a sequence, sequences of one pass of a data
            parallel group, sequences of a step in all; None is one pass per stage.
        precision: one of `PRECISIONS`; weights and optimizer are mixed unless fp32 or tf32.
        checkpointing: one of `CHECKPOINTING`.
        attention, kernels: one of `ATTENTION`, and of `KERNELS`.
        reduce: type of gradients as they are exchanged, `fp32` or `bf16`.
        cap_w: power limit of each GPU; None is the factory's.
        exchange_w: power of a GPU that only exchanges; None is its power at rest.
        links: between the GPUs; None takes those of the maker's nodes.
    """

    model: str | DecoderShape
    gpu: str = "h100-sxm"
    layout: str | Layout = ""
    gpus: int | None = None
    seq: int = USUAL_SEQUENCE
    micro_batch: int = 1
    global_batch: int | None = None
    precision: str = "bf16"
    checkpointing: str = "none"
    attention: str = "flash"
    kernels: str = "eager"
    reduce: str = "fp32"
    cap_w: float | None = None
    exchange_w: float | None = None
    links: Links | None = None


@dataclass(frozen=True, slots=True)
class ParallelForecast:
    """One step of a training over many GPUs.

    Attributes:
        step_s, tokens_s: of all GPUs together.
        power_w: mean power of one GPU.
        flops_share: FLOP/s of the model, without recomputation, over the peak of its precision.
        memory: bytes on the fullest GPU by part.
        available_bytes: what a process can use of a GPU's memory.
        parts_s: seconds of the step by part.
        parts_j: joules of a GPU in the mean, by part.
        clock_mhz: SM clock while computing.
        traffic_bytes: what one GPU sends in a step, by kind of parallelism.
    """

    question: ParallelQuestion
    layout: Layout
    gpu: Gpu
    parameters: float
    active_parameters: float
    micro_batches: int
    step_s: float
    tokens_s: float
    power_w: float
    flops_share: float
    memory: Mapping[str, float]
    available_bytes: float
    parts_s: Mapping[str, float]
    parts_j: Mapping[str, float]
    clock_mhz: float
    traffic_bytes: Mapping[str, float]
    source: str
    notes: tuple[str, ...] = ()

    @property
    def energy_j(self) -> float:
        """Return the energy of all GPUs over one step (scope: gpu)."""
        return self.step_s * self.power_w * self.layout.gpus

    @property
    def token_j(self) -> float:
        return self.energy_j / (self.tokens_s * self.step_s)

    @property
    def step_interval(self) -> Interval:
        """Return where the time lies, sizes of residuals taken as exponentially distributed."""
        kind = "experts" if self.active_parameters < self.parameters else "dense"
        factor = math.exp(-SPREADS[kind] * math.log(1 - CONFIDENCE))
        return Interval(self.step_s / factor, self.step_s * factor, CONFIDENCE)

    @property
    def memory_bytes(self) -> float:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.available_bytes

    def to_dict(self) -> dict[str, Any]:
        asked = self.question
        model = asked.model if isinstance(asked.model, str) else asked.model.name
        return {
            "model": model,
            "parameters": self.parameters,
            "active_parameters": self.active_parameters,
            "gpu": self.gpu.name,
            "gpus": self.layout.gpus,
            "layout": str(self.layout),
            "seq": asked.seq,
            "micro_batch": asked.micro_batch,
            "micro_batches": self.micro_batches,
            "global_batch": asked.micro_batch * self.micro_batches * self.layout.dp,
            "precision": asked.precision,
            "checkpointing": asked.checkpointing,
            "cap_w": asked.cap_w,
            "step_s": self.step_s,
            "step_interval_s": list(self.step_interval[:2]),
            "tokens_s": self.tokens_s,
            "tokens_s_per_gpu": self.tokens_s / self.layout.gpus,
            "flops_share": self.flops_share,
            "power_w": self.power_w,
            "energy_j_per_step": self.energy_j,
            "energy_j_per_token": self.token_j,
            "memory_bytes": dict(self.memory),
            "needed_bytes": self.memory_bytes,
            "available_bytes": self.available_bytes,
            "fits": self.fits,
            "parts_s": dict(self.parts_s),
            "parts_j": dict(self.parts_j),
            "traffic_bytes": dict(self.traffic_bytes),
            "clock_mhz": self.clock_mhz,
            "constants": self.source,
            "provenance": "predicted",
            "scope": "gpu",
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class _Pass:
    """Work of one micro-batch on one GPU: a layer of each sort, forward and backward, and ends."""

    layers: Mapping[str, tuple[Work, Work, Work]]
    embedding: Work
    head: Work


class ParallelModel:
    """Time, energy and memory of training steps on one GPU type.

    Args:
        gpu: what the maker says of it.
        factors: corrections for training at scale.
    """

    def __init__(self, gpu: Gpu, factors: StepConstants = SHIPPED) -> None:
        self.gpu, self.factors = gpu, factors
        self.prices = OperationPrices(gpu, factors)
        self._passes: dict[tuple[Any, ...], _Pass] = {}

    def forecast(self, question: ParallelQuestion) -> ParallelForecast:
        """Predict one step.

        Raises:
            ConfigError: the layout does not divide the model, the batch or the GPUs, or the GPU
                lacks the precision; the message says what would work.
        """
        shape, layout, count = checked(question, self.gpu)
        return _Step(self, question, shape, layout, count).forecast()

    def work(self, shape: DecoderShape, shard: Shard, checkpointing: str) -> _Pass:
        """Return the work of one micro-batch, computed once per shape."""
        key = (shape, shard, checkpointing)
        if key not in self._passes:
            self._passes[key] = self._priced(shape, shard, checkpointing)
        return self._passes[key]

    def _priced(self, shape: DecoderShape, shard: Shard, checkpointing: str) -> _Pass:
        groups: dict[str, list[Operation]] = {
            "embedding": embedding_operations(shape, shard),
            "head": head_operations(shape, shard),
        }
        for sort in _sorts(shape):
            layer = layer_operations(shape, shard, experts=sort == "expert")
            groups[f"{sort} forward"] = [op for op in layer if op.phase is Phase.FORWARD]
            groups[f"{sort} backward"] = [op for op in layer if op.phase is Phase.BACKWARD]
            groups[f"{sort} again"] = _recomputed(layer, checkpointing)
        work = self.prices.of(groups, shard.attention, shard.kernels)
        layers = {
            sort: (work[f"{sort} forward"], work[f"{sort} backward"], work[f"{sort} again"])
            for sort in _sorts(shape)
        }
        return _Pass(layers, work["embedding"], work["head"])


def _sorts(shape: DecoderShape) -> list[str]:
    sparse = ["expert"] if shape.expert_layers else []
    return ["dense", *sparse] if shape.expert_layers < shape.layers else sparse


def _recomputed(layer: list[Operation], checkpointing: str) -> list[Operation]:
    """Return the operations that backward repeats.

    Whole layers: all of forward up to the last tensor that backward needs, so without the last
    product. Selective: attention between its two products; a fused kernel does so by itself.
    """
    forward = [op for op in layer if op.phase is Phase.FORWARD]
    if checkpointing == "full":
        last = max(i for i, op in enumerate(forward) if op.kind is Kind.GEMM)
        return forward[:last]
    if checkpointing == "half":
        products = [op for op in forward if op.kind is Kind.GEMM]
        cheap = [op for op in forward if op.kind not in MATRIX_KINDS]
        return cheap + products[::2]
    if checkpointing == "selective":
        return [op for op in forward if op.detail.get("core")]
    return []


def checked(question: ParallelQuestion, gpu: Gpu) -> tuple[DecoderShape, Layout, int]:
    """Return the sizes, the layout and the micro-batches of a step, or refuse the question."""
    shape = question.model
    if isinstance(shape, str):
        shape = decoder_named(shape)
    for name, choices in (
        ("precision", PRECISIONS),
        ("checkpointing", CHECKPOINTING),
        ("attention", ATTENTION),
        ("kernels", KERNELS),
        ("reduce", ("fp32", "bf16")),
    ):
        if getattr(question, name) not in choices:
            raise ConfigError(
                f"{name} {getattr(question, name)}: unknown; choose one of {', '.join(choices)}"
            )
    for name in ("seq", "micro_batch", "global_batch", "gpus"):
        value = getattr(question, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name.replace('_', '-')} {value}: must be at least 1")
    if question.precision in ("fp8", "bf16", "tf32") and (
        question.precision not in gpu.matrix_flops
    ):
        having = [name for name in PRECISIONS if name in gpu.matrix_flops]
        raise ConfigError(
            f"precision {question.precision}: {gpu.product} has no such arithmetic; use "
            f"{' or '.join([*having, 'fp32'])}"
            + (", or a GPU since Ada and Hopper" if question.precision == "fp8" else "")
        )
    if question.cap_w is not None and not gpu.cap_min_w <= question.cap_w <= gpu.cap_max_w:
        raise ConfigError(
            f"cap {question.cap_w:g}: the {gpu.product} can be set to {gpu.cap_min_w:g} to "
            f"{gpu.cap_max_w:g} W; choose a cap in that range"
        )
    if shape.positions and question.seq > shape.positions:
        raise ConfigError(
            f"seq {question.seq}: more than the {shape.positions} positions of {shape.name}; use "
            f"--seq {shape.positions} or less"
        )
    layout = question.layout
    if isinstance(layout, str):
        layout = Layout.parse(layout, question.gpus)
    elif question.gpus is not None and layout.gpus != question.gpus:
        raise ConfigError(f"gpus {question.gpus}: the layout {layout} is for {layout.gpus}")
    pass_samples = question.micro_batch * layout.dp
    total = question.global_batch or pass_samples * layout.pp
    if total % pass_samples:
        near = max(round(total / pass_samples), 1) * pass_samples
        raise ConfigError(
            f"global-batch {total}: not a multiple of {layout.dp} data parallel groups x "
            f"{question.micro_batch} sequences; {near} would work"
        )
    count = total // pass_samples
    check_layout(layout, shape, seq=question.seq, per_replica=count)
    return shape, layout, count


class _Step:
    """One step of one question."""

    def __init__(
        self,
        model: ParallelModel,
        question: ParallelQuestion,
        shape: DecoderShape,
        layout: Layout,
        count: int,
    ) -> None:
        self.model, self.asked, self.shape, self.layout = model, question, shape, layout
        self.count = count
        self.links = question.links or Links.of(model.gpu)
        self.shard = Shard(
            batch=question.micro_batch,
            seq=question.seq,
            tp=layout.tp,
            cp=layout.cp,
            ep=layout.ep,
            sequence_parallel=layout.sequence_parallel,
            precision=question.precision,
            attention=question.attention,
            kernels=question.kernels,
        )
        self.mixed = question.precision not in ("fp32", "tf32")
        self.weight_bytes = GATHER_BYTES if self.mixed else 4.0
        self.reduce_bytes = 2.0 if question.reduce == "bf16" and self.mixed else 4.0
        within = layout.tp * layout.cp * layout.dp
        self.groups: dict[str, Group] = {
            "tensor": self.links.group(layout.tp),
            "context": self.links.group(layout.cp, layout.tp),
            "expert": self.links.group(layout.ep),
            "shards": self.links.group(layout.shards, layout.tp),
            "replicas": self.links.group(layout.replicas, layout.tp),
            "copies": self.links.group(
                layout.replicas // layout.shards if layout.zero else 1, layout.tp * layout.shards
            ),
            "experts' replicas": self.links.group(
                layout.expert_replicas, layout.ep if layout.ep > 1 else layout.tp
            ),
            "pipeline": self.links.group(layout.pp, within),
        }
        # With a pipeline, weights are gathered once per step: each of its micro-batches needs them.
        self.zero = 1 if layout.zero > 1 and layout.pp > 1 else layout.zero
        self.traffic: dict[str, float] = {}

    # Sizes

    def layer_parameters(self, sort: str) -> tuple[float, float]:
        """Return the parameters of a layer on one GPU: those that replicas share, and experts."""
        shape, tp = self.shape, self.layout.tp
        matrices = (3 if shape.gated else 2) * shape.hidden
        shared = (shape.attention_weights + 2 * shape.hidden) / tp
        if sort == "dense":
            return shared + matrices * shape.inner / tp, 0.0
        shared += matrices * shape.shared_inner / tp + shape.hidden * shape.experts
        divided = self.layout.ep if self.layout.ep > 1 else tp
        return shared, matrices * shape.experts * shape.expert_inner / divided

    def stages(self) -> list[dict[str, float]]:
        """Return how many layers of each sort the first, a middle and the last stage have."""
        shape, pp = self.shape, self.layout.pp
        if pp == 1:
            return [self._counted(float(shape.layers))]
        places = pp * self.layout.chunks
        spare = -shape.layers % places
        each = (shape.layers + spare) / pp
        ends = spare / 2 if spare else 0.0
        return [self._counted(each - (ends if i in (0, pp - 1) else 0.0)) for i in range(pp)]

    def _counted(self, layers: float) -> dict[str, float]:
        share = self.shape.expert_layers / self.shape.layers
        return {sort: layers * (share if sort == "expert" else 1 - share)
                for sort in _sorts(self.shape)}  # fmt: skip

    # Communication of one micro-batch

    def between(self, sort: str) -> dict[str, float]:
        """Return the exposed seconds of one layer by kind of parallelism, forward and backward."""
        shape, shard, layout = self.shape, self.shard, self.layout
        size = 2.0 if self.mixed else 4.0
        rows = size * shard.tokens * shape.hidden
        again = 1.0 if self.asked.checkpointing == "full" else 0.0
        found = {}
        if layout.tp > 1:
            # Two all-reduces forward and two backward, or as many pairs of gather and scatter.
            times = 4 + 2 * again
            found["tensor"] = times * self.groups["tensor"].reduce_s(rows)
            self._count("tensor", times * 2 * rows * (layout.tp - 1) / layout.tp)
        if layout.cp > 1:
            keys = size * shard.tokens * 2 * shape.kv_heads * shape.head_dim / layout.tp
            # Keys and values go around the ring forward, with their gradients backward.
            moved = (3 + again) * (layout.cp - 1) * keys
            steps = (3 + again) * (layout.cp - 1)
            found["context"] = steps * self.groups["context"].send_s(keys)
            self._count("context", moved)
        if layout.ep > 1 and sort == "expert":
            sent = rows / layout.tp
            # Tokens go to their experts and back, forward and backward.
            times = 4 + 2 * again
            found["expert"] = times * self.groups["expert"].exchange_s(sent, shape.active)
            self._count("expert", times * sent * shape.active * (layout.ep - 1) / layout.ep)
        return found

    def _count(self, kind: str, moved: float) -> None:
        layers = self.shape.layers / self.layout.pp
        self.traffic[kind] = self.traffic.get(kind, 0.0) + self.count * layers * moved

    def sharding(self, sort: str) -> tuple[float, float]:
        """Return the seconds next to forward and next to backward of one layer and micro-batch."""
        if self.zero < 2:
            return 0.0, 0.0
        shared, experts = self.layer_parameters(sort)
        forward = backward = 0.0
        for parameters, group in (
            (shared, self.groups["shards"]),
            (experts, self.groups["experts' replicas"]),
        ):
            if not parameters:
                continue
            messages = 1 if self.layout.flat else MESSAGES
            gather_s = group.gather_s(self.weight_bytes * parameters, messages)
            forward += gather_s
            backward += gather_s if self.zero == 3 else 0.0
            backward += group.gather_s(self.reduce_bytes * parameters, messages)
        return forward, backward

    def per_step(self) -> tuple[float, float]:
        """Return the seconds of what is exchanged once per step: next to backward, to forward."""
        layout = self.layout
        shared, experts = self.stage_parameters()
        if self.zero >= 2:  # copies of hybrid sharding add up their parts of the gradients
            part = self.reduce_bytes * shared / layout.shards
            return self.groups["copies"].reduce_s(part), 0.0
        reduced = gathered = 0.0
        for parameters, group in (
            (shared, self.groups["replicas"]),
            (experts, self.groups["experts' replicas"]),
        ):
            if not parameters or group.size <= 1:
                continue
            reduced += group.gather_s(self.reduce_bytes * parameters)
            if layout.zero:  # updated weights are gathered again
                gathered += group.gather_s(self.weight_bytes * parameters)
            else:
                reduced += group.gather_s(self.reduce_bytes * parameters)
        return reduced, gathered

    def stage_parameters(self) -> tuple[float, float]:
        """Return the parameters of the fullest stage on one GPU: shared ones, and experts."""
        shared = experts = 0.0
        shape, layout = self.shape, self.layout
        table = shape.hidden * shape.vocabulary / layout.tp
        for i, stage in enumerate(self.stages()):
            own = [0.0, 0.0]
            for sort, layers in stage.items():
                each = self.layer_parameters(sort)
                own[0] += layers * each[0]
                own[1] += layers * each[1]
            if layout.pp == 1:
                own[0] += table * (1 if shape.tied else 2)
            elif i in (0, layout.pp - 1):
                own[0] += table
            if sum(own) > shared + experts:
                shared, experts = own
        return shared, experts

    # Memory

    def memory(self) -> dict[str, float]:
        """Return the bytes on the fullest GPU by part."""
        layout, asked, shape = self.layout, self.asked, self.shape
        shared, experts = self.stage_parameters()
        parts = dict.fromkeys(("weights", "gradients", "optimizer"), 0.0)
        for parameters, group in (
            (shared, layout.shards),
            (experts, layout.expert_replicas if layout.zero else 1),
        ):
            split = max(min(group, layout.shards) if parameters is shared else group, 1)
            at = [split if layout.zero >= stage else 1 for stage in (1, 2, 3)]
            if self.zero < layout.zero:  # a pipeline needs all weights at each of its passes
                at[1] = at[2] = 1
            if layout.zero == 3 and self.zero == 3:
                # Fully sharded weights are their own fp32 masters.
                parts["weights"] += 4.0 * parameters / split
                parts["optimizer"] += 8.0 * parameters / split
            elif self.mixed:
                parts["weights"] += 2.0 * parameters / at[2]
                parts["optimizer"] += 12.0 * parameters / at[0]
            else:
                parts["weights"] += 4.0 * parameters / at[2]
                parts["optimizer"] += 8.0 * parameters / at[0]
            held = 4.0 if self.zero == 3 else self.reduce_bytes
            parts["gradients"] += held * parameters / at[1]
        parts["activations"] = self._activation_bytes()
        parts["logits"] = (
            LOGIT_BYTES * (1 if self.mixed else 2) * self.shard.tokens * shape.vocabulary
        ) / layout.tp
        parts["buffers"] = self._buffer_bytes()
        parts["context"] = CONTEXT_BYTES
        if asked.precision == "fp8":
            parts["weights"] += (shared + experts) / (layout.shards if self.zero == 3 else 1)
        spread = FRAGMENTATION * sum(parts.values())
        parts["fragmentation"] = spread
        return {name: value for name, value in parts.items() if value > 0}

    def _buffer_bytes(self) -> float:
        """Return gathered layers, their gradients, and buckets of the exchange."""
        if self.layout.gpus == 1:
            return 0.0
        layer = max(sum(self.layer_parameters(sort)) for sort in _sorts(self.shape))
        table = self.shape.hidden * self.shape.vocabulary / self.layout.tp
        if self.zero >= 2:
            held = sum(self.stage_parameters()) if self.zero == 2 else 2 * layer + table
            return self.weight_bytes * held + self.reduce_bytes * layer
        return 2 * 25e6 * self.reduce_bytes

    def _activation_bytes(self) -> float:
        layout, asked = self.layout, self.asked
        layers = max(sum(stage.values()) for stage in self.stages())
        # The first stage holds one micro-batch per stage behind it; interleaving some more.
        held = min(self.count, layout.pp) * (
            1 + (layout.pp - 1) / (layout.pp * layout.chunks) if layout.chunks > 1 else 1
        )
        sort = _sorts(self.shape)[-1]
        each = self._layer_activations(sort)
        if asked.checkpointing == "half":
            each /= 2
        boundary = 2.0 * self.shard.narrow_tokens * self.shape.hidden
        if asked.checkpointing == "full":
            return held * layers * boundary + each
        return held * layers * each + boundary

    def _layer_activations(self, sort: str) -> float:
        """Return the bytes that backward needs of one layer and micro-batch."""
        shape, shard, tp = self.shape, self.shard, self.layout.tp
        size = 2.0 if self.mixed else 4.0
        tokens, hidden = shard.tokens, shape.hidden
        # Inputs and outputs of two norms; gathered inputs of products are made again.
        rows = 4 * shard.narrow_tokens * hidden
        heads = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim / tp
        if shape.kv_heads == 1 and shape.cache_width != 2 * shape.head_dim:
            heads = 4 * shape.heads * shape.head_dim / tp  # latent attention expands to all heads
        matrices = 3 if shape.gated else 2
        if sort == "dense":
            wide = matrices * shape.inner / tp
        else:
            wide = shape.active * (matrices * shape.expert_inner + 2 * hidden) / tp
            wide += matrices * shape.shared_inner / tp
        total = size * (rows + tokens * (heads + wide))
        if shard.precision == "fp8":  # inputs of products are stored in one byte
            total -= rows / 2 + tokens * wide / matrices
        if shard.attention == "unfused" and self.asked.checkpointing == "none":
            total += 2.5 * size * shard.batch * shape.heads / tp * shard.seq**2 / shard.cp
        return total

    # Time and energy

    @property
    def work(self) -> _Pass:
        return self.model.work(self.shape, self.shard, self.asked.checkpointing)

    def forecast(self) -> ParallelForecast:
        parts, parts_j, step_s, power_w, clock = self._settled()
        asked, layout, shape = self.asked, self.layout, self.shape
        tokens = asked.micro_batch * self.count * layout.dp * asked.seq
        peak = self.model.gpu.matrix_flops.get(asked.precision, self.model.gpu.vector_flops["fp32"])
        return ParallelForecast(
            question=asked,
            layout=layout,
            gpu=self.model.gpu,
            parameters=shape.parameters,
            active_parameters=shape.active_parameters,
            micro_batches=self.count,
            step_s=step_s,
            tokens_s=tokens / step_s,
            power_w=power_w,
            flops_share=tokens * model_flops(shape, asked.seq) / step_s / layout.gpus / peak,
            memory=self.memory(),
            available_bytes=self.model.gpu.memory_bytes * (1 - RESERVED_SHARE),
            parts_s=parts,
            parts_j=parts_j,
            clock_mhz=clock * self.model.gpu.boost_clock_mhz,
            traffic_bytes=dict(self.traffic),
            source=self.model.prices.source,
            notes=self._notes(),
        )

    def _settled(self) -> tuple[dict[str, float], dict[str, float], float, float, float]:
        values = self.model.prices.constants.values
        cap_w = self.asked.cap_w or self.model.gpu.tdp_w
        stages, clock = self.stages(), 1.0
        between = {sort: self.between(sort) for sort in _sorts(self.shape)}
        sharding = {sort: self.sharding(sort) for sort in _sorts(self.shape)}
        busy = [self._stage_work(stage, i) for i, stage in enumerate(stages)]
        waits = [
            sum(layers * sum(between[sort].values()) for sort, layers in stage.items())
            for stage in stages
        ]
        send_s = self._send_s()
        per_step_s = self.per_step()
        optimizer = self._optimizer()
        exposed = [0.0] * len(stages)
        for _ in range(SETTLED):
            exposed = [self._exposed(stage, sharding, clock) for stage in stages]
            hottest = int(np.argmax([self._busy_s(work, clock) for work in busy]))
            settled = _results(
                busy[hottest], waits[hottest] + exposed[hottest] + send_s, cap_w, 1.0, values
            )
            clock = settled[2]
        host_s = [max(work[2] - self._busy_s(work, clock), 0.0) for work in busy]
        passes = [
            self._busy_s(work, clock) + wait + out + send_s + host
            for work, wait, out, host in zip(busy, waits, exposed, host_s, strict=True)
        ]
        slowest = int(np.argmax(passes))
        m, pp, v = self.count, self.layout.pp, self.layout.chunks
        bubble_s = (pp - 1) / v * (sum(passes) / pp)
        # The last backward pass hides the exchange of gradients, the next forward that of weights.
        last_s = 0.0
        for seconds, share in zip(per_step_s, (2 / 3, 1 / 3), strict=True):
            left_s = max(seconds - share * passes[slowest], 0.0)
            last_s += left_s + INTERFERENCE * (seconds - left_s)
        optimizer_s = self._busy_s(optimizer, clock)
        step_s = m * passes[slowest] + bubble_s + last_s + optimizer_s
        mean = sum(busy) / len(busy) * m + optimizer
        waiting_s = step_s - self._busy_s(mean, clock)
        exchanging_s = m * (waits[slowest] + exposed[slowest] + send_s) + last_s
        if self.asked.exchange_w is not None:
            rest_w = values["power.idle_w"] + values["power.static_w"]
            mean = mean + np.array(
                [0, 0, 0, 0, max(self.asked.exchange_w - rest_w, 0.0) * exchanging_s]
            )
        power_w = _results(mean, waiting_s, math.inf, clock, values, host=False)[1]
        work = self._parts(stages[slowest], slowest) | {"optimizer": optimizer}
        parts = {name: self._busy_s(each, clock) for name, each in work.items()}
        for sort, layers in stages[slowest].items():
            for kind, seconds in between[sort].items():
                name = f"{kind} parallel exchange"
                parts[name] = parts.get(name, 0.0) + m * layers * seconds
        parts |= {
            "sharded weights and gradients": m * exposed[slowest],
            "sends between stages": m * send_s,
            "waiting for the host": m * host_s[slowest],
            "pipeline bubble": bubble_s,
            "gradients and weights after the last pass": last_s,
        }
        squared = float(voltage_of(values).squared(clock))
        joules = {name: squared * each[3] + each[4] for name, each in work.items()}
        at_rest_j = step_s * (values["power.idle_w"] + values["power.static_w"])
        # Stages differ: the parts are those of the slowest, their sum is that of the mean one.
        scale = max(step_s * power_w - at_rest_j, 0.0) / sum(joules.values())
        parts_j = {name: float(scale * each) for name, each in joules.items() if each > 0}
        parts = {k: s for k, s in parts.items() if s > 0}
        return parts, {**parts_j, AT_REST: at_rest_j}, step_s, power_w, clock

    def _parts(self, stage: Mapping[str, float], index: int) -> dict[str, Work]:
        """Return what a GPU of a stage computes in a step by part."""
        names = ("forward", "backward", "recomputed forward")
        parts = dict.fromkeys(names, NO_WORK)
        for sort, layers in stage.items():
            for name, work in zip(names, self.work.layers[sort], strict=True):
                parts[name] = parts[name] + self.count * layers * work
        return {**parts, "embedding, logits and loss": self.count * self._ends(index)}

    def _ends(self, stage: int) -> Work:
        work = NO_WORK.copy()
        if stage == 0:
            work += self.work.embedding
        if stage == self.layout.pp - 1:
            work += self.work.head
        return work

    def _stage_work(self, stage: Mapping[str, float], index: int) -> Work:
        work = self._ends(index)
        for sort, layers in stage.items():
            work += layers * sum(self.work.layers[sort])
        return work

    def _busy_s(self, work: Work, clock: float) -> float:
        return float(work[0] / clock + work[1])

    def _exposed(
        self, stage: Mapping[str, float], sharding: Mapping[str, tuple[float, float]], clock: float
    ) -> float:
        """Return what sharding adds to one micro-batch of a stage."""
        total = 0.0
        for sort, layers in stage.items():
            forward_s, backward_s = sharding[sort]
            forward, backward, again = self.work.layers[sort]
            for seconds, busy_s in (
                (forward_s, self._busy_s(forward, clock)),
                (backward_s, self._busy_s(backward + again, clock)),
            ):
                left = max(seconds - busy_s, 0.0)
                total += layers * (left + self.model.factors.interference * (seconds - left))
        return total

    def _send_s(self) -> float:
        """Return the exposed sends of one micro-batch between stages, forward and backward."""
        layout = self.layout
        if layout.pp == 1:
            return 0.0
        size = (2.0 if self.mixed else 4.0) * self.shard.tokens * self.shape.hidden / layout.tp
        both = 2 * self.groups["pipeline"].send_s(size)
        self.traffic["pipeline"] = 2 * self.count * layout.chunks * size
        # Chunks send while others compute.
        return both if layout.chunks == 1 else INTERFERENCE * both * layout.chunks

    def _optimizer(self) -> Work:
        shared, experts = self.stage_parameters()
        layout = self.layout
        local = shared / layout.shards
        local += experts / (layout.expert_replicas if layout.zero else 1)
        made = optimizer_operations(local, masters=self.mixed and self.zero < 3)
        return self.model.prices.of({"optimizer": made})["optimizer"]

    def _notes(self) -> tuple[str, ...]:
        notes: list[str] = []
        gpu = self.model.gpu
        if self.asked.links is None and self.layout.gpus > self.links.gpus_per_node:
            gbit = 8e-9 * self.links.network_bytes_s / 0.85
            notes.append(
                f"network: {gbit:,.0f} Gbit/s for each node of {self.links.gpus_per_node}, as in "
                "the maker's own; --network tells another"
            )
        if self.shape.experts:
            notes.append("mixtures of experts are less certain than dense models")
        if self.model.prices.source == "spec-only":
            notes.append(f"no calibration of {gpu.product} is known: constants from its data sheet")
        return tuple(notes)


def _results(
    work: Work, waiting_s: float, cap_w: float, clock: float, values: Any, *, host: bool = True
) -> tuple[float, float, float]:
    """Return time, power and clock share of some work and waiting on one GPU."""
    steps = StepBatch(
        compute_s=np.array([work[0]]),
        memory_s=np.array([work[1]]),
        host_s=np.array([work[2] if host else 0.0]),
        compute_j=np.array([work[3]]),
        memory_j=np.array([work[4]]),
        communication_s=np.array([waiting_s]),
        data_s=np.zeros(1),
        cap_w=np.array([cap_w]),
        clock_share=np.array([clock]),
    )
    found = step_results(steps, values)
    return float(found.step_s[0]), float(found.power_w[0]), float(found.clock_share[0])


def usual_sequence(shape: DecoderShape) -> int:
    """Return the tokens of a sequence unless given, at most those that the model has places for."""
    return min(USUAL_SEQUENCE, shape.positions or USUAL_SEQUENCE)


def model_flops(shape: DecoderShape, seq: int) -> float:
    """Return the FLOPs of one token, forward and backward, without recomputation."""
    # 6 x active parameters, without the table that is only looked up, and causal attention
    looked_up = 0 if shape.tied else shape.hidden * shape.vocabulary
    pairs = seq / 2
    if shape.windowed_layers and seq > shape.window:
        share = shape.windowed_layers / shape.layers
        pairs = share * shape.window + (1 - share) * pairs
    scores = 12.0 * shape.layers * shape.heads * shape.head_dim * pairs
    return 6.0 * (shape.active_parameters - looked_up) + scores


def memory_of(model: ParallelModel, question: ParallelQuestion) -> tuple[float, float]:
    """Return the bytes that the fullest GPU needs, and has; without pricing any operation."""
    shape, layout, count = checked(question, model.gpu)
    needed = sum(_Step(model, question, shape, layout, count).memory().values())
    return needed, model.gpu.memory_bytes * (1 - RESERVED_SHARE)


def predict_parallel(question: ParallelQuestion) -> ParallelForecast:
    """Predict a training over many GPUs, from the configuration of the model alone.

    Raises:
        ConfigError: a part of the question is wrong; the message names it and the remedy.
    """
    return ParallelModel(gpu_named(question.gpu)).forecast(question)
