"""Promises of docs/simulate.md: its code runs, and every option and field is on the page."""

import re
from pathlib import Path

import pytest
import typer

from wattloop.cli.commands.simulate.command import app
from wattloop.schedule.campaigns.summary import PER_CELL

PAGE = (Path(__file__).parents[3] / "docs" / "simulate.md").read_text()
EVERYWHERE = {"--store", "--config", "--quiet"}
"""Options of all verbs, explained in docs/cli.md."""


@pytest.mark.parametrize("word", ["run", "whatif"])
def test_every_option_is_explained(word: str) -> None:
    """A new option is on the page."""
    command = typer.main.get_command(app).commands[word]  # type: ignore[attr-defined] # a group
    options = {name for each in command.params for name in each.opts if name.startswith("--")}
    assert {name for name in options - EVERYWHERE if f"`{name}" not in PAGE} == set()


def test_every_promised_field_is_named() -> None:
    """They are the fields of a row of JSON, in its order."""
    written = re.sub(r"\s+", " ", PAGE)
    assert ", ".join(PER_CELL) in written


def test_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints a mean and a difference."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (code,) = (block for block in blocks if "run_campaign" in block)
    exec(compile(code, "docs/simulate.md", "exec"), {})
    energy, difference = map(float, capsys.readouterr().out.split())
    assert energy > 0
    assert abs(difference) < 1
