"""Serving of a language model: time, power and energy of prefill and decode, before it runs.

One iteration of a server with continuous batching and CUDA graphs (vLLM) computes one token of
every running request, and the prompts of the requests that have just begun:

    kernel    = max(FLOP / reached peak, bytes / reached bandwidth) + gap
    iteration = sum of kernels + exchange of tensor parallelism + sampling + host
    tokens/s  = requests / iteration

Weights and cache are read once per iteration. Power follows the constants of the kernels model
(`models/kernels`), with the clock lowered where the power limit asks for it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu, gpu_named
from wattloop.predict.communication import LINK_EFFICIENCY, PCIE_EFFICIENCY
from wattloop.predict.memory import CONTEXT_BYTES, RESERVED_SHARE
from wattloop.predict.models.kernels.constants import constants_for
from wattloop.predict.models.kernels.step import StepBatch, step_results, voltage_of
from wattloop.predict.prediction import AT_REST

if TYPE_CHECKING:
    from wattloop.predict.generation import GenerationModel

Array = npt.NDArray[np.float64]

ENGINES = ("vllm", "transformers")
WEIGHT_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int4": 0.5625}
"""Weights -> bytes of one; int4 has a 16-bit scale for every 32 weights."""
ACTIVATION_BYTES = 2.0
LOGIT_BYTES = 4.0

# Shares of bandwidth and of busy power that the kernels of a server reach, and its own time. They
# were chosen on the H100 rows of The ML.ENERGY Benchmark (NeurIPS 2025); all others, the B200
# among them, are judged by them (docs/benchmarks/predict_serving.md).
WEIGHT_EFFICIENCY = 0.8
CACHE_EFFICIENCY = 0.9
EXPERT_EFFICIENCY = 0.8
STREAM_EFFICIENCY = 0.8
GAP_S = 1.5e-6
"""Between two kernels of a CUDA graph."""
HOST_S = 1.9e-3
"""Scheduling and output of an iteration, during which the GPU waits."""
LOGIT_S = 4.1e-10
"""Sampling of one logit on a GPU with `LOGIT_LANES_HZ`: sorting for top-p takes many passes."""
LOGIT_LANES_HZ = 132 * 1980e6
HOP_S = 10e-6
"""Latency of one all-reduce inside a node."""
MEMORY_SHARE = 0.9
"""Share of the memory that a server takes (`gpu_memory_utilization` of vLLM)."""
BUSY_WEIGHTS, BUSY_EXPERTS, BUSY_CACHE, BUSY_SAMPLING = 0.15, 0.2, 1.0, 0.6
"""Share of a product's busy power that kernels draw while they wait for memory."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes of a decoder-only language model.

    Attributes:
        inner: width of the dense feed-forward part; `gated` ones have three matrices.
        experts, active, expert_inner: of a mixture of experts; 0 without.
        shared_inner: width of the experts that every token uses.
        dense_layers: layers with a dense part although the others have experts.
        window, windowed_layers: tokens that local attention sees, and how many layers are local.
        cache_width: numbers per token and layer in the cache.
        cache_flops: of one generated token per cached one and layer, all heads together.
        attention_weights: parameters of the attention of one layer.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int
    gated: bool = True
    tied: bool = False
    experts: int = 0
    active: int = 0
    expert_inner: int = 0
    shared_inner: int = 0
    dense_layers: int = 0
    window: int = 0
    windowed_layers: int = 0
    positions: int = 0
    cache_width: int = 0
    cache_flops: float = 0.0
    attention_weights: float = 0.0

    @property
    def expert_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def parameters(self) -> float:
        return self._parameters(self.experts)

    @property
    def active_parameters(self) -> float:
        return self._parameters(self.active)

    def _parameters(self, experts: int) -> float:
        matrices = 3 if self.gated else 2
        dense = (self.layers - self.expert_layers) * matrices * self.inner
        sparse = self.expert_layers * matrices * (experts * self.expert_inner + self.shared_inner)
        layers = self.layers * self.attention_weights + (dense + sparse) * self.hidden
        return layers + self.hidden * self.vocabulary * (1 if self.tied else 2)

    @classmethod
    def of_config(cls, name: str, config: Mapping[str, Any]) -> "DecoderShape":
        """Read the sizes of a Transformers configuration of a decoder.

        Raises:
            ConfigError: a size is missing: not a decoder-only language model.
        """
        config = {**config, **(config.get("text_config") or {})}
        if config.get("model_type") in NOT_DECODERS:
            raise ConfigError(
                f"model {name}: {config['model_type']} does not generate token by token; serving "
                "and layouts are predicted for decoder-only language models"
            )
        if config.get("model_type") in NOT_READ:
            raise ConfigError(
                f"model {name}: layers of {config['model_type']} differ in ways that are not read "
                "from its configuration; name a model of another type"
            )

        def size(*keys: str, missing: int | None = None) -> int:
            for key in keys:
                value = config.get(key)
                if isinstance(value, list) and value:  # a value per layer
                    value = value[0]
                if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                    return value
            if missing is None:
                raise ConfigError(
                    f"model {name}: its configuration has no {keys[0]}; serving and layouts "
                    "are predicted for decoder-only language models"
                )
            return missing

        hidden = size("hidden_size", "n_embd")
        layers = size("num_hidden_layers", "n_layer", "num_layers")
        heads = size("num_attention_heads", "n_head", "num_heads")
        kv_heads = size("num_key_value_heads", missing=heads)
        head_dim = size("head_dim", missing=hidden // heads)
        experts = size("num_local_experts", "num_experts", "n_routed_experts", missing=0)
        inner = size("intermediate_size", "n_inner", "ffn_dim", missing=4 * hidden)
        latent = size("kv_lora_rank", missing=0)
        cache_width = 2 * kv_heads * head_dim
        cache_flops = 4.0 * heads * head_dim
        attention_weights = float(hidden * (2 * heads * head_dim + cache_width))
        if latent:  # multi-head latent attention stores one compressed vector for all heads
            rope = size("qk_rope_head_dim")
            key, value = size("qk_nope_head_dim") + rope, size("v_head_dim")
            query_rank = size("q_lora_rank", missing=0)
            query = query_rank * (hidden + heads * key) if query_rank else hidden * heads * key
            compressed = hidden * (latent + rope) + latent * heads * (key - rope + value)
            attention_weights = float(query + compressed + heads * value * hidden)
            cache_width, kv_heads, head_dim = latent + rope, 1, (key + value) // 2
            cache_flops = 2.0 * heads * (2 * latent + rope)
        each = size("moe_intermediate_size", missing=inner)
        shared, dense = (
            size("n_shared_experts", missing=0),
            size("first_k_dense_replace", missing=0),
        )
        if config.get("model_type") in LLAMA_4:
            # Every n-th layer has experts, one of which every token uses; the others are dense.
            shared, dense = 1, layers - layers // size("interleave_moe_layer_step", missing=1)
            inner = size("intermediate_size_mlp")
        window = size("sliding_window", "attention_chunk_size", missing=0)
        return cls(
            name=name,
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            inner=inner,
            vocabulary=size("vocab_size"),
            gated=str(config.get("model_type")) not in UNGATED,
            tied=bool(config.get("tie_word_embeddings", config.get("model_type") in TIED)),
            experts=experts,
            active=size("num_experts_per_tok", "moe_topk", missing=min(2, experts)),
            expert_inner=each if experts else 0,
            shared_inner=each * shared if experts else 0,
            dense_layers=dense if experts else 0,
            window=window,
            windowed_layers=_windowed(config, layers) if window else 0,
            positions=size("max_position_embeddings", "n_positions", missing=0),
            cache_width=cache_width,
            cache_flops=cache_flops,
            attention_weights=attention_weights,
        )


NOT_DECODERS = frozenset(
    ("albert", "bart", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra")
) | {"longformer", "mbart", "mpnet", "roberta", "t5", "vit", "xlm-roberta"}
NOT_READ = frozenset(("falcon", "jamba", "mamba", "qwen2_moe"))
UNGATED = frozenset(("gpt2", "gpt_neo", "gptj", "gpt_neox", "bloom", "opt", "phi", "falcon"))
"""Models whose feed-forward part has two matrices."""
TIED = frozenset(("gpt2", "gpt_neo", "bloom", "opt", "gemma", "gemma2", "gemma3", "gemma3_text"))
"""Models that share embedding and output matrix unless their configuration says otherwise."""
LLAMA_4 = frozenset(("llama4", "llama4_text"))
GLOBAL_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2} | dict.fromkeys(
    LLAMA_4, 4
)
"""Models in which only every n-th layer sees all tokens, unless their configuration says so."""


def _windowed(config: Mapping[str, Any], layers: int) -> int:
    """Return how many layers see a window: all, or all but every n-th."""
    kinds = config.get("layer_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str):
        return sum(str(kind).startswith("sliding") for kind in kinds)
    every = config.get("sliding_window_pattern", GLOBAL_EVERY.get(str(config.get("model_type"))))
    if isinstance(every, int) and every > 1:
        return layers - layers // every
    if config.get("use_sliding_window") is False:
        return 0
    return layers


def decoder_named(model: str) -> DecoderShape:
    """Return the sizes of `hf:NAME` or `hf:PATH/config.json`, from the configuration alone.

    Raises:
        ConfigError: no such model, or not a decoder-only language model.
    """
    from wattloop.predict.sources.huggingface import configuration_named

    if not model.startswith("hf:"):
        raise ConfigError(
            f"model {model}: serving and layouts are predicted from a configuration; use hf:NAME "
            "(see 'wattloop predict models') or hf:PATH/config.json"
        )
    entry, _ = configuration_named(model.removeprefix("hf:"))
    return DecoderShape.of_config(model, entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingQuestion:
    """A served model and its load.

    Attributes:
        concurrency: requests that run at the same time.
        prompt, output: tokens of a request, read and generated.
        weights: arithmetic type of the weights; the cache and activations stay at 16 bits.
        tp: GPUs that share every layer (tensor parallel).
        cap_w: power limit of each GPU; None is the factory's.
        engine: `vllm`, a server with continuous batching, or `transformers`, the model's own
            forward passes (`predict.generation`).
        cuda_graph: of `transformers`: decode steps are replayed. A server always does that.
    """

    model: str
    gpu: str = "h200"
    concurrency: int = 32
    prompt: int = 512
    output: int = 512
    weights: str = "bf16"
    tp: int = 1
    cap_w: float | None = None
    engine: str = "vllm"
    cuda_graph: bool = False


@dataclass(frozen=True, slots=True)
class ServingForecast:
    """Steady state of a server under the asked load.

    Attributes:
        first_token_s: a request's prompt with everything else that runs, and half an iteration
            of waiting for its turn.
        token_s: time between two tokens of a request, in the mean.
        tokens_s: generated tokens of all requests.
        power_w: of all GPUs.
        token_j, request_j: energy of all GPUs per generated token and per request.
        memory_bytes, available_bytes: of each GPU.
        most_requests: the largest concurrency whose cache fits.
        clock_mhz: SM clock during decoding.
        parts_s, parts_j: seconds and joules of an iteration by part, of one GPU.
    """

    question: ServingQuestion
    gpu: Gpu
    parameters: float
    active_parameters: float
    first_token_s: float
    token_s: float
    tokens_s: float
    power_w: float
    token_j: float
    request_j: float
    memory_bytes: float
    available_bytes: float
    most_requests: int
    clock_mhz: float
    parts_s: Mapping[str, float]
    parts_j: Mapping[str, float]
    source: str
    notes: tuple[str, ...] = ()

    @property
    def is_below_cap(self) -> bool:
        cap_w = self.question.cap_w or self.gpu.tdp_w
        return self.power_w <= 1.001 * self.question.tp * cap_w

    def to_dict(self) -> dict[str, Any]:
        data = asdict(replace(self, parts_s=dict(self.parts_s), parts_j=dict(self.parts_j)))
        data["gpu"] = self.gpu.name
        data["tokens_per_joule"] = 1 / self.token_j
        return data


class Iteration(NamedTuple):
    """Work of one iteration on one GPU: time that stretches with the clock, or not, and joules."""

    compute_s: float
    memory_s: float
    compute_j: float
    memory_j: float
    waiting_s: float
    parts_s: dict[str, float]
    parts_j: dict[str, Array]


class ServingModel:
    """Time and power of a server's iterations on one GPU type.

    Args:
        gpu: what the maker says of the GPU; constants are its calibration's, else its data
            sheet's.
    """

    def __init__(self, gpu: Gpu) -> None:
        constants, self.source = constants_for(gpu)
        self.gpu, self.values = gpu, constants.values

    def forecast(self, question: ServingQuestion, shape: DecoderShape) -> ServingForecast:
        """Predict the steady state.

        Raises:
            ConfigError: the layout does not divide, the load does not fit, or the GPU lacks the
                arithmetic; the message says what would work.
        """
        check(question, shape, self.gpu)
        weight_bytes, room = self._memory(question, shape)
        per_request = _cache_bytes(shape, question.prompt + question.output, question.tp)
        most = max(int((room - weight_bytes) / per_request), 0)
        if most < question.concurrency:
            raise ConfigError(_does_not_fit(question, shape, self.gpu, most, weight_bytes, room))
        begins = question.concurrency / question.output  # requests that begin per iteration
        share, at_once = min(begins, 1.0), max(begins, 1.0)
        loads = [0.0, question.prompt * at_once]
        iterations = [self.iteration(question, shape, prompts) for prompts in loads]
        result = self.iteration_results(iterations, question.cap_w)
        times, powers = result.step_s, result.power_w * question.tp
        token_s = float((1 - share) * times[0] + share * times[1])
        joules = float((1 - share) * times[0] * powers[0] + share * times[1] * powers[1])
        tokens_s = question.concurrency / token_s
        held = question.concurrency * _cache_bytes(
            shape, question.prompt + question.output / 2, question.tp
        )
        return ServingForecast(
            question=question,
            gpu=self.gpu,
            parameters=shape.parameters,
            active_parameters=shape.active_parameters,
            first_token_s=float(times[1]) + token_s / 2,
            token_s=token_s,
            tokens_s=tokens_s,
            power_w=joules / token_s,
            token_j=joules / question.concurrency,
            request_j=joules / question.concurrency * question.output,
            memory_bytes=weight_bytes + held + CONTEXT_BYTES,
            available_bytes=self.gpu.memory_bytes * (1 - RESERVED_SHARE),
            most_requests=most,
            clock_mhz=float(result.clock_share[0]) * self.gpu.boost_clock_mhz,
            parts_s=iterations[0].parts_s,
            parts_j=self._parts_j(iterations[0], result),
            source=self.source,
            notes=_notes(self.gpu, self.source),
        )

    def iteration(
        self, question: ServingQuestion, shape: DecoderShape, prompt_tokens: float
    ) -> Iteration:
        """Return the work of an iteration that also reads `prompt_tokens` of new requests."""
        kernels = _kernels(question, shape, prompt_tokens)
        flops, moved, number, count, efficiency, least_busy = (
            np.array(column) for column in zip(*(k.row for k in kernels), strict=True)
        )
        is_fp8 = np.array([k.weights and question.weights == "fp8" for k in kernels])
        reached = [self._reached_flops(question, fp8=fp8) for fp8 in (False, True)]
        compute = flops / np.where(is_fp8, reached[1], reached[0])
        memory = moved / (self.gpu.memory_bytes_s * efficiency)
        seconds = np.maximum(compute, memory)
        share = np.maximum(compute / np.maximum(seconds, 1e-15), least_busy)
        stream_w = self.values.find("power.busy_w.stream")
        product_w = self.values.find("power.busy_w.product")
        busy_w = stream_w + (product_w - stream_w) * share
        # Half of the bits take half of the energy.
        flop_j = self.values.find("power.joule_per_flop.bf16") * np.where(is_fp8, 0.5, 1.0)
        sampling_s = self._sampling_s(question, shape)
        waiting_s = HOST_S + self._exchange_s(question, shape, prompt_tokens)
        gaps_s = float((number * count).sum()) * GAP_S
        parts: dict[str, float] = {}
        parts_j: dict[str, Array] = {
            "sampling": np.array([BUSY_SAMPLING * product_w * sampling_s, 0])
        }
        byte_j = self.values["power.joule_per_byte"]
        dynamic = np.stack((flops * flop_j + busy_w * seconds, moved * byte_j)) * count
        for row, (kernel, part_s) in enumerate(
            zip(kernels, (seconds * count).tolist(), strict=True)
        ):
            parts[kernel.part] = parts.get(kernel.part, 0.0) + part_s
            parts_j[kernel.part] = parts_j.get(kernel.part, 0.0) + dynamic[:, row]
        compute_j, memory_j = np.sum(list(parts_j.values()), axis=0).tolist()
        parts |= {"sampling": sampling_s, "gaps between kernels": gaps_s, "waiting": waiting_s}
        is_compute = compute > memory
        return Iteration(
            compute_s=float((seconds * count * is_compute).sum()),
            memory_s=float((seconds * count * ~is_compute).sum()) + sampling_s + gaps_s,
            compute_j=compute_j,
            memory_j=memory_j,
            waiting_s=waiting_s,
            parts_s=dict(sorted(parts.items(), key=lambda item: -item[1])),
            parts_j=parts_j,
        )

    def _parts_j(self, iteration: Iteration, result: Any) -> dict[str, float]:
        """Return the joules of the first of the results by part, and those of being on."""
        squared = float(voltage_of(self.values).squared(result.clock_share[0]))
        parts = {name: float(squared * c + m) for name, (c, m) in iteration.parts_j.items()}
        rest_j = float(result.step_s[0] * result.power_w[0]) - sum(parts.values())
        return {**parts, AT_REST: max(rest_j, 0.0)}

    def iteration_results(self, iterations: Sequence[Iteration], cap_w: float | None) -> Any:
        columns = np.array([each[:5] for each in iterations]).T
        none, ones = np.zeros(len(iterations)), np.ones(len(iterations))
        steps = StepBatch(
            compute_s=columns[0],
            memory_s=columns[1],
            host_s=none,
            compute_j=columns[2],
            memory_j=columns[3],
            communication_s=columns[4],
            data_s=none,
            cap_w=ones * (self.gpu.tdp_w if cap_w is None else cap_w),
            clock_share=ones,
        )
        return step_results(steps, self.values)

    def _reached_flops(self, question: ServingQuestion, *, fp8: bool) -> float:
        peaks = self.gpu.matrix_flops
        dtype = "fp8" if fp8 and "fp8" in peaks else "fp16"
        if dtype == "fp16" and question.weights != "fp16":
            dtype = "bf16" if "bf16" in peaks else "fp16"
        peak = peaks.get(dtype) or peaks["bf16"]
        return peak * min(self.values.find("product.efficiency.gemm.bf16"), 0.97)

    def _sampling_s(self, question: ServingQuestion, shape: DecoderShape) -> float:
        slower = LOGIT_LANES_HZ / (self.gpu.sms * self.gpu.boost_clock_mhz * 1e6)
        return question.concurrency * shape.vocabulary * LOGIT_S * slower

    def _exchange_s(
        self, question: ServingQuestion, shape: DecoderShape, prompt_tokens: float
    ) -> float:
        """Return the two all-reduces of every layer."""
        if question.tp == 1:
            return 0.0
        link = LINK_EFFICIENCY * self.gpu.link_bytes_s / 2
        if question.tp > self.gpu.link_gpus:
            link = PCIE_EFFICIENCY * self.gpu.pcie_bytes_s
        size = (question.concurrency + prompt_tokens) * shape.hidden * ACTIVATION_BYTES
        ring = 2 * (question.tp - 1) / question.tp
        return 2 * shape.layers * (HOP_S + ring * size / link)

    def _memory(self, question: ServingQuestion, shape: DecoderShape) -> tuple[float, float]:
        """Return the bytes of the weights on one GPU, and what a server may take."""
        embeddings = shape.hidden * shape.vocabulary * (1 if shape.tied else 2)
        inner = shape.parameters - embeddings
        weights = inner * WEIGHT_BYTES[question.weights] + embeddings * ACTIVATION_BYTES
        room = self.gpu.memory_bytes * (1 - RESERVED_SHARE) * MEMORY_SHARE - CONTEXT_BYTES
        return weights / question.tp, room


def least_energy(gpu: Gpu, forecast: Callable[[float], ServingForecast]) -> ServingForecast:
    """Return the forecast at the power limit with the least energy per token.

    Limits below what the lowest clock draws are left out.
    """
    low = max(gpu.cap_min_w, 0.3 * gpu.tdp_w)
    each = [forecast(float(cap_w)) for cap_w in np.linspace(low, gpu.cap_max_w, 21)]
    kept = [found for found in each if found.is_below_cap]
    return min(kept or each[-1:], key=lambda found: found.token_j)


class SteadyLoad(NamedTuple):
    """A server that gets requests at a rate.

    Attributes:
        requests: that run at the same time, in the mean.
        power_w: of all GPUs, in the mean.
    """

    requests: float
    token_s: float
    power_w: float


def load_at_rate(
    forecast: Callable[[int], ServingForecast], requests_per_s: float, idle_w: float
) -> SteadyLoad:
    """Return the steady state in which as many requests end as begin (Little's law).

    Args:
        forecast: of a concurrency.
        requests_per_s: that arrive.
        idle_w: power of all GPUs while no request runs.

    Raises:
        ConfigError: the server is slower than that, with what it answers at most.
    """

    def rate(found: ServingForecast) -> float:
        return found.tokens_s / found.question.output

    low = high = forecast(1)
    if requests_per_s <= rate(low):
        busy = requests_per_s / rate(low)
        return SteadyLoad(busy, low.token_s, busy * low.power_w + (1 - busy) * idle_w)
    while rate(high) < requests_per_s:
        if high.question.concurrency == high.most_requests:
            asked = high.question
            raise ConfigError(
                f"{requests_per_s:.3g} requests/s of {asked.model}: {asked.tp} x "
                f"{high.gpu.product} answer at most {rate(high):.3g}; give the service more GPUs, "
                "or fewer requests"
            )
        low, high = high, forecast(min(2 * high.question.concurrency, high.most_requests))
    while high.question.concurrency - low.question.concurrency > 1:
        middle = forecast((low.question.concurrency + high.question.concurrency) // 2)
        low, high = (middle, high) if rate(middle) < requests_per_s else (low, middle)
    share = (requests_per_s - rate(low)) / (rate(high) - rate(low))
    requests = low.question.concurrency + share
    power_w = low.power_w + share * (high.power_w - low.power_w)
    return SteadyLoad(requests, low.token_s + share * (high.token_s - low.token_s), power_w)


class _Kernel(NamedTuple):
    """Kernels of one kind: FLOPs and bytes of one call, launches, calls, what they reach."""

    part: str
    flops: float
    moved: float
    launches: int
    calls: int
    efficiency: float
    busy: float
    weights: bool = False

    @property
    def row(self) -> tuple[float, ...]:
        return self[1:7]


def _kernels(question: ServingQuestion, shape: DecoderShape, prompts: float) -> list[_Kernel]:
    """Return what one GPU computes in an iteration with `prompts` tokens of new requests."""
    running, tp = float(question.concurrency), question.tp
    context = question.prompt + question.output / 2
    rows = running + prompts
    width = shape.heads * shape.head_dim / tp
    cache = max(shape.cache_width / tp, shape.cache_width / max(shape.kv_heads, 1))
    element = WEIGHT_BYTES[question.weights]
    kernels: list[_Kernel] = []

    def product(part: str, m: float, n: float, k: float, count: int, size: float = element) -> None:
        moved = size * n * k + ACTIVATION_BYTES * m * (n + k)
        kernels.append(
            _Kernel(
                part,
                2 * m * n * k,
                moved,
                1,
                count,
                WEIGHT_EFFICIENCY,
                BUSY_WEIGHTS,
                size == element,
            )
        )

    def stream(moved: float, count: int, number: int = 1) -> None:
        kernels.append(
            _Kernel("norms and the like", 0.0, moved, number, count, STREAM_EFFICIENCY, 0.0)
        )

    layers, hidden = shape.layers, shape.hidden
    stream(2 * ACTIVATION_BYTES * rows * hidden, 1)
    stream(3 * ACTIVATION_BYTES * rows * hidden, 2 * layers)
    before = shape.attention_weights / hidden / tp - width  # all but the product after it
    product("attention weights", rows, before, hidden, layers)
    stream(2 * ACTIVATION_BYTES * rows * (width + cache), layers, 2)
    for count, window in (
        (layers - shape.windowed_layers, math.inf),
        (shape.windowed_layers, float(shape.window)),
    ):
        if count:
            seen = min(context, window)
            flops = shape.cache_flops / tp * running * seen
            moved = ACTIVATION_BYTES * running * cache * seen
            kernels.append(_Kernel("cache", flops, moved, 2, count, CACHE_EFFICIENCY, BUSY_CACHE))
        if count and prompts:
            # A causal mask hides half of the pairs; flash attention reaches 0.6 of products.
            flops = 4 * prompts * width * min(question.prompt / 2, window) / 0.6
            moved = 2 * ACTIVATION_BYTES * prompts * (width + cache)
            kernels.append(_Kernel("prompt", flops, moved, 1, count, CACHE_EFFICIENCY, BUSY_CACHE))
    product("attention weights", rows, hidden, width, layers)
    matrices = 2 if shape.gated else 1
    if shape.experts:
        kernels += _expert_kernels(shape, rows, tp, element)
        if shape.shared_inner:
            product(
                "experts", rows, matrices * shape.shared_inner / tp, hidden, shape.expert_layers
            )
            product("experts", rows, hidden, shape.shared_inner / tp, shape.expert_layers)
    dense = layers - shape.expert_layers
    if dense:
        product("feed-forward weights", rows, matrices * shape.inner / tp, hidden, dense)
        stream((matrices + 1) * ACTIVATION_BYTES * rows * shape.inner / tp, dense)
        product("feed-forward weights", rows, hidden, shape.inner / tp, dense)
    scored = running + (prompts / question.prompt if prompts else 0.0)
    product("logits", scored, shape.vocabulary / tp, hidden, 1, ACTIVATION_BYTES)
    return kernels


def _expert_kernels(shape: DecoderShape, rows: float, tp: int, element: float) -> list[_Kernel]:
    """Return the routed experts; each expert that any token chose is read once."""
    chosen = shape.experts * (1 - (1 - shape.active / shape.experts) ** rows)
    pairs, layers, hidden = rows * shape.active, shape.expert_layers, shape.hidden
    inner = shape.expert_inner / tp
    kernels = [
        _Kernel(
            "experts",
            2 * pairs * n * k,
            element * chosen * n * k + ACTIVATION_BYTES * pairs * (n + k),
            1,
            layers,
            EXPERT_EFFICIENCY,
            BUSY_EXPERTS,
            weights=True,
        )
        for n, k in (((2 if shape.gated else 1) * inner, hidden), (hidden, inner))
    ]
    router = ACTIVATION_BYTES * (hidden * shape.experts + 3 * pairs * hidden)
    kernels.append(_Kernel("experts", 0.0, router, 7, layers, STREAM_EFFICIENCY, 0.0))
    return kernels


def _cache_bytes(shape: DecoderShape, tokens: float, tp: int) -> float:
    """Return the cache of one request on one GPU; layers with a window keep no more than that."""
    width = max(shape.cache_width / tp, shape.cache_width / max(shape.kv_heads, 1))
    whole = (shape.layers - shape.windowed_layers) * tokens
    local = shape.windowed_layers * min(tokens, shape.window)
    return ACTIVATION_BYTES * width * (whole + local)


def check(question: ServingQuestion, shape: DecoderShape, gpu: Gpu) -> None:
    """Refuse what cannot be served.

    Raises:
        ConfigError: with what would work.
    """
    for name in ("concurrency", "prompt", "output", "tp"):
        if getattr(question, name) < 1:
            raise ConfigError(f"{name} {getattr(question, name)}: must be at least 1")
    if question.weights not in WEIGHT_BYTES:
        raise ConfigError(
            f"weights {question.weights}: unknown; choose one of {', '.join(WEIGHT_BYTES)}"
        )
    if question.weights == "fp8" and "fp8" not in gpu.matrix_flops:
        raise ConfigError(
            f"weights fp8: {gpu.product} has no fp8 arithmetic; use bf16 or int4, or a GPU since "
            "Ada and Hopper"
        )
    if "bf16" not in gpu.matrix_flops and "fp16" not in gpu.matrix_flops:
        raise ConfigError(f"gpu {gpu.name}: has no matrix units for 16 bits, so it is not served")
    if shape.heads % question.tp:
        fitting = [n for n in (1, 2, 4, 8, 16) if shape.heads % n == 0]
        raise ConfigError(
            f"tp {question.tp}: does not divide the {shape.heads} heads of {shape.name}; choose "
            f"one of {', '.join(map(str, fitting))}"
        )
    length = question.prompt + question.output
    if shape.positions and length > shape.positions:
        raise ConfigError(
            f"prompt {question.prompt} and output {question.output}: together more than the "
            f"{shape.positions} positions of {shape.name}; choose at most that in sum, such as "
            f"--prompt {shape.positions // 2} --output {shape.positions - shape.positions // 2}"
        )
    if question.cap_w is not None and not (
        question.cap_w > 0 and gpu.cap_min_w <= question.cap_w <= gpu.cap_max_w
    ):
        raise ConfigError(
            f"cap {question.cap_w:g}: {gpu.product} accepts {gpu.cap_min_w:g} to "
            f"{gpu.cap_max_w:g} W"
        )


def _does_not_fit(
    question: ServingQuestion,
    shape: DecoderShape,
    gpu: Gpu,
    most: int,
    weight_bytes: float,
    room: float,
) -> str:
    if weight_bytes >= room:
        needed = math.ceil(weight_bytes * question.tp / room)
        fitting = next((n for n in (1, 2, 4, 8, 16, 32) if n >= needed and not shape.heads % n), 0)
        advice = f"use --tp {fitting}" if fitting > question.tp else "use smaller weights"
        return (
            f"{shape.name}: {weight_bytes / 1e9:.0f} GB of weights on each GPU do not fit into "
            f"the {room / 1e9:.0f} GB that a server takes of {gpu.product}; {advice}"
            f"{'' if question.weights == 'int4' else ', or --weights int4'}"
        )
    return (
        f"concurrency {question.concurrency}: the cache of so many requests does not fit on "
        f"{question.tp} x {gpu.product}; {most} fit"
        + ("" if most else f"; use more GPUs, such as --tp {2 * question.tp}")
    )


def _notes(gpu: Gpu, source: str) -> tuple[str, ...]:
    server = "a server in the manner of vLLM: continuous batching, CUDA graphs, top-p sampling"
    return (server, *spec_only_notes(gpu, source))


def spec_only_notes(gpu: Gpu, source: str) -> tuple[str, ...]:
    if "spec-only" not in source:
        return ()
    return (f"no calibration of {gpu.product} is known: constants from its data sheet",)


def predict_serving(question: ServingQuestion) -> ServingForecast:
    """Predict a server under the asked load, from the configuration of the model alone.

    Raises:
        ConfigError: a part of the question is wrong; the message names it and the remedy.
    """
    model = serving_model(question, gpu_named(question.gpu))
    return model.forecast(question, decoder_named(question.model))


def serving_model(question: ServingQuestion, gpu: Gpu) -> "ServingModel | GenerationModel":
    """Return the model of the asked engine.

    Raises:
        ConfigError: an unknown engine, or an option that it does not have.
    """
    if question.engine == "transformers":
        from wattloop.predict.generation import GenerationModel

        return GenerationModel(gpu)
    if question.engine != "vllm":
        raise ConfigError(f"engine {question.engine}: unknown; choose one of {', '.join(ENGINES)}")
    if question.cuda_graph:
        raise ConfigError(
            "cuda-graph: a server replays CUDA graphs anyway; leave it out, or choose --engine "
            "transformers"
        )
    return ServingModel(gpu)
