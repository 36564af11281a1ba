"""Promises of the judge of models on measured H200 steps, on traces written by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from predict_errors import Outcome, bias, mean_error, parts
from predict_fits import Judged
from predict_h200_floor import drawn_again, floor_bars
from predict_h200_fresh import fresh_bars, fresh_table, judge_fresh, newest_networks
from predict_h200_intervals import Covered, hindsight_table
from predict_h200_repeats import repeat_bar, repeat_table
from predict_points import Measured, trace_path
from predict_zoo import Row
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.models.model import MeasuredStep
from wattloop.predict.models.roofline import Roofline
from wattloop.predict.prediction import Placement, Prediction
from wattloop.predict.workload.costs import elementwise, gemm
from wattloop.predict.workload.files import save_workload
from wattloop.predict.workload.operation import Phase
from wattloop.predict.workload.workload import Workload

ROOT = Path(__file__).parents[2]
MODELS = {"lstm_household@60": 256, "mlp_4096x6": 4096, "resnet18@32": 512}


def written(folder: Path) -> list[Row]:
    """Write rows of three networks, in the shared format, and traces of one product and one sum
    each.
    """
    made = []
    for model, width in MODELS.items():
        for batch in (64, 512):
            made.append(
                Row(model, batch, "fp32", "adamw", 1e-3 * batch, 300, 0.3 * batch, 1e9, 1980, 1)
            )
            operations = (
                gemm(1, batch, width, width, dtype="fp32"),
                elementwise(batch * width, 2, 1, dtype="fp32"),
            )
            workload = Workload(model, operations, optimizer="adamw", batch=batch, peak_bytes=9e8)
            save_workload(workload, trace_path(made[-1], folder))
    return made


def test_models_are_judged_on_networks_they_have_not_seen(tmp_path: Path) -> None:
    """Promise: rows on disk give all promised bars with their limits and baselines."""
    (tmp_path / "gpu").mkdir()
    columns = ("model", "batch", "precision", "optimizer", "step_s")
    lines = []
    for row in written(tmp_path):
        raw = {name: getattr(row, name) for name in columns}
        raw |= {"avg_power_w": row.power_w, "energy_j_per_step": row.energy_j, "peak_mem_gib": 1}
        lines.append(json.dumps({**raw, "sm_clock_mhz": 1980, "params": 1}))
    (tmp_path / "gpu" / "h200_train_steps.jsonl").write_text("\n".join(lines))
    target = tmp_path / "bars.json"
    done = subprocess.run(
        [
            sys.executable, str(ROOT / "benchmarks" / "predict_h200.py"), "--quick",
            "--models", "kernels,roofline", "--json", str(target),
        ],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "WATTLOOP_SHARED_DATA": str(tmp_path),
            "WATTLOOP_BENCHMARK_TRACES": str(tmp_path),
        },
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    bars = {bar["name"]: bar for bar in json.loads(target.read_text())["bars"]}
    limits = {"time_mean": 11.0, "time_median": 7.0, "power_mean": 7.0, "energy_mean": 8.0}
    for name, limit in limits.items():
        assert bars[name]["bar"] == limit
        assert isinstance(bars[name]["value"], float)
        assert set(bars[name]["baselines"]) == {"roofline", "prototype"}
    for quantity in ("time", "power", "energy"):
        assert bars[f"interval_{quantity}_covers"]["bar"] == 85
        assert bars[f"interval_{quantity}_width_over_error"]["bar"] == 3


def outcome(step_s: float, predicted_s: float, host_s: float, family: str = "other") -> Outcome:
    row = Row("net", 8, "bf16", "adamw", step_s, 100.0, 100 * step_s, 1e9, 1980, 1)
    point = MeasuredStep(Workload("net", ()), Placement(gpu_named("h200")), step_s, 100.0, "net")
    return Outcome(row, family, Judged(point, Prediction(predicted_s, 110.0)), host_s)


def test_errors_are_relative_to_measurements_and_bias_has_a_sign() -> None:
    """Promise: mean of absolute errors, signed bias, energy from time and power together."""
    found = [outcome(1.0, 1.2, 0), outcome(2.0, 1.8, 0)]
    assert round(mean_error(found, "time") or 0, 6) == 15.0
    assert round(bias(found, "time") or 0, 6) == 5.0
    assert round(100 * found[0].error("energy"), 6) == 32.0
    assert mean_error([], "time") is None


def test_regimes_are_separated_by_the_measured_step() -> None:
    """Promise: host-bound from 70% of the measured step; families only where the GPU binds."""
    quick = outcome(1.0, 5.0, 0.69, "transformer")
    slow = outcome(1.0, 5.0, 0.7, "transformer")
    split = parts([quick, slow])
    assert split["GPU-bound transformers"] == [quick]
    assert split["host-bound"] == [slow]
    assert len(split["all"]) == 2


def test_rows_that_make_the_same_calls_show_the_noise_of_the_host() -> None:
    """Promise: host-bound rows of a network are repeats, and their scatter is stated."""
    waiting = [outcome(10e-3, 12e-3, 12e-3), outcome(12e-3, 12e-3, 12e-3)]
    busy = outcome(10e-3, 10e-3, 1e-3)
    bar = repeat_bar([*waiting, busy])
    assert bar is not None
    assert bar.value == pytest.approx(100 * (2 / 10 + 2 / 12) / 2)
    assert bar.baselines["kernels"] == pytest.approx(10)
    assert len(repeat_table([*waiting, busy]).rows) == 1
    assert repeat_bar([busy]) is None


def test_floors_of_the_host_give_rows_with_the_same_calls_one_time() -> None:
    """Promise: the same rows give the best time in hindsight, the others' time and ours."""
    rows = [outcome(10e-3, 12e-3, 12e-3), outcome(12e-3, 12e-3, 12e-3), outcome(1.0, 1.0, 0)]
    seen, worst, others = floor_bars(rows)
    assert seen.value == pytest.approx(100 * (0 + 2 / 12) / 2)
    # 120/11 ms is as much above 10 ms as it is below 12 ms
    assert worst.value == pytest.approx(100 / 11)
    assert worst.baselines["kernels"] == pytest.approx(20)
    assert others.value == pytest.approx(100 * (2 / 10 + 2 / 12) / 2)
    assert seen.baselines["kernels"] == others.baselines["kernels"] == pytest.approx(10)
    assert floor_bars(rows[2:]) == []
    assert drawn_again(rows[:2]) == pytest.approx((10, 10))


