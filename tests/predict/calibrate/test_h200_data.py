"""Promises of the samples of the H200 that the repository holds."""

import json
from pathlib import Path
from statistics import fmean

import pytest

from wattloop.predict.calibrate.collection import records
from wattloop.predict.calibrate.suite import cases

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
DATA = BENCHMARKS / "data" / "h200"


@pytest.fixture(scope="module")
def rows():
    return [row for path in sorted(DATA.glob("suite_*.jsonl.gz")) for row in records(path)]


def test_every_sample_is_a_case_of_the_suite(rows):
    """A measurement can be repeated: the suite still has each case."""
    sections = ("kernels", "host", "power", "steps", "waiting")
    known = {case.key for section in sections for case in cases(section)}
    taken = {row["case"] for row in rows if row["record"] in ("kernel", "host", "power", "step")}
    assert taken <= known
    assert len(taken) > 11_000


def test_samples_name_their_machine(rows):
    """A calibration holds for a GPU, a driver and a version of torch."""
    machines = [row for row in rows if row["record"] == "machine"]
    assert {row["gpu"] for row in machines} == {"NVIDIA H200"}
    assert all(row["driver"] and row["torch"] and row["cudnn"] for row in machines)


def test_kernels_were_timed_steadily(rows):
    """Rounds of one kernel differ by less than 2% in nine of ten cases."""
    spreads = sorted(row["spread"] for row in rows if row["record"] == "kernel")
    assert spreads[int(0.9 * len(spreads))] < 0.02


def test_the_newest_steps_have_the_hosts_own_time(rows):
    """Every phase's dispatch, and probes before and after, for all of `waiting` and the last 60."""
    asked = [row for row in rows if row["record"] == "step" and row.get("host_s")]
    assert len(asked) == 126
    assert {tuple(row["host_s"]) for row in asked} == {("forward", "backward", "optimizer")}
    assert all(len(row["probes"]) == 2 and len(row["marks_s"]) >= 3 for row in asked)
    rounds = [row["round"] for row in asked if row["case"].startswith("waiting")]
    assert sorted(rounds) == [1] * 22 + [2] * 22 + [3] * 22


def test_host_bound_steps_are_predicted_better_with_the_hosts_speed(monkeypatch):
    """docs/predict.md states for a host: 27% off untold, 10 and 21% at the neighbouring speeds."""
    pytest.importorskip("transformers", reason="networks are Hugging Face's")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from predict_later_nets import subject  # T5 as it was measured
    from wattloop.hardware.gpus import gpu_named
    from wattloop.predict.calibrate.steps import subject_workload
    from wattloop.predict.models.kernels import KernelModel
    from wattloop.predict.prediction import Placement

    lines = (DATA / "host_speed.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    before, after = (row["speed"] for row in found if row["record"] == "host_speed")
    steps = [row for row in found if row["record"] == "step"]
    assert len(steps) == 16 and not any(row["error"] for row in steps)
    gpu = gpu_named("h200")
    model = KernelModel.for_gpu(gpu)
    traced = [
        subject_workload(row["model"], row["batch"], row["precision"], subject) for row in steps
    ]

    def off_pct(speed: float) -> float:
        place = Placement(gpu, host_speed=speed)
        predicted_s = [model.predict(workload, place).step_s for workload in traced]
        return 100 * fmean(
            abs(s / row["step_s"] - 1) for s, row in zip(predicted_s, steps, strict=True)
        )

    errors = [off_pct(1.0), off_pct(round(before, 2)), off_pct(round(after, 2))]
    assert errors == pytest.approx([26.9, 20.9, 9.8], abs=0.2)
