"""Promises of the benchmark of oracles."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import oracle_speed


def test_every_figure_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: batches of placements against single ones, a table, a new process and noise."""
    file = tmp_path / "bars.json"
    monkeypatch.setattr(sys, "argv", ["oracle_speed", "--quick", "--json", str(file)])
    assert oracle_speed.main() == 0
    found = {bar["name"]: bar for bar in json.loads(file.read_text())["bars"]}
    # a ratio within one run does not depend on the load of the machine
    assert found["options_200_ms"]["baselines"]["one by one"] > 5 * found["options_200_ms"]["value"]
    assert all(bar["value"] > 0 for bar in found.values())
