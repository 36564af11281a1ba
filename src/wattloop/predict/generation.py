"""Generation by Transformers itself: the prompts of a batch, then one token of each at a time.

The forward passes of the model are traced on fake tensors and predicted by the kernels model, as
training steps are:

    request = prefill + (output - 1) decode steps

A decode step reads all weights and the whole static cache of `prompt + output` entries. The host
launches every kernel of an eager step. A CUDA graph replays all of them with one launch.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu
from wattloop.predict.memory import MemoryFit, memory_fit
from wattloop.predict.models.kernels.model import KernelModel
from wattloop.predict.prediction import Placement, Prediction
from wattloop.predict.serving import (
    DecoderShape,
    ServingForecast,
    ServingQuestion,
    check,
    spec_only_notes,
)
from wattloop.predict.workload.workload import Workload

CUDA_GRAPH = "cuda-graph"
"""Mode of a workload whose eager kernels are replayed."""
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


class GenerationPasses(NamedTuple):
    """The two forward passes: all prompts of a batch, and one token of each of them."""

    prefill: Workload
    decode: Workload


class GenerationModel:
    """Time and power of generation by Transformers on one GPU type."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.kernels = gpu, KernelModel.for_gpu(gpu)
        self._passes: dict[ServingQuestion, GenerationPasses] = {}

    def forecast(self, question: ServingQuestion, shape: DecoderShape) -> ServingForecast:
        """Predict a batch of `concurrency` prompts that is generated together.

        Raises:
            ConfigError: the batch does not fit, or Transformers cannot do it; the message says
                what would work.
        """
        check(question, shape, self.gpu)
        _check_engine(question)
        passes = self._traced(question)
        memory = self._memory(passes, question, shape)
        placement = Placement(self.gpu, cap_w=question.cap_w)
        prefill, decode = (self.kernels.predict(each, placement) for each in passes)
        further = question.output - 1
        request_s = prefill.step_s + further * decode.step_s
        joules = prefill.step_s * prefill.power_w + further * decode.step_s * decode.power_w
        return ServingForecast(
            question=question,
            gpu=self.gpu,
            parameters=shape.parameters,
            active_parameters=shape.active_parameters,
            first_token_s=prefill.step_s,
            token_s=decode.step_s,
            tokens_s=question.concurrency * question.output / request_s,
            power_w=joules / request_s,
            token_j=joules / (question.concurrency * question.output),
            request_j=joules / question.concurrency,
            memory_bytes=memory.needed_bytes,
            available_bytes=memory.available_bytes,
            most_requests=memory.largest_batch or question.concurrency,
            clock_mhz=decode.clock_mhz or self.gpu.boost_clock_mhz,
            parts_s=_parts(decode.terms_s),
            parts_j=_parts(decode.terms_j),
            source="spec-only" if "spec-only" in decode.model else "shipped",
            notes=self._notes(question, decode),
        )

    def _traced(self, question: ServingQuestion) -> GenerationPasses:
        key = replace(question, cap_w=None, gpu="")
        if key not in self._passes:
            self._passes[key] = generation_passes(question)
        return self._passes[key]

    def _memory(
        self, passes: GenerationPasses, question: ServingQuestion, shape: DecoderShape
    ) -> MemoryFit:
        fits = [memory_fit(each, self.gpu) for each in passes]
        largest = min(each.largest_batch or 0 for each in fits)
        needed = max(fits, key=lambda each: each.needed_bytes)
        if not needed.fits:
            advice = (
                f"{largest} fit"
                if largest
                else "choose smaller weights, a shorter prompt or output, "
                "or --engine vllm with --tp"
            )
            raise ConfigError(
                f"concurrency {question.concurrency}: weights, static cache and temporary tensors "
                f"of {shape.name} do not fit on {self.gpu.product}; {advice}"
            )
        return replace(needed, largest_batch=largest)

    def _notes(self, question: ServingQuestion, decode: Prediction) -> tuple[str, ...]:
        graph = "replayed as a CUDA graph" if question.cuda_graph else "in eager mode"
        notes: tuple[str, ...] = (
            "Transformers' own forward passes: the batch starts and ends together, static cache, "
            f"decode steps {graph}; sampling by generate() comes on top",
        )
        if (decode.host_s or 0.0) > (decode.gpu_s or 0.0):
            notes += (
                "decoding waits for the host; --cuda-graph predicts it without, and other hosts "
                "differ by a third ('wattloop calibrate host')",
            )
        return notes + spec_only_notes(self.gpu, decode.model)


