"""Promises of a forecast: throughput, energy, cost and memory follow from the prediction."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.predict.small import small_workload
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.predict.comparison import ComparisonPoint, best_points, points_data, unsure_gpus
from wattloop.predict.forecaster import Forecaster
from wattloop.predict.prediction import Interval, Regime
from wattloop.predict.request import Question
from wattloop.predict.run_total import RunLength
from wattloop.predict.workload.files import save_workload
from wattloop.predict.workload.operation import Kind, Operation, Phase


def answer(**asked: Any) -> Any:
    return Forecaster().answer(Question(**{"model": small_workload(), "gpu": "h200", **asked}))


def test_throughput_and_energy_count_all_gpus() -> None:
    """Samples and joules are of all GPUs together, and power is that of one."""
    one, four = answer(), answer(gpus=4)
    assert one.throughput_samples_s == pytest.approx(32 / one.prediction.step_s)
    assert four.throughput_samples_s == pytest.approx(4 * 32 / four.prediction.step_s)
    per_gpu_j = four.prediction.power_w * four.prediction.step_s
    assert four.prediction.energy_j == pytest.approx(4 * per_gpu_j)
    assert four.energy_j_per_sample == pytest.approx(four.prediction.energy_j / 128)
    buckets = four.memory.needed_bytes - one.memory.needed_bytes
    assert buckets == pytest.approx(12 * 2**20)  # gradients once more


def test_accumulation_makes_the_step_larger() -> None:
    """Four passes a step use four times the samples, and less than four times the time."""
    one, four = answer(), answer(accumulate=4)
    assert four.samples == 4 * one.samples
    assert 1 < four.prediction.step_s / one.prediction.step_s < 4


def test_a_slower_host_lengthens_what_waits_for_it() -> None:
    """Dispatch takes 1 / speed as long, and the GPU's time stays; other models warn of no
    effect.
    """
    usual, slow = answer(), answer(host_speed=0.5)
    assert slow.prediction.host_s == pytest.approx(2 * usual.prediction.host_s)
    assert slow.prediction.gpu_s == pytest.approx(usual.prediction.gpu_s)
    assert slow.prediction.step_s > usual.prediction.step_s
    assert (usual.to_dict()["host_speed"], slow.to_dict()["host_speed"]) == (1.0, 0.5)
    assert not slow.warnings
    assert any(note.startswith("host: as quick as the calibrated one") for note in usual.notes)
    assert not any(note.startswith("host:") for note in slow.notes)
    told = answer(host_speed=1.0)
    assert usual.prediction.step_interval.high > 1.1 * told.prediction.step_interval.high
    assert usual.prediction.step_interval.low == told.prediction.step_interval.low
    other = answer(host_speed=0.5, estimator="roofline")
    assert "roofline knows no host: host-speed changes nothing" in other.warnings


def test_a_model_without_a_host_term_ignores_its_speed() -> None:
    """ADEPT may be launch-bound, too, but has no host term, so it ignores `host_speed`."""
    found = answer(estimator="adept")
    assert found.prediction.regime is Regime.LAUNCH
    assert not any(note.startswith("host:") for note in found.notes)


def test_what_does_not_fit_is_predicted_and_said_by_how_much() -> None:
    """Too large a batch is a warning with the missing bytes, not an error."""
    forecast = answer(model=small_workload(peak_bytes=200e9))
    assert not forecast.fits
    data = forecast.to_dict()
    assert data["short_bytes"] == data["memory_bytes"] - data["available_bytes"] > 50e9
    assert forecast.all_warnings[0].startswith("memory: does not fit: needs 196 GiB of 139 GiB")
    assert forecast.prediction.step_s > 0


def test_json_has_the_documented_keys() -> None:
    """Programs may rely on these names."""
    data = answer(cap_w=500).to_dict()
    for key in (
        "step_s", "power_w", "energy_j_per_step", "throughput_samples_s", "memory_bytes", "fits",
        "intervals", "regime", "terms_s", "gpu", "gpus", "model", "precision", "batch", "warnings",
        "provenance", "scope", "calibrated", "estimator", "notes", "cap_w", "host_speed",
    ):  # fmt: skip
        assert key in data, key
    assert data["provenance"] == "predicted"
    assert data["scope"] == "gpu"
    assert data["cap_w"] == 500
    assert set(data["intervals"]) == {"step_s", "power_w", "energy_j_per_step"}


def test_a_compiled_step_has_a_time_to_compile_and_its_graphs_are_of_one_shape() -> None:
    """Only `reduce-overhead` records graphs; an eager step has nothing to compile."""
    eager, plain, graphs = (
        answer(model=small_workload(compile_mode=mode))
        for mode in ("", "default", "reduce-overhead")
    )
    assert eager.compile_s is None
    assert plain.compile_s > 0
    assert plain.to_dict()["compile"] == "default"
    assert [any("CUDA graph" in n for n in f.notes) for f in (eager, plain, graphs)] == [
        False, False, True,
    ]  # fmt: skip


def test_a_cuda_graph_takes_the_host_less_than_kernels_one_by_one() -> None:
    many = small_workload().operations * 40
    plain, graphs = (
        answer(model=replace(small_workload(compile_mode=mode), operations=many))
        for mode in ("default", "reduce-overhead")
    )
    assert graphs.prediction.host_s < plain.prediction.host_s / 2


def test_operations_of_like_layers_are_taken_together() -> None:
    """The list of the longest operations has a layer's operation once, for all layers."""
    top = answer().top_operations_s
    assert "backward layers.*.linear aten.mm 1x4096x1024x1024" in top
    assert list(top.values()) == sorted(top.values(), reverse=True)


