"""Promise of docs/study.md: it shows the output that the commands print today."""

import importlib.util
import sys
from pathlib import Path

import pytest
from tests.benchmarks.running import REPOSITORY


def test_the_baseline_of_the_page_is_that_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line of step 2, except the campaign's identifier, which contains a time."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "src"))
    place = REPOSITORY / "benchmarks" / "study_thesis.py"
    spec = importlib.util.spec_from_file_location("study_thesis", place)
    assert spec is not None
    assert spec.loader is not None
    study_thesis = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "study_thesis", study_thesis)
    spec.loader.exec_module(study_thesis)
    page = (REPOSITORY / "docs" / "study.md").read_text("utf-8")
    lines = study_thesis.run_steps(tmp_path, ("baseline",)).splitlines()
    missing = [line for line in lines if "campaign-" not in line and f"    {line}" not in page]
    assert [line for line in missing if line] == []
