"""Promises of docs/predict.md: every command in it runs, and prints the shown tables."""

import re
import shlex
from pathlib import Path

import pytest

from tests.test_readme import blocks, shape
from wattloop.cli.main import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "predict.md").read_text()


def commands() -> list[list[str]]:
    """Return each command with the lines shown below it."""
    return [
        part.rstrip("\n").splitlines()
        for block in blocks("console", PAGE)
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    ]


def test_every_command_of_the_page_runs_and_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They run one after the other, as a newcomer follows them, in one folder."""
    for library in ("torch", "transformers", "vl_convert"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    (own,) = (code for code in blocks("python", PAGE) if "def make" in code)
    Path("models.py").write_text(own)
    lines = commands()
    assert len(lines) >= 9
    for command, *shown in lines:
        assert main(shlex.split(command)[1:]) == 0, command
        out, err = capsys.readouterr()
        printed = [*out.splitlines(), *err.splitlines()]
        for line in shown:
            if line and not re.search(r"\d", line.replace("90%", "")):  # values may change
                found = any(shape(line).fullmatch(p) for p in printed)
                assert found, (command, line, printed)
    assert Path("batches.svg").read_text().startswith("<svg")


def test_the_page_shows_the_example_itself() -> None:
    """The code on the page is the file that the tests run, in twenty lines."""
    text = (ROOT / "examples" / "predict_step.py").read_text()
    code = text.partition('"""\n\n')[2]
    assert f"```python\n{code}```" in PAGE
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 20


def test_the_readme_shows_a_command_of_the_page() -> None:
    """The README's command runs as part of the page."""
    readme = (ROOT / "README.md").read_text()
    shown = re.findall(r"^    \$ (wattloop predict .*)$", readme, re.MULTILINE)
    assert shown
    assert set(shown) <= {lines[0] for lines in commands()}


def test_the_keys_of_the_page_are_those_of_the_json(tmp_path: Path) -> None:
    """Every key of the JSON is described."""
    from tests.predict.small import small_workload
    from wattloop.predict import predict

    described = set(re.findall(r"`(\w+)`", PAGE))
    missing = set(predict(small_workload(), steps=3, node=True).to_dict()) - described
    assert missing == set()
