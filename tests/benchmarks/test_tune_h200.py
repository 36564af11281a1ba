import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the benchmark trains with PyTorch")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tune_h200.py"


def run(tmp_path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "PYTHONPATH": str(SCRIPT.parents[1] / "src"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "WATTLOOP_STORE": str(tmp_path / "runs.db"),
    }
    command = [sys.executable, str(SCRIPT), "--docs", str(tmp_path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def test_small_trainings_make_every_table_and_the_page(tmp_path) -> None:
    """Promise: all scenarios and searches run on any machine, and files become the page."""
    file = tmp_path / "found.json"
    done = run(tmp_path, "--quick", "--seeds", "1", "--json", str(file))
    assert done.returncode == 0, done.stderr
    data = json.loads(file.read_text())
    assert {bar["name"] for bar in data["bars"]} >= {"parity_sm2_lstm", "parity_race_resnet18"}
    for name, found in data["scenarios"].items():
        kinds = [(t["kind"], t["seed"]) for t in found["trainings"]]
        assert kinds == [
            *(("vanilla", 0), ("sm2-0.75", 0)),
            *(("race", 0), ("sm2-1", 0)),
        ], name
        for training in found["trainings"]:
            if training["kind"] != "race":  # such a short training may never reach a target
                assert training["finished"] and not training["message"], (name, training)
    assert len(data["loader"]) == 6
    again = run(tmp_path, "--from-json", str(file))
    assert again.returncode == 0, again.stderr
    page = (tmp_path / "tune_h200.md").read_text()
    assert "table 1 of Geißler et al." in page and "LSTM, household" in page
    assert "What SM2 chose first" in page


def test_the_published_page_is_what_the_kept_files_make(tmp_path) -> None:
    """Promise: no figure of the page is written by hand, and every choice has its rate."""
    kept = SCRIPT.parent / "data" / "h200"
    names = ("resnet18", "lstm", "transformer", "transformer_adamw")
    files = [str(kept / f"tune_{name}.json.gz") for name in names]
    done = run(tmp_path, "--from-json", *files)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "tune_h200.md").read_text()
    published = SCRIPT.parents[1] / "docs" / "benchmarks" / "tune_h200.md"
    assert page == published.read_text()
    assert "| ResNet-18, images | race, seed 0 | 512 | 0.05 |" in page


def test_a_search_broken_by_its_own_rates_says_so(monkeypatch) -> None:
    """Promise: where SM2 loses quality after rates that broke survivors, the page says which
    ones.
    """
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from tune_h200_sm2 import first_choices, why_lost

    def segment(candidate: str, *, sweep: bool, quality: float, rate: float | None = None) -> dict:
        size = {"c0": 16, "c1": 32, "c2": 2048}[candidate]
        return {
            "candidate": candidate,
            "batch_size": size,
            "sweep": sweep,
            "quality": quality,
            "rate": rate,
            "epochs": 5.0,
        }

    swept = [segment(name, sweep=True, quality=200.0) for name in ("c0", "c1", "c2")]
    trained = [
        segment("c0", sweep=False, quality=9e4, rate=0.005),
        segment("c2", sweep=False, quality=150.0, rate=0.01),
        segment("c2", sweep=False, quality=90.0, rate=0.003),
    ]
    found = {
        "facts": {"title": "Transformer", "rate": 5e-4, "maximize": False},
        "trainings": [
            {
                "kind": "sm2-0.75",
                "segments": swept + trained,
                "parameters": {"batch_size": 2048},
            }
        ],
    }
    rows = first_choices({"transformer": found}).rows
    assert [row[1:4] for row in rows] == [[16, "0.005", "10x"], [2048, "0.01", "20x"]]
    assert why_lost(found, 170.0).startswith("1 of the 2 configurations")
    assert "batch size 2048" in why_lost(found, 170.0)
    assert why_lost(found, 0.5) == "" and why_lost(found, None) == ""


def test_without_a_gpu_it_says_what_to_do(tmp_path) -> None:
    """Promise: without a GPU there is a message, not a traceback."""
    done = run(tmp_path)
    assert done.returncode == 2
    assert "--quick" in done.stderr
