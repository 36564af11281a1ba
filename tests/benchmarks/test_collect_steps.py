"""Promises of the collection of further networks: its cases, and the judge of unsteady steps."""

import json
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import collect_steps  # noqa: E402 - after the skip
from predict_errors import Outcome  # noqa: E402 - after the skip
from predict_fits import Judged  # noqa: E402 - after the skip
from predict_h200_unsteady import UNSTEADY, Unsteady, unsteady_bars, unsteady_table  # noqa: E402
from predict_later_nets import LATER, subject  # noqa: E402 - after the skip
from predict_zoo import Row  # noqa: E402 - after the skip
from wattloop.hardware.gpus import gpu_named  # noqa: E402 - after the skip
from wattloop.predict.calibrate.collection import records  # noqa: E402 - after the skip
from wattloop.predict.calibrate.steps import subject_workload  # noqa: E402 - after the skip
from wattloop.predict.calibrate.zoo.subject import NAMES  # noqa: E402 - after the skip
from wattloop.predict.models.model import MeasuredStep  # noqa: E402 - after the skip
from wattloop.predict.prediction import Placement, Prediction, Regime  # noqa: E402
from wattloop.predict.workload import Kind, Phase, Workload  # noqa: E402 - after the skip


def test_fresh_networks_are_new_and_known_ones_are_in_the_suite():
    """Otherwise constants would judge a network that they were fitted to."""
    fresh = {text.partition("@")[0] for text in collect_steps.FRESH}
    known = {text.partition("@")[0] for text in collect_steps.KNOWN}
    assert fresh == set(LATER)
    assert known <= set(NAMES)
    assert not fresh & set(NAMES)


@pytest.mark.parametrize("name", ["swin_tiny@224 16", "t5_small@256 4"])
def test_attention_with_a_trained_bias_is_traced_as_its_kernels_were_profiled(name):
    """Swin's windows are fused; T5's bias was a view, fused only where it is zeros."""
    pytest.importorskip("transformers", reason="networks are Hugging Face's")
    model, batch = name.split()
    profile = next(
        row
        for row in records(UNSTEADY)
        if row["record"] == "profile" and row["params"] == _params(model, batch)
    )
    ran = {kernel: count for kernel, count, _ in profile["kernels"]}
    fused = sum(count for kernel, count in ran.items() if kernel.startswith("fmha_cutlassF"))
    plain = sum(
        count for kernel, count in ran.items() if re.search("softmax_warp_forward.*false>", kernel)
    )
    workload = subject_workload(model, int(batch), "fp32", subject)
    traced = Counter()
    for op in workload.operations:
        if op.phase is Phase.FORWARD and not op.op.startswith("aten._log_softmax"):
            traced[op.kind] += op.count * op.calls
    assert fused > 0
    assert traced[Kind.ATTENTION] == fused
    assert traced[Kind.SOFTMAX] == plain


def _params(model, batch):
    return {"model": model, "batch": int(batch), "precision": "fp32"}


@pytest.mark.parametrize("part", ["steps", "recurrent", "half", "products", "convolutions", "held"])
def test_cases_of_a_part_differ(part):
    """A repeated case would be measured once and missed once."""
    cases = list(getattr(collect_steps, f"_{part}")())
    assert len({case.key for case in cases}) == len(cases) > 10


def test_networks_have_the_parameters_of_their_papers():
    """ResNet-20 has 0.27 million, the narrow LSTM 4 x 128 x (16 + 128 + 2) and its head."""
    with torch.device("meta"):
        sizes = {
            name: sum(p.numel() for p in subject(name).model.parameters())
            for name in ("resnet20_cifar@32", "lstm_long@400")
        }
    assert sizes["resnet20_cifar@32"] == pytest.approx(0.27e6, rel=0.02)
    assert sizes["lstm_long@400"] == 4 * 128 * (16 + 128 + 2) + 128 * 20 + 20


def test_the_cpu_tries_every_kind_of_record(tmp_path, monkeypatch):
    """A step with its power in pauses, its kernels, and a kernel."""
    monkeypatch.setattr(collect_steps, "_tiny", _two)
    out = tmp_path / "tried.jsonl"
    monkeypatch.setattr(sys, "argv", ["collect_steps", "--gpu", "cpu", "--out", str(out),
                                      "--parts", "steps", "products"])  # fmt: skip
    collect_steps.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["record"] for row in rows] == ["machine", "step", "profile", "kernel"]
    assert rows[1]["paused"]["period_s"] > rows[1]["paused"]["pause_s"] > 0
    assert not any(row.get("error") for row in rows)


def _two(name, cases):
    if name == "steps":
        return [collect_steps._step_case("lstm_long@3 2 fp32")]
    return [replace(cases[0], params={**cases[0].params, "b": 2})]


def test_a_second_sitting_is_judged_as_a_prediction_of_the_first():
    """10 ms measured, 12 ms in the other sitting, 11 ms predicted; the GPU waits."""
    point = MeasuredStep(Workload("net", ()), Placement(gpu_named("h200")), 0.010, 100.0, "net")
    row = Row("net@1", 1, "fp32", "adamw", 0.010, 100.0, 1.0, 0.0, 1980.0, 1)
    found = Prediction(0.011, 100.0, 1, Regime.LAUNCH, gpu_s=0.001, host_s=0.011)
    outcome = Outcome(row, "other", Judged(point, found), 0.011)
    pairs = {"time": (0.010, 0.012), "power": (100.0, 90.0), "energy": (1.0, 1.08)}
    unsteady = Unsteady([outcome], [outcome], {outcome.label: (pairs, True)})
    time, power, energy = unsteady_bars(unsteady)
    assert (time.value, time.baselines["other sitting"]) == pytest.approx((10.0, 20.0))
    assert power.baselines["other sitting"] == pytest.approx(10.0)
    assert energy.baselines["other sitting"] == pytest.approx(8.0)
    rows = {r[0]: r[1:] for r in unsteady_table(unsteady).rows}
    assert rows["the same steps in the other sitting: the GPU waits"][0] == 1
    assert "kernels, told one speed of the host: the GPU is busy" not in rows