def test_scales_known_in_hindsight_give_narrower_intervals() -> None:
    """Promise: one scale is set by the largest error; with known regimes each has its own."""
    rows = [outcome(1.0, 1.01, 0.0) for _ in range(6)] + [outcome(1.0, 1.3, 0.9) for _ in range(4)]
    stated = dict.fromkeys(("time", "power", "energy"), Covered(90.0, 30.0, 10.0))
    one, regime, *_, last = hindsight_table(rows, stated).rows
    assert one[2] == pytest.approx(100 * (1.3 - 1 / 1.3) / 12.6)
    assert regime[2] == pytest.approx(100 * (1.01 - 1 / 1.01) / 12.6)
    assert last[2] == 3.0


def test_fresh_networks_are_judged_by_earlier_constants(monkeypatch) -> None:
    """Promise: constants never saw the newest sitting; other steps of it give its host's speed."""
    gpu, model = gpu_named("h200"), KernelModel()

    def measured(name: str, width: int, sitting: str, speed: float) -> Measured:
        operations = tuple(
            gemm(1, 64, width, width, dtype="fp32", count=200, phase=phase)
            for phase in (Phase.FORWARD, Phase.BACKWARD)
        )
        work = Workload(name, operations, optimizer="adamw", batch=64, peak_bytes=1e9)
        at = model.predict(work, Placement(gpu, host_speed=speed))
        row = Row(name, 64, "fp32", "adamw", at.step_s, at.power_w, at.energy_j, 1e9, 1980, 1)
        point = MeasuredStep(work, Placement(gpu), row.step_s, row.power_w, name, host=sitting)
        return Measured(row, "other", point, sitting)

    twelve = [measured(f"n{width}", width, "", 1.0) for width in (64, 96, 128)]
    before = [measured(f"m{width}", width, "suite_1", 1.0) for width in (80, 112)]
    newest = [measured(name, 72, "suite_2", 0.5) for name in ("m80", "new_a", "new_b")]
    own = [*before, *newest]
    assert [m.row.model for m in newest_networks(own)] == ["new_a", "new_b"]

    seen: list[set[str]] = []
    fit = KernelModel.fit
    monkeypatch.setattr(
        KernelModel,
        "fit",
        lambda self, points: seen.append({p.host for p in points}) or fit(self, points),
    )
    fresh = judge_fresh({"kernels": model, "roofline": Roofline()}, twelve, own)
    assert seen and not any("suite_2" in hosts for hosts in seen)
    told, untold = mean_error(fresh.outcomes["kernels"], "time"), mean_error(fresh.untold, "time")
    assert told < 6
    assert untold > 40
    bars = {bar.name: bar for bar in fresh_bars(fresh)}
    limits = {"time_mean": 11, "time_median": 7, "power_mean": 7, "energy_mean": 8}
    assert {name: bar.bar for name, bar in bars.items()} == {
        f"fresh_{name}": limit for name, limit in limits.items()
    }
    assert set(bars["fresh_time_mean"].baselines) == {"roofline"}
    assert "2 steps of 2 networks" in bars["fresh_time_mean"].note
    assert set(fresh.covered) == {"time", "power", "energy"}
    assert fresh.untold_covered["time"].share < fresh.covered["time"].share
    rows = fresh_table(fresh).rows
    assert [row[0] for row in rows][:3] == [
        "kernels", "roofline", "kernels, not told how quick the host was",
    ]  # fmt: skip