def test_a_saved_workload_answers_the_same(tmp_path: Path) -> None:
    """A trace of another machine predicts the same here."""
    save_workload(small_workload(), tmp_path / "small.json")
    saved = answer(model=str(tmp_path / "small.json"))
    assert saved.prediction.step_s == answer().prediction.step_s


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"batch": 64}, "batch 64: small was traced with batch 32"),
        ({"precision": "fp32"}, "precision fp32: small was traced with precision bf16"),
        ({"seq": 128}, "seq 128: small is traced already"),
        ({"training": False}, "was traced for training; trace the model itself with --inference"),
        ({"gpu": "h201"}, "gpu h201: no GPU called 'h201'"),
        ({"cap_w": 1000}, "cap 1000: the NVIDIA H200 can be set to 200 to 700 W"),
        ({"cap_w": 50}, "cap 50: the NVIDIA H200 can be set to 200 to 700 W"),
        ({"clock_mhz": 9000}, "clock 9000: the NVIDIA H200 runs at up to 1980 MHz"),
        ({"precision": "fp64"}, "precision fp64: unknown; choose one of fp32, tf32, bf16, fp16"),
        ({"optimizer": "lion"}, "optimizer lion: unknown; choose one of"),
        ({"style": "slow"}, "style slow: unknown; choose one of loop, foreach, fused"),
        ({"compile": "max-autotune"}, "compile max-autotune: choose one of none, default, reduce-"),
        ({"compile": "default"}, "compile default: small was traced with compile none"),
        ({"gpus": 0}, "gpus 0: must be a whole number of at least 1"),
        ({"samples_s": 0.0}, "samples-per-second 0: must be above 0"),
        ({"network_bytes_s": 0.0}, "network 0 Gbit/s: must be above 0"),
        ({"host_speed": 0.0}, "host-speed 0: 1 is the calibrated host's"),
        ({"host_speed": float("nan")}, "host-speed nan: 1 is the calibrated host's"),
        ({"estimator": "oracle"}, "estimator oracle: unknown; choose one of kernels"),
        ({"estimator": "adept", "gpu": "v100"}, "estimator adept: fitted for h200, not for v100"),
        ({"calibration": "none.json"}, "calibration none.json: no such file"),
        ({"model": "none.json"}, "model none.json: no such file"),
    ],
)
def test_a_wrong_question_names_the_field(asked: dict[str, Any], said: str) -> None:
    """Each error names the wrong part and the right form."""
    with pytest.raises(ConfigError) as refused:
        answer(**asked)
    assert said in str(refused.value)


