"""Promises of the benchmark of GPUs without a calibration."""

import importlib
import json
import os
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SHARED = Path(os.environ.get("WATTLOOP_SHARED_DATA") or BENCHMARKS.parents[1] / "shared" / "data")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch):
    """Load the program as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("predict_neusight")


def test_without_data_it_says_what_to_set(benchmark, tmp_path, monkeypatch, capsys) -> None:
    """Promise: missing data gives a clear message and exit code 2."""
    monkeypatch.setenv("WATTLOOP_SHARED_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["predict_neusight.py"])
    assert benchmark.main() == 2
    assert "WATTLOOP_SHARED_DATA" in capsys.readouterr().err


def test_each_gpu_is_predicted_by_the_others(benchmark, tmp_path, monkeypatch, capsys) -> None:
    """Promise: one network on four GPUs is judged with all peers, and better than by peaks."""
    if not (SHARED / "neusight" / "e2e.csv").is_file():
        pytest.skip("the rows of NeuSight are not here (WATTLOOP_SHARED_DATA)")
    pytest.importorskip("transformers", reason="rebuilds BERT")
    monkeypatch.setenv("WATTLOOP_SHARED_DATA", str(SHARED))
    out = tmp_path / "bars.json"
    monkeypatch.setattr(sys, "argv", ["predict_neusight.py", "--quick", "--json", str(out)])
    assert benchmark.main() == 0
    report = json.loads(out.read_text())
    bars = {bar["name"]: bar for bar in report["bars"]}
    baselines = bars["mean_error"]["baselines"]
    assert set(baselines) == {"NeuSight", "roofline", "Habitat", "Li", "our roofline", "peaks"}
    assert bars["mean_error"]["value"] < baselines["peaks"]
    assert len({row["gpu"] for row in report["rows"]}) == 4
    assert "What the other GPUs say" in capsys.readouterr().out


def test_flagged_and_compiled_rows_are_left_out(benchmark, tmp_path) -> None:
    """Promise: only clean eager rows are judged, in seconds; missing peers stay missing."""
    rows = importlib.import_module("neusight_rows")
    peers = [f"{name}_pred_ms" for name in rows.PEERS.values()]
    head = ["gpu", "model", "mode", "seq_len", "batch", "fusion", "measured_ms", "flag", *peers]
    lines = [
        ["T4", "bert", "inf", "512", "8", "0", "700", "", "800", "", "", ""],
        ["T4", "bert", "inf", "512", "8", "1", "600", "", "800", "", "", ""],
        ["T4", "bert", "inf", "512", "8", "0", "500", "doubtful", "800", "", "", ""],
    ]
    table = "\n".join(",".join(line) for line in [head, *lines])
    (tmp_path / "e2e.csv").write_text(table + "\n")
    (row,) = rows.read_rows(tmp_path)
    assert row.seconds == 0.7
    assert row.peers == {"NeuSight": 0.8}


def test_unknown_rows_are_named(benchmark, capsys) -> None:
    """Promise: an unknown GPU or network is left out with a message; a silent peer is not a
    zero.
    """
    rows = importlib.import_module("neusight_rows")
    tables = importlib.import_module("neusight_tables")
    sizes = rows.Network("BertLMHeadModel", 2, 64, 2, 128, 100, 64, "gelu")
    made = [
        rows.Row(gpu, network, False, 64, 1, 0.5, {"NeuSight": 0.4})
        for gpu, network in (
            ("Tesla_T4", "small"),
            ("Pair_of_T4", "small"),
            ("Tesla_T4", "experts"),
        )
    ]
    (known,) = benchmark._known(made, {"small": sizes})
    said = capsys.readouterr().err
    assert "Pair of T4" in said
    assert "experts" in said
    outcome = benchmark.Outcome(known, {"wattloop": 0.6, **known.peers})
    assert tables.errors_of([outcome], "NeuSight") == pytest.approx([-20])
    assert tables.errors_of([outcome], "Habitat") == []
