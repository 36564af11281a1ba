"""Promises of the benchmark of scaling: single-GPU rows are inputs, only the link is fitted."""

import csv
import json
import subprocess
from pathlib import Path

import pytest
from tests.benchmarks.running import run_benchmark

from wattloop.predict.communication import Ring, exchange

PARAMETERS = {"bert": 109_483_778, "vgg16": 138_357_544}


def _run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_benchmark("predict_scaling", "--quick", *options, WATTLOOP_SHARED_DATA=str(folder))


def test_without_data_it_says_what_to_set(tmp_path: Path) -> None:
    """Missing data gives a clear message."""
    done = _run(tmp_path)
    assert done.returncode == 2
    assert "WATTLOOP_SHARED_DATA" in done.stderr


def test_a_table_made_by_the_model_gives_its_link_back(tmp_path: Path) -> None:
    """Each network is judged with the link of the other one, which here is the same."""
    link = (50e9, 20e-6)
    folder = tmp_path / "cluster"
    folder.mkdir()
    with (folder / "elasticflow_throughputs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("gpu_type", "model", "global_batch", "gpus", "steps_per_s"))
        for model, parameters in PARAMETERS.items():
            for batch in (64, 128):
                for gpus in (1, 2, 4, 8):
                    alone_s = 0.02 + 0.001 * batch / gpus
                    done = exchange(4.0 * parameters, alone_s * 2 / 3, Ring(gpus, *link))
                    step_s = alone_s + float(done.exposed_s)
                    writer.writerow(("A100", model, batch, gpus, 1 / step_s))
    done = _run(tmp_path, "--json", "-")
    assert done.returncode == 0, done.stderr
    bars = {bar["name"]: bar for bar in json.loads(done.stdout)["bars"]}
    assert bars["speedup_error"]["value"] == pytest.approx(0.0, abs=0.1)
    assert bars["speedup_error"]["baselines"]["perfect scaling"] > 20
    assert bars["speedup_error"]["baselines"]["no communication"] > 2
    assert "50 GB/s, 20 us" in done.stderr
