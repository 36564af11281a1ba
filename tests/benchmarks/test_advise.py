"""Promises of `benchmarks/advise.py`: its runs repeat, and its page has the bars."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_runs_repeat_and_their_caps_are_those_of_the_card() -> None:
    """The same seed gives the same runs with every kind of fault; another seed gives others."""
    script = (
        "from advise_runs import cases\n"
        "first, again, other = cases(7), cases(7), cases(8)\n"
        "assert first == again and first != other\n"
        "assert len({case.fault for case in first if case.fault}) == 6\n"
        "assert sum(not case.fault for case in first) == 40\n"
    )
    path = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY / "benchmarks")])
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=300)


def test_the_page_has_the_bars_of_the_issue() -> None:
    """Other programs look for these names; the published page meets both bars."""
    page = (REPOSITORY / "docs" / "benchmarks" / "advise.md").read_text()
    rows = [line.split("|")[1:6] for line in page.splitlines() if line.startswith("| fa")]
    bars = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
    assert bars["faults_named"][2:] == [">= 90", "yes"]
    assert bars["false_advice"][2:] == ["<= 5", "yes"]