def _parts(terms: Mapping[str, float]) -> dict[str, float]:
    named = {name.removeprefix("forward."): value for name, value in terms.items()}
    named["products with weights"] = named.pop("gemm", 0.0)
    named["copies"] = named.pop("copy", 0.0)
    named["pointwise"] = named.pop("elementwise", 0.0)
    return dict(sorted(named.items(), key=lambda item: -item[1]))


def _check_engine(question: ServingQuestion) -> None:
    if question.weights not in DTYPES:
        raise ConfigError(
            f"weights {question.weights}: Transformers computes with 16 bits here; choose bf16 or "
            "fp16, or --engine vllm"
        )
    if question.tp > 1:
        raise ConfigError(
            f"tp {question.tp}: generation by Transformers is predicted on one GPU; choose --tp 1, "
            "or --engine vllm"
        )


def generation_passes(question: ServingQuestion) -> GenerationPasses:
    """Trace prefill and decode of the model.

    Raises:
        ConfigError: torch or Transformers is missing, or the model cannot be traced.
    """
    from wattloop.predict.sources.huggingface import huggingface_source
    from wattloop.predict.sources.source import (
        Sizes,
        needs_torch,
        needs_transformers,
        quiet_libraries,
    )
    from wattloop.predict.workload.trace import trace

    torch = needs_torch("predicting Transformers", "hf")
    transformers = needs_transformers("predicting Transformers")
    batch, entries = question.concurrency, question.prompt + question.output
    sizes = Sizes(batch, question.prompt)
    source = huggingface_source(
        question.model.removeprefix("hf:"), sizes, head="causal-lm", training=False
    )
    dtype = getattr(torch, DTYPES[question.weights])
    module = source.module.to(dtype)
    step = _decoder_step(torch, transformers, module, entries)
    prompt = {**source.inputs, "use_cache": True, "logits_to_keep": 1}  # type: ignore[dict-item]
    token = torch.empty((batch, 1), dtype=torch.long, device="meta")
    state = [
        torch.empty(size, dtype=kind, device="meta") for size, kind in step.sizes(batch, dtype)
    ]
    try:
        with quiet_libraries():
            prefill, decode = (
                trace(each, inputs, training=False, batch=batch, name=source.name)
                for each, inputs in ((module, prompt), (step, (token, *state)))
            )
    except ConfigError as error:
        raise ConfigError(
            f"model {question.model}: its generation on a static cache cannot be traced; choose "
            f"--engine vllm, or a model of another type ({error})"
        ) from None
    if question.cuda_graph:
        decode = replace(decode, compile_mode=CUDA_GRAPH)
    return GenerationPasses(prefill, decode)


def _decoder_step(torch: Any, transformers: Any, module: Any, entries: int) -> Any:
    """Return a module of one decode step; the tensors of its cache are inputs."""

    class DecoderStep(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def cache(self) -> Any:
            return transformers.StaticCache(config=module.config, max_cache_len=entries)

        def sizes(self, batch: int, dtype: Any) -> list[tuple[tuple[int, ...], Any]]:
            heads, key, value = _cache_heads(module.config.get_text_config(decoder=True))
            found: list[tuple[tuple[int, ...], Any]] = []
            for layer in self.cache().layers:
                length = layer.max_cache_len
                found += [((batch, heads, length, width), dtype) for width in (key, value)]
                found.append(((), torch.long))
            return found

        def forward(self, token: Any, *state: Any) -> Any:
            cache = self.cache()
            for index, layer in enumerate(cache.layers):
                keys, values, length = state[3 * index : 3 * index + 3]
                layer.keys, layer.values, layer.cumulative_length = keys, values, length
                layer.device, layer.dtype, layer.is_initialized = keys.device, keys.dtype, True
                if hasattr(layer, "cumulative_length_int"):
                    layer.cumulative_length_int = entries - 1
            made = self.model(
                input_ids=token, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            return made.logits

    return DecoderStep()


def _cache_heads(config: Any) -> tuple[int, int, int]:
    """Return the heads in the cache, and the widths of a key and of a value."""
    heads = config.num_attention_heads
    if getattr(config, "kv_lora_rank", None):  # latent attention stores one vector for all heads
        return 1, config.kv_lora_rank, config.qk_rope_head_dim
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return getattr(config, "num_key_value_heads", None) or heads, width, width
