"""Promises of steps over many GPUs: the effect of each parallelism on time, memory and energy."""

from dataclasses import replace
from typing import Any

import pytest

from wattloop.hardware.gpus import gpu_named
from wattloop.predict.parallel.layout import Links
from wattloop.predict.parallel.model import (
    ParallelForecast,
    ParallelModel,
    ParallelQuestion,
    model_flops,
)
from wattloop.predict.serving import decoder_named

MODEL = ParallelModel(gpu_named("h100-sxm"))
LLAMA = decoder_named("hf:llama-3.1-8b")


def forecast(layout: str, **fields: Any) -> ParallelForecast:
    question = ParallelQuestion(model=LLAMA, layout=layout, seq=4096, **fields)
    return MODEL.forecast(question)


def test_sharding_divides_what_its_stage_says() -> None:
    copies, first, third = (forecast(f"dp=8,zero={zero}").memory for zero in (0, 1, 3))
    parameters = LLAMA.parameters
    assert copies["weights"] == pytest.approx(2 * parameters, rel=0.01)
    assert copies["optimizer"] == pytest.approx(12 * parameters, rel=0.01)
    assert first["weights"] == copies["weights"]
    assert first["optimizer"] == pytest.approx(copies["optimizer"] / 8)
    # Fully sharded: fp32 weights, gradients and two states, 16 bytes over 8 GPUs.
    sharded = third["weights"] + third["gradients"] + third["optimizer"]
    assert sharded == pytest.approx(16 * parameters / 8, rel=0.01)


def test_hybrid_sharding_keeps_a_copy_per_group_and_gathers_inside_it() -> None:
    whole, hybrid = forecast("fsdp=64"), forecast("hsdp=8x8")
    assert hybrid.memory["optimizer"] == pytest.approx(8 * whole.memory["optimizer"])
    slow = Links.of(gpu_named("h100-sxm"), network_bytes_s=25e9)
    many = {"links": slow, "global_batch": 512}
    assert forecast("hsdp=8x8", **many).step_s < 0.5 * forecast("fsdp=64", **many).step_s


def test_checkpointing_trades_time_for_memory() -> None:
    none, full = (forecast("fsdp=8", micro_batch=2, checkpointing=c) for c in ("none", "full"))
    assert full.memory["activations"] < 0.2 * none.memory["activations"]
    # A forward pass without its last product: between a fifth and a third more.
    assert 1.15 < full.step_s / none.step_s < 1.35


def test_tensor_parallelism_divides_weights_and_costs_exchange() -> None:
    one, four = forecast("dp=1"), forecast("tp=4")
    assert four.memory["weights"] == pytest.approx(one.memory["weights"] / 4, rel=0.01)
    assert "tensor parallel exchange" in four.parts_s
    assert sum(four.parts_j.values()) == pytest.approx(four.step_s * four.power_w)
    assert four.parts_j["backward"] > four.parts_j["forward"] > four.parts_j["optimizer"] > 0
    assert one.step_s / 4 < four.step_s < one.step_s
    narrow = forecast("tp=4,sp")
    assert narrow.memory["activations"] < four.memory["activations"]


def test_more_micro_batches_and_interleaving_shrink_the_bubble() -> None:
    def share(layout: str, batch: int) -> float:
        found = forecast(layout, global_batch=batch)
        return found.parts_s["pipeline bubble"] / found.step_s

    few, many = share("pp=4", 4), share("pp=4", 32)
    # (p - 1) / (m + p - 1), up to the differences of stages
    assert few == pytest.approx(3 / 7, rel=0.15)
    assert many == pytest.approx(3 / 35, rel=0.2)
    assert share("pp=4,interleave=4", 32) < 0.4 * many


def test_context_parallelism_divides_activations_of_a_sequence() -> None:
    one, two = forecast("cp=1,dp=1"), forecast("cp=2")
    assert two.memory["activations"] == pytest.approx(one.memory["activations"] / 2, rel=0.05)
    assert one.step_s / 2 < two.step_s < 0.75 * one.step_s


def test_experts_are_divided_and_tokens_exchanged() -> None:
    shape = decoder_named("hf:mixtral-8x7b")
    base = ParallelQuestion(model=shape, layout="fsdp=8", seq=4096)
    whole, divided = (
        MODEL.forecast(replace(base, layout=layout))
        for layout in ("dp=8,zero=1", "dp=8,zero=1,ep=8")
    )
    assert divided.memory["weights"] < 0.25 * whole.memory["weights"]
    assert "expert parallel exchange" in divided.parts_s
    assert divided.active_parameters < 0.3 * divided.parameters


def test_a_slower_network_and_slower_hops_take_longer() -> None:
    gpu = gpu_named("h100-sxm")
    usual, slow, late = (
        forecast("fsdp=64", links=Links.of(gpu, **given))
        for given in ({}, {"network_bytes_s": 25e9}, {"hop_s": 5e-3})
    )
    assert slow.step_s > 2 * usual.step_s
    assert late.step_s > 10 * usual.step_s


def test_power_while_exchanging_counts() -> None:
    slow = Links.of(gpu_named("h100-sxm"), network_bytes_s=25e9)
    resting, busy = (forecast("fsdp=64", links=slow, exchange_w=watts) for watts in (None, 490.0))
    assert busy.step_s == resting.step_s
    assert resting.power_w + 100 < busy.power_w < 700


def test_a_cap_lowers_clock_and_energy() -> None:
    free, capped = forecast("fsdp=8", micro_batch=2), forecast("fsdp=8", micro_batch=2, cap_w=400)
    assert capped.power_w <= 401
    assert capped.clock_mhz < free.clock_mhz
    assert capped.step_s > free.step_s
    assert capped.energy_j < free.energy_j


def test_fp8_is_quicker_and_never_by_more_than_two() -> None:
    bf16, fp8 = (
        forecast("fsdp=8", micro_batch=2, precision=p, kernels="fused") for p in ("bf16", "fp8")
    )
    assert 1.1 < bf16.step_s / fp8.step_s < 2.0


def test_flops_follow_the_rule_of_six() -> None:
    # 6 N and attention: s / 2 pairs per token, 12 l h each
    expected = 6 * (8.03e9 - 128256 * 4096) + 12 * 32 * 4096 * 2048
    assert model_flops(LLAMA, 4096) == pytest.approx(expected, rel=0.01)


def test_intervals_are_wider_for_mixtures_of_experts() -> None:
    """Nine of ten published trainings lie within; the answer for programs has it as well."""
    dense, experts = (
        MODEL.forecast(ParallelQuestion(model=f"hf:{name}", layout="fsdp=8", seq=1024))
        for name in ("llama-3.1-8b", "gpt-oss-20b")
    )
    for found in (dense, experts):
        low, high, confidence = found.step_interval
        assert low * high == pytest.approx(found.step_s**2) and confidence == 0.9
        assert found.to_dict()["step_interval_s"] == [low, high]
    wider, narrow = (each.step_interval.high / each.step_s for each in (experts, dense))
    assert wider > 2 and 1.2 < narrow < 1.3
