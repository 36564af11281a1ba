"""Promises of the benchmark of cap curves: it judges the rows it has, and reports missing ones."""

import csv
import json
import subprocess
from pathlib import Path

import pytest
from tests.benchmarks.running import run_benchmark

from wattloop.cap.evaluation import COLUMNS
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.cap_curve import cap_curve


def _run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_benchmark("predict_caps", "--quick", *options, WATTLOOP_SHARED_DATA=str(folder))


def test_without_data_it_says_what_to_set(tmp_path: Path) -> None:
    """Missing data gives a clear message."""
    done = _run(tmp_path)
    assert done.returncode == 2
    assert "WATTLOOP_SHARED_DATA" in done.stderr


def test_curves_made_by_the_model_have_no_error_and_others_have(tmp_path: Path) -> None:
    """Errors are those of the rows below the highest cap, and baselines are judged alike."""
    caps, gpu = (100.0, 150.0, 200.0, 250.0), gpu_named("v100-pcie-16")
    curve = cap_curve([10.0, 20.0], [120.0, 220.0], caps, gpu)
    folder = tmp_path / "zeus_nsdi23"
    folder.mkdir()
    with (folder / "power_v100.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row, network in enumerate(("small", "large")):
            for column, cap_w in enumerate(caps):
                point = (curve.step_s[row, column], curve.power_w[row, column])
                writer.writerow(("data", network, 8, "sgd", cap_w, *point))
    done = _run(tmp_path, "--json", "-")
    assert done.returncode == 0, done.stderr
    bars = {bar["name"]: bar for bar in json.loads(done.stdout)["bars"]}
    assert bars["time_error"]["value"] == pytest.approx(0.0, abs=0.01)
    assert bars["power_error_v100"]["value"] == pytest.approx(0.0, abs=0.1)
    assert bars["power_error"]["baselines"]["no effect"] > 5
