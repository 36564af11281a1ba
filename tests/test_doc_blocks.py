"""Promises of all blocks in the documentation: commands exist, and every output has its test."""

import functools
import importlib
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from wattloop.cli.app import VERBS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted(DOCS.glob("*.md")),
    *sorted((DOCS / "explain").glob("*.md")),
    *sorted((DOCS / "meters").glob("*.md")),
    *sorted((DOCS / "tutorials").glob("*.md")),
]


class Block(NamedTuple):
    """A code block of a page; the language of an indented block is empty."""

    page: str
    line: int
    language: str
    lines: list[str]


@functools.cache
def blocks() -> list[Block]:
    return [block for page in PAGES for block in _blocks(page)]


def _blocks(page: Path) -> list[Block]:
    name, found = page.relative_to(ROOT).as_posix(), []
    lines = page.read_text("utf-8").splitlines()
    here, before = 0, ""
    while here < len(lines):
        fence = re.match(r"\s*```(\S*)", lines[here])
        end = here + 1
        if fence:
            while not lines[end].strip().startswith("```"):
                end += 1
            found.append(Block(name, here + 1, fence[1] or "plain", lines[here + 1 : end]))
            here, before = end + 1, ""
            continue
        if lines[here].startswith("    ") and not before.strip():
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            text = [line[4:] for line in lines[here:end]]
            found.append(Block(name, here + 1, "", text))
            here, before = end, ""
            continue
        before, here = lines[here], here + 1
    return found


def commands(block: Block) -> list[str]:
    """Return the command lines of `wattloop` in a block, without comments."""
    text = "\n".join(block.lines).replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        command = re.match(r"\s*(?:\$ )?(?:sudo )?(?:\w+=\S+ )*(wattloop [a-z].*)", line)
        if command:
            found.append(re.split(r"\s+#|\s{3,}", command[1])[0])
    return found


@functools.cache
def command_of(verb: str) -> Any:
    module = importlib.import_module(f"wattloop.cli.commands.{VERBS[verb][0]}")
    return typer.main.get_command(module.app)


def options_of(command: Any) -> set[str]:
    """Return the options of a command; those of a group include its commands' options."""
    found = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    for below in getattr(command, "commands", {}).values():
        found |= options_of(below)
    return found


def faults_of(line: str) -> list[str]:
    """Return the verbs and options of a command line that do not exist."""
    line = re.sub(r"[\[\]]|\.\.\.", " ", line)
    words = shlex.split(line.partition(" -- ")[0])[1:]
    verbs = words[0].split("|")
    faults = []
    for verb in verbs:
        if verb not in VERBS:
            return [f"{line}: no verb {verb}"]
        command, rest = command_of(verb), words[1:]
        while rest and hasattr(command, "commands"):
            names = rest[0].split("|")
            if not all(name in command.commands for name in names):
                if len(names) > 1:
                    faults.append(f"{line}: no such commands {names}")
                break
            command, rest = command.commands[names[0]], rest[1:]
            if len(names) > 1:
                break
        if verb in ("run", "set") and "--" not in line:
            rest = rest[:1]
        known = {"--help", *options_of(command)}
        given = [word.partition("=")[0] for word in rest if re.match(r"--?[a-zA-Z]", word)]
        faults += [f"{line}: no option {each}" for each in given if each not in known]
    return faults


def test_every_command_of_the_documentation_exists() -> None:
    """A renamed verb or option is renamed on the pages."""
    lines = [(block, line) for block in blocks() for line in commands(block)]
    assert len(lines) > 150
    assert [f"{b.page}:{b.line}: {f}" for b, line in lines for f in faults_of(line)] == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("wattloop rum -- true", "no verb rum"),
        ("wattloop runs lst|show", "no such commands"),
        ("wattloop sweep show last --tabels all", "no option --tabels"),
        ("wattloop simulate thesis-pareto --polices fifo", "no option --polices"),
    ],
)
def test_a_mistake_in_a_command_is_found(line: str, fault: str) -> None:
    assert [each for each in faults_of(line) if fault in each]
