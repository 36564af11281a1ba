"""Promises of the benchmark of campaigns."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import campaign_speed


def test_every_figure_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: runs with one and with two worker processes give the same events."""
    file = tmp_path / "bars.json"
    monkeypatch.setattr(sys, "argv", ["campaign_speed", "--quick", "--json", str(file)])
    assert campaign_speed.main() == 0
    found = {bar["name"]: bar["value"] for bar in json.loads(file.read_text())["bars"]}
    assert found.pop("differing_events") == 0
    assert all(value > 0 for value in found.values())
