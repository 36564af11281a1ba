"""Promises of every help page: groups, examples that parse, the same short options."""

import importlib
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from wattloop.cli.app import GROUPS, VERBS, app
from wattloop.cli.main import main

ROOT = typer.main.get_command(app)
NAMES = ["Measure", "Save", "Find", "Predict", "Schedule", "Share", "Operate"]


def leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield every command without further commands, with its words."""
    if not getattr(command, "commands", None):
        yield " ".join(path), command
    for name, each in getattr(command, "commands", {}).items():
        yield from leaves(each, (*path, name))


LEAVES = {
    words: command
    for verb, (module, _) in VERBS.items()
    for words, command in leaves(
        typer.main.get_command(importlib.import_module(f"wattloop.cli.commands.{module}").app),
        (verb,),
    )
}


def examples(command: Any) -> list[str]:
    lines = (command.epilog or "").split("\n\n")
    return [line for line in lines if line.startswith("wattloop ")]


def test_verbs_are_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    """Promise: `--help` shows seven groups in order, and every verb in one of them."""
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert re.findall(r"─ (\w+) ─", text) == ["Options", *NAMES]
    assert list(GROUPS) == NAMES
    for verb in VERBS:
        assert re.search(rf"│ {verb} ", text)


def test_a_verb_with_a_usual_command_says_where_its_options_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Promise: `predict --help` has no options of its own, and names the page that has them."""
    assert main(["predict", "--help"]) == 0
    assert "its options: wattloop predict run --help" in capsys.readouterr().out


@pytest.mark.parametrize("words", LEAVES)
def test_every_page_has_an_example_that_parses(words: str) -> None:
    """Promise: each page ends with a command of its own, whose options and arguments exist."""
    found = examples(LEAVES[words])
    assert found
    for example in found:
        arguments = shlex.split(example)[1:]
        ctx = ROOT.make_context("wattloop", arguments)
        path = []
        while getattr(ctx.command, "commands", None):
            rest = [*ctx._protected_args, *ctx.args]
            name, command, rest = ctx.command.resolve_command(ctx, rest)
            path.append(name)
            ctx = command.make_context(name, rest, parent=ctx)
        assert " ".join(path) == words


@pytest.mark.parametrize("words", LEAVES)
def test_short_options_mean_the_same_everywhere(words: str) -> None:
    """Promise: -j prints JSON, -q is quiet, -o names what is written."""
    options = {
        name: option.opts[0] for option in LEAVES[words].params for name in option.opts if name
    }
    assert options.get("-q") == "--quiet"
    if "--json" in options:
        assert options.get("-j") == "-j"
    assert options.get("-o") in (None, "--output", "--csv", "--out", "--plot")
    for name in ("--csv", "--out", "--plot"):
        if name in options:
            assert options.get("-o") == name
    if options.get("--output") and words != "predict serve":  # there it counts tokens
        assert options.get("-o") == "--output"


def test_quiet_prints_results_and_errors_only(
    capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: -q leaves out notes on standard error, not the result, nor an error."""
    monkeypatch.setenv("WATTLOOP_STORE", str(tmp_path / "runs.db"))
    assert main(["runs", "list"]) == 0
    assert "no runs yet" in capsys.readouterr().err
    assert main(["runs", "list", "-q"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["runs", "show", "-q"]) == 2
    assert "no runs yet" in capsys.readouterr().err
    assert main(["simulate", "scenarios", "-q"]) == 0
    assert "thesis-pareto" in capsys.readouterr().out


def test_j_is_json_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    """Promise: -j prints what `--json -` prints, and a named file stays the target."""
    assert main(["simulate", "scenarios", "--json", "-"]) == 0
    long = capsys.readouterr().out
    assert main(["simulate", "scenarios", "-j"]) == 0
    assert capsys.readouterr().out == long
