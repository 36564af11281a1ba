"""Promises of predictions of language model servers: sizes, monotony, limits, refusals."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.prediction import AT_REST
from wattloop.predict.serving import (
    DecoderShape,
    ServingForecast,
    ServingModel,
    ServingQuestion,
    decoder_named,
    least_energy,
    load_at_rate,
    predict_serving,
)

QWEN = ServingQuestion(model="hf:qwen3-8b", gpu="h100-sxm", concurrency=64, prompt=200, output=640)


@pytest.mark.parametrize(
    ("model", "billions", "active"),
    [
        ("llama-3.1-70b", 70.6, 70.6),
        ("llama-3.1-405b", 405.9, 405.9),
        ("qwen3-8b", 8.19, 8.19),
        ("qwen3-30b-a3b", 30.5, 3.3),
        ("qwen3-235b-a22b", 235.1, 22.0),
        ("gemma-3-12b", 11.8, 11.8),
        ("mixtral-8x7b", 46.7, 12.9),
        ("gpt-oss-20b", 20.9, 3.6),
        ("gpt-oss-120b", 116.8, 5.1),
        ("phi-4", 14.7, 14.7),
        ("mistral-small-24b", 23.6, 23.6),
        ("qwen3-0.6b", 0.6, 0.6),
        ("deepseek-v3", 671.0, 37.0),
        ("llama-4-scout", 107.8, 17.2),
        ("llama-4-maverick", 400.7, 17.2),
    ],
)
def test_parameters_are_those_that_makers_publish(
    model: str, billions: float, active: float
) -> None:
    """gpt-oss counts active parameters without the embedding, DeepSeek has further projections."""
    shape = decoder_named(f"hf:{model}")
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.015)
    assert shape.active_parameters / 1e9 == pytest.approx(active, rel=0.18)


def test_local_layers_keep_a_window() -> None:
    assert decoder_named("hf:gemma-3-12b").windowed_layers == 40
    assert decoder_named("hf:gpt-oss-20b").windowed_layers == 12
    assert decoder_named("hf:qwen3-8b").windowed_layers == 0


def test_a_measured_server_is_predicted() -> None:
    """The ML.ENERGY Benchmark: 14.8 ms, 514 W and 0.119 J per token at 64 requests on an H100."""
    forecast = predict_serving(QWEN)
    assert forecast.token_s == pytest.approx(14.8e-3, rel=0.1)
    assert forecast.power_w == pytest.approx(514, rel=0.1)
    assert forecast.token_j == pytest.approx(0.119, rel=0.1)
    assert 440 < replace_requests(QWEN, 1).most_requests < 600


def replace_requests(question: ServingQuestion, requests: int) -> ServingForecast:
    return predict_serving(replace(question, concurrency=requests))


@settings(max_examples=30, deadline=None)
@given(
    requests=st.integers(1, 200),
    prompt=st.integers(1, 1_900),
    output=st.integers(1, 1_900),
    tp=st.sampled_from((1, 2, 4)),
    weights=st.sampled_from(("bf16", "fp8", "int4")),
)
def test_figures_agree_with_each_other(
    requests: int, prompt: int, output: int, tp: int, weights: str
) -> None:
    """Energy is power x time, more requests never give fewer tokens, parts are not negative."""
    asked = ServingQuestion(
        model="hf:qwen3-8b",
        gpu="h200",
        concurrency=requests,
        prompt=prompt,
        output=output,
        tp=tp,
        weights=weights,
    )
    forecast = predict_serving(asked)
    assert forecast.token_j == pytest.approx(forecast.power_w / forecast.tokens_s)
    assert forecast.request_j == pytest.approx(forecast.token_j * output)
    assert 0 < forecast.power_w <= 1.001 * tp * forecast.gpu.cap_max_w
    assert all(seconds >= 0 for seconds in forecast.parts_s.values())
    assert forecast.parts_j.keys() >= {"cache", "feed-forward weights", "sampling", AT_REST}
    assert all(joules >= 0 for joules in forecast.parts_j.values())
    assert forecast.first_token_s > forecast.token_s / 2
    assert replace_requests(asked, requests + 1).tokens_s >= 0.999 * forecast.tokens_s


def test_smaller_weights_are_quicker_and_leave_more_room() -> None:
    bf16, fp8, int4 = (predict_serving(replace(QWEN, weights=w)) for w in ("bf16", "fp8", "int4"))
    assert bf16.token_s > fp8.token_s > int4.token_s
    assert bf16.token_j > fp8.token_j
    assert bf16.most_requests < fp8.most_requests < int4.most_requests


def test_a_cap_saves_energy_of_a_busy_server() -> None:
    question = replace(QWEN, model="hf:llama-3.1-70b", tp=4, concurrency=200)
    shape = decoder_named(question.model)
    server = ServingModel(gpu_named("h100-sxm"))
    free = server.forecast(question, shape)
    best = least_energy(
        server.gpu, lambda cap_w: server.forecast(replace(question, cap_w=cap_w), shape)
    )
    assert best.question.cap_w is not None
    assert best.question.cap_w < 700
    assert best.token_j < free.token_j
    assert best.is_below_cap


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tp": 3}, "tp 3: does not divide the 32 heads.*choose one of 1, 2, 4, 8"),
        ({"weights": "fp3"}, "weights fp3: unknown; choose one of bf16"),
        ({"weights": "fp8", "gpu": "a100"}, "has no fp8 arithmetic; use bf16 or int4"),
        ({"concurrency": 5000}, r"concurrency 5000: .*does not fit.*; \d+ fit"),
        ({"concurrency": 0}, "concurrency 0: must be at least 1"),
        ({"prompt": 50_000}, "more than the 40960 positions"),
        ({"cap_w": 10.0}, "cap 10: .* accepts 200 to 700 W"),
        ({"model": "hf:llama-3.1-70b"}, "do not fit into .*use --tp 2, or --weights int4"),
        ({"model": "hf:bert-base-uncased"}, "bert does not generate token by token"),
        (
            {"model": "hf:resnet-18"},
            "no hidden_size; serving and layouts are",
        ),
        (
            {"model": "gpt2"},
            "are predicted from a configuration; use hf:NAME",
        ),
        ({"gpu": "k80"}, "has no matrix units"),
    ],
)
def test_what_cannot_be_served_is_refused_with_what_would_work(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        predict_serving(replace(QWEN, **change))  # type: ignore[arg-type]


def test_a_config_file_of_a_vision_language_model_is_read(tmp_path: Path) -> None:
    """Its language model is in `text_config`."""
    inner = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llava", "text_config": inner}))
    assert decoder_named(f"hf:{path}").hidden == 64


def test_sizes_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no hidden_size"):
        DecoderShape.of_config("x", {"model_type": "llama", "hidden_size": "many"})


TRANSFORMERS = ServingQuestion(
    model="hf:tinyllama-1.1b", engine="transformers", concurrency=32, prompt=1920, output=128
)


@pytest.fixture
def measured_llama(tmp_path: Path) -> str:
    """The model of benchmarks/data/h200/llm_inference.jsonl."""
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000}
    config = {"model_type": "llama", "max_position_embeddings": 8192, **sizes, **heads}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return f"hf:{path}"


def test_decode_steps_by_transformers_are_predicted(measured_llama: str) -> None:
    """Measured on an H200 with a cache of 3712 entries: 29.4 ms and 504 W at 32 sequences."""
    pytest.importorskip("transformers")
    question = replace(TRANSFORMERS, model=measured_llama, prompt=3584, cuda_graph=True)
    forecast = predict_serving(question)
    assert forecast.token_s == pytest.approx(29.4e-3, rel=0.12)
    assert forecast.power_w == pytest.approx(504, rel=0.15)
    assert next(iter(forecast.parts_s)) == "copies"  # keys and values, once per query head


def test_a_cuda_graph_removes_the_host(measured_llama: str) -> None:
    """Measured with one sequence: 25.1 ms eager, 3.8 ms replayed."""
    pytest.importorskip("transformers")
    one = replace(TRANSFORMERS, model=measured_llama, concurrency=1, prompt=3584)
    eager, graph = (predict_serving(replace(one, cuda_graph=is_on)) for is_on in (False, True))
    assert eager.token_s == pytest.approx(25.1e-3, rel=0.15)
    assert graph.token_s == pytest.approx(3.8e-3, rel=0.15)
    assert any("waits for the host" in note for note in eager.notes)
    assert eager.first_token_s == graph.first_token_s


def test_an_expert_without_a_token_is_not_read() -> None:
    pytest.importorskip("transformers")
    mixture = replace(TRANSFORMERS, model="hf:qwen3-30b-a3b", prompt=128, cuda_graph=True)
    few, many = (predict_serving(replace(mixture, concurrency=n)) for n in (1, 64))
    assert 0 < few.power_w < 700
    assert few.token_s < 0.6 * many.token_s


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 2}, "tp 2: .* one GPU; choose --tp 1, or --engine vllm"),
        ({"weights": "int4"}, "weights int4: .* choose bf16 or fp16, or --engine vllm"),
        ({"prompt": 4000}, "together more than the 2048 positions"),
        ({"concurrency": 200_000, "prompt": 512}, r"do not fit on NVIDIA H200; [0-9]+ fit"),
        ({"engine": "tgi"}, "engine tgi: unknown; choose one of vllm, transformers"),
        ({"engine": "vllm", "cuda_graph": True}, "cuda-graph: a server replays"),
        ({"model": "hf:opt-1.3b"}, "cannot be traced; choose --engine vllm"),
    ],
)
def test_what_transformers_cannot_do_is_refused(changes: dict[str, object], message: str) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ConfigError, match=message):
        predict_serving(replace(TRANSFORMERS, **changes))  # type: ignore[arg-type]


def test_as_many_requests_end_as_begin() -> None:
    """Little's law: requests in flight are the rate times the time of one; idle below one."""
    model, shape = ServingModel(gpu_named("h100-sxm")), decoder_named(QWEN.model)

    def forecast(requests: int) -> ServingForecast:
        return model.forecast(replace(QWEN, concurrency=requests), shape)

    before = 0.0
    for rate in (1e-6, 0.05, 0.5, 3.0, 9.0):
        steady = load_at_rate(forecast, rate, idle_w=70.0)
        assert steady.requests == pytest.approx(rate * steady.token_s * QWEN.output, rel=0.02)
        assert 70.0 <= before <= steady.power_w if before else steady.power_w < 71.0
        before = steady.power_w
    around = forecast(round(steady.requests))
    assert steady.power_w == pytest.approx(around.power_w, rel=0.02)
    with pytest.raises(ConfigError, match=r"500 requests/s of hf:qwen3-8b: 1 x .* at most \d+"):
        load_at_rate(forecast, 500.0, idle_w=70.0)
