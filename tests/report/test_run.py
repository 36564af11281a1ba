"""Promises of the report on a run: its steps and phases, next to its energy."""

from pathlib import Path
from typing import Any

import pytest

from tests.integrations.test_serving import EVENT, TOTALS
from tests.integrations.test_stored_steps import EPOCH, PHASES, STEPS, add_run
from wattloop.core.table import Table
from wattloop.report.document import Chart, Facts, Paragraph
from wattloop.store.database import open_store
from wattloop.store.runs import find_run

pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")

from wattloop.report.figures.chart import spec_of
from wattloop.report.run import grid_facts, report_of_run


def step_section(
    folder: Path, *events: dict[str, Any], heading: str = "Steps and phases"
) -> dict[type, Any]:
    """Return the blocks of a section by kind, of steps by default; empty without the section."""
    with open_store(folder / "runs.db") as store:
        add_run(store, *events)
        document = report_of_run(store, find_run(store, "r1"))
    found = [s for s in document.sections if s.heading == heading]
    return {type(block): block for section in found for block in section.blocks}


def test_a_run_with_phases(tmp_path: Path) -> None:
    """Promise: cost of a step, sample and token; time, share and energy of each phase."""
    blocks = step_section(tmp_path, STEPS, PHASES)
    facts = {fact.label: fact.value for fact in blocks[Facts].facts}
    assert facts == {
        "Steps": "4",
        "Samples": "32",
        "Tokens": "1,200",
        "Energy per step": "300 J",
        "Time per step": "1.00 s",
        "Energy per sample": "37.5 J",
        "Samples per joule": "0.0267",
        "Energy per token": "1.00 J",
        "Tokens per joule": "1",
    }
    assert blocks[Table].rows == (
        ("start-up", "6.00 s", "60.0%", "300 J"),
        ("training", "4.00 s", "40.0%", "1.20 kJ (0.333 Wh)"),
    )


def test_the_curve_over_steps(tmp_path: Path) -> None:
    """Promise: joules of one step, also where a row stands for two; the loss where recorded."""
    blocks = step_section(tmp_path, STEPS, EPOCH)
    assert Table not in blocks
    energy, loss = spec_of(blocks[Chart].chart)["vconcat"]
    assert energy["data"]["values"] == [{"step": 1, "value": 300.0}, {"step": 3, "value": 300.0}]
    assert loss["data"]["values"] == [{"step": 1, "value": 2.0}, {"step": 3, "value": 1.0}]


def test_the_tokens_of_a_server(tmp_path: Path) -> None:
    """Promise: work, cost and rates; tokens per second and joules per token over time."""
    blocks = step_section(tmp_path, EVENT, TOTALS, heading="Tokens and requests")
    facts = {fact.label: (fact.value, fact.note) for fact in blocks[Facts].facts}
    assert facts["Generated tokens"][0] == "50"
    assert facts["Energy per generated token"][0] == "3.00 J"
    assert facts["Start-up"] == ("1.00 s", "40.0 J")
    assert "Requests" not in facts
    speed, cost = spec_of(blocks[Chart].chart)["vconcat"]
    assert speed["data"]["values"] == [{"time_s": 1, "value": 30.0}, {"time_s": 2, "value": 10.0}]
    assert [row["value"] for row in cost["data"]["values"]] == pytest.approx([50 / 30, 5.0])


def test_phases_without_steps(tmp_path: Path) -> None:
    """Promise: inferred phases are marked as such, without a cost per step."""
    blocks = step_section(tmp_path, PHASES | {"steps": 0, "step_j": None, "inferred": True})
    assert "inferred from GPU signals" in blocks[Paragraph].text
    assert Facts not in blocks
    assert [row[0] for row in blocks[Table].rows] == ["start-up", "training"]


def test_a_run_without_steps(tmp_path: Path) -> None:
    assert step_section(tmp_path) == {}


def test_equivalents_that_tell_nothing_are_left_out() -> None:
    """Promise: a run of seconds is not compared with 0.0003 charges of a smartphone."""
    small = {"amount": 0.0003, "unit": "charges", "text": "of a smartphone"}
    large = {"amount": 1.5, "unit": "h", "text": "of a 10 W LED lamp"}
    facts = grid_facts({"node": {"energy_j": 22.9}, "equivalents": [small, large]})
    assert facts is not None
    assert [f.value for f in facts.facts if f.label == "As much as"] == ["1.5 h of a 10 W LED lamp"]
    none = grid_facts({"node": {"energy_j": 22.9}, "equivalents": [small]})
    assert none is not None
    assert "As much as" not in [f.label for f in none.facts]
