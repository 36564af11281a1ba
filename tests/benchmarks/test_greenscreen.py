"""Promises of the page of GreenScreen's ten parameters, from a table with known effects."""

import csv
import importlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from wattloop.tune.spec import read_spec

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "greenscreen.py"


def made(path: Path) -> None:
    """Return eighty runs in which only batch size 4 and pre-quantisation cost energy."""
    rng = random.Random(0)
    spec = read_spec(str(ROOT / "examples" / "greenscreen" / "short.yaml"))
    rows = []
    for _ in range(80):
        drawn = {name: rng.choice(p.values or []) for name, p in spec.parameters.items()}
        energy_j = 100 + 300 * (drawn["batch_size"] == 4) + rng.gauss(0, 3)
        energy_j += 200 * (drawn["internal"] == "pre_quantization")
        accuracy = 0.9 if drawn["batch_size"] == 128 else rng.uniform(0.1, 0.3)
        results = {"energy_j": energy_j, "time_s": energy_j / 10, "power_w": 10.0, "epochs": 4}
        quality = dict.fromkeys(("accuracy", "val_accuracy", "test_accuracy"), accuracy)
        rows.append(drawn | results | quality | {"loss": 1 - accuracy, "weight_bytes": 20_000})
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def test_the_tables_of_the_report_find_the_causes_of_energy(tmp_path: Path) -> None:
    """Promise: tops, OLS with a row per level, matrix and clusters, from a search or its export."""
    for library in ("scipy", "sklearn"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    made(tmp_path / "runs.csv")
    target = tmp_path / "bars.json"
    words = ["--table", str(tmp_path / "runs.csv"), "--json", str(target), "--docs", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    bars = {bar["name"]: bar for bar in json.loads(target.read_text())["bars"]}
    assert bars["runs"]["value"] == 80
    assert bars["r2"]["value"] > bars["cross_validated_r2"]["value"] > 0.95
    assert bars["r2"]["baselines"] == {"paper": "0.942"}
    page = (tmp_path / "greenscreen.md").read_text()
    for title in ("Highest accuracy", "OLS of the energy", "Levels by where", "Means of clusters"):
        assert f"## {title}" in page
    lines = [line.split("|") for line in page.splitlines() if line.startswith("| ")]
    coefficients = {line[1].strip(): line[2].strip() for line in lines if "_" in line[1]}
    # sum coding: 300 J at one of four levels is +225 there and -75 at the others
    assert float(coefficients["batch_size_4"]) == pytest.approx(225, abs=5)
    assert float(coefficients["internal_pre_quantization"]) == pytest.approx(150, abs=5)
    assert abs(float(coefficients["optimizer_Adam"])) < 5


def test_a_table_without_its_columns_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Promise: exit code 2 and the missing column, no traceback."""
    (tmp_path / "runs.csv").write_text("lr,energy_j\n1,2\n2,3\n")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--table", str(tmp_path / "runs.csv"), "--quick"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no column" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_full_size_asks_for_a_gpu_and_its_measured_energy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: 100 runs of ten parameters in the scope of the GPU; without one no run begins."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    greenscreen = importlib.import_module("greenscreen")
    words = ["--full", "--store", str(tmp_path / "runs.db")]
    monkeypatch.setattr(greenscreen, "has_gpu", lambda: False)
    assert greenscreen.main(words) == 2
    assert "--full needs a GPU" in capsys.readouterr().err
    begun: list[tuple[str, ...]] = []
    monkeypatch.setattr(greenscreen, "has_gpu", lambda: True)
    monkeypatch.setattr(greenscreen, "wattloop", lambda _, *given: begun.append(given))
    assert greenscreen.main(words) == 2  # nothing was trained, so no search can be shown
    ((*_, spec, option, scope),) = begun
    assert (option, scope) == ("--scope", "gpu")
    read = read_spec(spec)
    assert (read.limits.trials, len(read.parameters)) == (100, 10)
