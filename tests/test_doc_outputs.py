"""Promises of printed outputs in the documentation: the commands print today what the pages show.

Pages for newcomers are followed as a whole in test_transcripts.py. Here are single blocks: those
whose figures follow from their input must agree to the last digit, the others in shape.
"""

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.analyze import synthetic_runs
from tests.support.transcripts import Session, Step, not_printed, steps_of
from tests.test_doc_blocks import blocks
from wattloop.cli.main import main

ROOT = Path(__file__).parents[1]


def steps_on(page: str) -> list[Step]:
    """Commands of a page with the lines below them, in fences or indented."""
    texts = ["\n".join(block.lines) for block in blocks() if block.page == page]
    return [step for text in texts if re.search(r"^\$ ", text, re.M) for step in steps_of(text)]


def step_on(page: str, beginning: str) -> Step:
    (found,) = (step for step in steps_on(page) if step.command.startswith(beginning))
    return found


def differing(step: Step, printed: list[str]) -> list[str]:
    """Lines that are shown and not printed, to the digit; `...` stands for the rest of a line."""
    plain = [re.sub(r"\s+", " ", line).strip() for line in printed]
    missing = []
    for line in step.shown:
        text = re.sub(r"\s+", " ", line).strip()
        pattern = re.escape(text).replace(re.escape("..."), ".*")
        if text and not any(re.fullmatch(pattern, each) for each in plain):
            missing.append(line)
    return missing


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, a store and a configuration of their own."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WATTLOOP_STORE", str(tmp_path / "runs.db"))
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.chdir(tmp_path)
    return tmp_path


EXACT = [
    ("docs/analyze.md", "wattloop analyze top", "greenscreen"),
    ("docs/analyze.md", "wattloop analyze ols", "greenscreen"),
    ("docs/analyze.md", "wattloop analyze matrix", "greenscreen"),
    ("docs/analyze.md", "wattloop analyze clusters", "cali3"),
    ("docs/simulate.md", "wattloop simulate thesis-pareto --policies pollux,chronos", ""),
    ("docs/simulate.md", "wattloop simulate thesis-pareto --policies pollux,themis", ""),
    ("docs/simulate.md", "wattloop simulate whatif thesis-pareto", ""),
    ("docs/predict-compiled.md", "wattloop predict --model hf:gpt2 --seq 1024 --batch 8 --precision bf16 --compile", ""),
    ("docs/predict-compiled.md", "wattloop predict --model hf:gpt2 --seq 1024 --batch 8 --precision bf16 --sweep", ""),
    ("docs/predict-serving.md", "wattloop predict serve --model hf:llama", ""),
    ("docs/predict-serving.md", "wattloop predict serve --model hf:tinyllama", ""),
]
"""Page, beginning of the command, table of generated runs that it reads."""


@pytest.mark.parametrize(("page", "beginning", "table"), EXACT)
def test_figures_of_a_page_are_those_of_today(
    page: str, beginning: str, table: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same input gives the same figures, on every machine."""
    needs = {"analyze": ("sklearn",), "predict": ("torch", "transformers")}
    for library in needs.get(beginning.split()[1], ()):
        pytest.importorskip(library, reason=f"{library} is not installed")
    if table:
        synthetic_runs.main(table)
        (here / f"{table}.csv").write_text(capsys.readouterr().out)
    step = step_on(page, beginning)
    words = shlex.split(step.command)[1:]
    if "--plot" in words:  # the figures have tests of their own
        at = words.index("--plot")
        words = words[:at] + words[at + 2 :]
    if words[0] == "simulate":
        words += ["--workers", "1"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    shown = Step(step.command, tuple(x for x in step.shown if "figures in" not in x))
    assert differing(shown, [*out.splitlines(), *err.splitlines()]) == []