def test_a_broken_workload_or_calibration_is_an_error(tmp_path: Path) -> None:
    """A corrupted file is named with its field, and how to make it again."""
    (tmp_path / "w.json").write_text('{"format": "wattloop-workload", "version": 99}')
    with pytest.raises(ConfigError, match="field 'version' is 99"):
        answer(model=str(tmp_path / "w.json"))
    (tmp_path / "c.json").write_text("garbage")
    with pytest.raises(ConfigError, match="not a readable constants file"):
        answer(calibration=str(tmp_path / "c.json"))
    with pytest.raises(ConfigError, match="cannot be read"):
        answer(estimator="roofline", calibration=str(tmp_path / "c.json"))


def test_a_calibration_of_another_gpu_is_refused(tmp_path: Path) -> None:
    """Constants of an A100 do not answer for an H200."""
    from wattloop.predict.models.kernels import KernelConstants

    KernelConstants(gpu="a100-sxm-80").save(tmp_path / "c.json")
    with pytest.raises(ConfigError, match="its field gpu says a100-sxm-80, but h200 is asked"):
        answer(calibration=str(tmp_path / "c.json"))
    own = answer(gpu="a100", calibration=str(tmp_path / "c.json"))
    assert own.is_calibrated
    assert any("'a100' is taken as a100-sxm-80" in note for note in own.notes)


def test_a_users_file_is_separate_from_the_table(tmp_path: Path) -> None:
    """A GPU of the same name with another bandwidth has another result in one session."""
    own = tmp_path / "h200.yaml"
    own.write_text("memory_bytes_s: 1.0e12\n")
    workload, forecaster = small_workload(), Forecaster()
    steps = [
        forecaster.answer(Question(model=workload, gpu=gpu)).prediction.gpu_s
        for gpu in ("h200", str(own), "h200")
    ]
    assert steps[0] == steps[2] < steps[1]


def test_the_baseline_answers_too_and_says_that_it_is_not_calibrated() -> None:
    """Roofline from the data sheet is shorter than kernels, and warned about."""
    baseline = answer(estimator="roofline")
    assert not baseline.is_calibrated
    assert baseline.prediction.step_s < answer().prediction.step_s
    assert any("takes all peaks as reached" in warning for warning in baseline.all_warnings)


def test_a_gpu_without_the_precision_is_warned_about() -> None:
    """A V100 has no bfloat16 units."""
    assert any("no bfloat16 units" in w for w in answer(gpu="v100").all_warnings)


def test_operations_without_a_rule_are_warned_about() -> None:
    """Where they move much of the bytes, the result is less certain, and says so."""
    strange = Operation("my.op", Kind.OTHER, Phase.FORWARD, bytes_read=1e9, ruled=False)
    workload = small_workload()
    workload = replace(workload, operations=(*workload.operations, strange))
    warnings = answer(model=workload).all_warnings
    assert any("operations without a cost rule" in warning for warning in warnings)
    assert not any("cost rule" in warning for warning in answer().all_warnings)


def test_the_best_point_fits_into_memory() -> None:
    """A point that does not fit is never recommended."""
    points = [
        ComparisonPoint(
            {"batch": batch}, answer(model=small_workload(batch=batch, peak_bytes=peak))
        )
        for batch, peak in ((32, 1e9), (64, 2e9), (128, 500e9))
    ]
    best = best_points(points)
    assert best["least energy per sample"].setting == {"batch": 64}
    assert points_data(points)["best"]["most samples per second"] == {"batch": 64}
    assert best_points(points[2:]) == {}


def test_gpus_whose_intervals_overlap_are_named() -> None:
    """The best of several GPUs is not claimed to be certain; on one GPU errors are alike."""

    def point(gpu: str, low: float, high: float) -> ComparisonPoint:
        forecast = answer(gpu=gpu)
        middle = Interval(low, high)
        watts = (low + high) / 2 / forecast.prediction.step_s
        made = replace(forecast.prediction, energy_interval=middle, power_w=watts)
        return ComparisonPoint({"gpu": gpu}, replace(forecast, prediction=made))

    best, near, far = point("h200", 1, 3), point("h100", 2, 6), point("a100", 4, 9)
    assert unsure_gpus([near, best, far]) == ["h100-sxm"]
    assert unsure_gpus([best, far]) == []
    assert unsure_gpus([best, point("h200", 2, 6)]) == []


def test_a_workload_is_traced_once_in_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs, caps and GPU counts do not need another trace."""
    import wattloop.predict.forecaster as module

    found: list[Question] = []

    def counted(question: Question, *, cache: bool) -> Any:
        found.append(question)
        return small_workload()

    monkeypatch.setattr(module, "request_workload", counted)
    forecaster = Forecaster()
    question = Question(model="hf:any", gpu="h200")
    for name, value in (("gpu", "a100"), ("cap", 300.0), ("gpus", 4)):
        forecaster.answer(question.varied(name, value))
    assert len(found) == 1
    forecaster.answer(question.varied("batch", 16))
    assert len(found) == 2


def test_a_run_adds_up_its_steps_with_cost_and_carbon() -> None:
    """Steps of epochs count all GPUs; cost and carbon are of the energy with the room's PUE."""
    settings = Settings(tariff_per_kwh=0.2, zone="FRA", pue=1.5, sources={"pue": "flag"})
    step = answer(gpus=2)
    whole = RunLength(epochs=3, samples=640, settings=settings).of(step)
    assert whole.run is not None
    assert whole.run.steps == 30
    assert whole.run.energy_j.value == pytest.approx(30 * step.prediction.energy_j)
    data = whole.to_dict()["run"]
    kwh = 1.5 * whole.run.energy_j.value / 3.6e6
    assert data["cost"]["value"] == pytest.approx(0.2 * kwh)
    assert data["carbon_g"]["value"] > 0
    assert data["scope"] == "gpu"


def test_a_node_draws_more_than_its_gpus() -> None:
    """The run is then of the node, and says so."""
    step = answer(gpus=8)
    whole = RunLength(steps=10, node=True).of(step)
    assert whole.node is not None and whole.run is not None
    assert whole.node.power_w > 8 * step.prediction.power_w
    assert whole.run.scope == "node"
    assert whole.run.energy_j.value == pytest.approx(10 * whole.node.energy_j)
    stated = RunLength(node=True, settings=Settings(node_overhead_w=5000.0)).of(step)
    assert stated.node is not None
    assert stated.node.power_w > whole.node.power_w


@pytest.mark.parametrize(
    ("extent", "said"),
    [
        ({"steps": 5, "epochs": 1.0}, "steps 5: give the number of steps, or epochs and samples"),
        ({"epochs": 1.0}, "epochs 1: give samples as well"),
        ({"samples": 9}, "samples 9: give epochs as well"),
        ({"steps": 0}, "steps 0: must be above 0"),
    ],
)
def test_an_extent_that_makes_no_sense_is_an_error(extent: dict[str, Any], said: str) -> None:
    """Either steps or epochs, and more than zero."""
    with pytest.raises(ConfigError) as refused:
        RunLength(**extent)
    assert said in str(refused.value)


def test_any_model_may_be_sharded_and_no_layer_of_it_divided() -> None:
    copies, sharded = answer(gpus=8), answer(parallel="fsdp=8")
    assert sharded.placement.gpus == 8
    assert sharded.memory.needed_bytes < copies.memory.needed_bytes
    assert sharded.prediction.terms_s["communication"] > 0
    with pytest.raises(ConfigError, match=r"layers are divided for decoder-only .* fsdp=8"):
        answer(parallel="tp=2,dp=4")


def test_slow_hops_and_power_while_exchanging_are_asked_for() -> None:
    plain, slow = answer(gpus=8), answer(gpus=8, hop_s=10e-3)
    hot = answer(gpus=8, hop_s=10e-3, exchange_w=500)
    assert slow.prediction.step_s > plain.prediction.step_s + 0.1
    assert hot.prediction.power_w > slow.prediction.power_w + 100
    with pytest.raises(ConfigError, match="exchange-power 900: more than the 700 W"):
        answer(gpus=8, exchange_w=900)
