"""Promises of the frame: clear messages, right exit codes, no traceback."""

import os
import subprocess
from typing import Any

import pytest
import typer

from tests.cli.conftest import Machine
from wattloop.cli import main as entry
from wattloop.cli.app import VERBS
from wattloop.cli.commands.run.execution import WORDS, RunOptions, quick
from wattloop.core.errors import CommandError, ConfigError
from wattloop.version import __version__


def raising(error: BaseException) -> Any:
    def verb(words: list[str]) -> int:
        raise error

    return verb


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError("pue is wrong; use 1"), 2, "wattloop: pue is wrong; use 1\n"),
        (CommandError("x: not found", 127), 127, "wattloop: x: not found\n"),
        (
            PermissionError(13, "Permission denied", "/root/x"),
            2,
            "wattloop: /root/x: Permission denied; name another place, or allow this user to use "
            "it\n",
        ),
        (
            OSError(36, "File name too long", "x" * 300),
            2,
            f"wattloop: {'x' * 200}...: File name too long; name another place\n",
        ),
        (
            OSError(28, "No space left on device"),
            2,
            "wattloop: standard output or a file: No space left on device; make room, "
            "or name another place\n",
        ),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(5), 5, ""),
    ],
)
def test_error_becomes_one_message_and_a_code(
    error: BaseException,
    code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Errors on purpose are one line on standard error; ctrl-C is 130."""
    monkeypatch.setattr(entry, "_run_verb", raising(error))
    assert entry.main([]) == code
    assert capsys.readouterr().err == text


def test_unexpected_error_asks_for_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback unless WATTLOOP_DEBUG=1."""
    monkeypatch.setattr(entry, "_run_verb", raising(ZeroDivisionError("oops")))
    monkeypatch.delenv("WATTLOOP_DEBUG", raising=False)
    assert entry.main([]) == 70
    text = capsys.readouterr().err
    assert "ZeroDivisionError: oops" in text
    assert "WATTLOOP_DEBUG=1" in text
    assert "Traceback" not in text
    monkeypatch.setenv("WATTLOOP_DEBUG", "1")
    assert entry.main([]) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("runs", "list", "--json"), ("runs", "list", "--store"), ("simulate",)]
)
def test_a_name_that_is_too_long_is_no_fault_of_ours(
    here: Machine, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever it is looked for."""
    assert entry.main([*words, "x" * 300]) == 2
    assert "File name too long" in capsys.readouterr().err


def test_version_and_help(here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints the version; --help lists every verb."""
    assert entry.main(["--version"]) == 0
    assert capsys.readouterr().out == f"wattloop {__version__}\n"
    assert entry.main(["--help"]) == 0
    text = capsys.readouterr().out
    for verb in VERBS:
        assert verb in text
    assert "<bool>" not in text


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(here: Machine, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each verb loads and explains itself."""
    assert entry.main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Usage: wattloop {verb}" in text
    assert "<bool>" not in text  # a flag that looks as if it took a value


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("wattloop dev", {"devices"}),
        ("wattloop runs ex", {"export"}),
        ("wattloop tune resume --tri", {"--trials"}),
        ("wattloop simulate --po", {"--policies"}),
        ("wattloop simulate sc", {"scenarios"}),
        ("wattloop predict gpt2.json --prec", {"--precision"}),
        ("wattloop sweep caps.yaml --rep", {"--repeats"}),
    ],
)
def test_the_shell_completes_verbs_and_options(bare: Machine, line: str, wanted: set[str]) -> None:
    """The script of `wattloop --install-completion` calls the program at every press of TAB."""
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    done = bare.wattloop(_WATTLOOP_COMPLETE="complete_bash", **asked)
    assert (set(done.stdout.decode().split()), done.stderr) == (wanted, b"")


def test_wrong_verb_suggests_the_right_one(
    here: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing mistake is answered with the nearest verb and code 2."""
    assert entry.main(["devces"]) == 2
    assert "Did you mean 'devices'?" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("devices",), ("devices", "--json", "-"), ("--help",)])
def test_closed_pipe_is_quiet(bare: Machine, words: tuple[str, ...]) -> None:
    """`wattloop devices | head -0` ends as `yes | head` does, without a complaint."""
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(
        bare.command(*words), env=bare.environment, stdout=theirs, stderr=subprocess.PIPE,
        check=False,
    )  # fmt: skip
    os.close(theirs)
    assert (done.returncode, done.stderr) == (141, b"")


def test_closed_output_is_no_fault(bare: Machine) -> None:
    """`wattloop devices >&-` has nowhere to write, and ends well."""
    words = " ".join(bare.command("devices"))
    done = subprocess.run(
        ["sh", "-c", f"{words} >&-"], env=bare.environment, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_letters_that_the_terminal_does_not_have_are_spelt(bare: Machine) -> None:
    """An ASCII output gets an escape for ±, not a fault."""
    done = bare.wattloop("runs", "compare", "--help", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    bare.wattloop("run", "--name", "größe ±", "true")
    done = bare.wattloop("runs", "list", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert rb"gr\xf6\xdfe \xb1" in done.stdout
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {**bare.environment, **ascii_only}
    command = bare.command("runs", "show")
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"gr\xf6\xdfe \xb1" in done.stdout


def test_quick_parser_knows_exactly_the_documented_options() -> None:
    """The fast way into `run` and its help are the same options."""
    from wattloop.cli.commands.run.command import app

    command = typer.main.get_command(app)
    documented = {
        word: parameter.name
        for parameter in command.params
        if parameter.name != "command"
        for word in parameter.opts
    }
    documented.pop("--help", None)
    assert documented.pop("-j") == "as_json"  # the parser takes it for --json -
    assert documented == WORDS
    assert quick(["-j", "true"]) == (["true"], RunOptions(json_file="-"))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--", "a", "-b"], (["a", "-b"], RunOptions())),
        (["a", "--name", "b"], (["a", "--name", "b"], RunOptions())),
        (["--name=x", "-q", "a"], (["a"], RunOptions(name="x", quiet=True))),
        (["-t", "k=v", "--tag=l=w", "--", "--x"], (["--x"], RunOptions(tag=["k=v", "l=w"]))),
        (["--follow", "--", "--", "a"], (["--", "a"], RunOptions(follow=True))),
        ([], None),
        (["--"], None),
        (["--help"], None),
        (["--name"], None),
        (["-qn", "x", "a"], None),
        (["--quiet=1", "a"], None),
    ],
)
def test_quick_parser(words: list[str], wanted: tuple[list[str], RunOptions] | None) -> None:
    """Plain lines are understood; anything else is left to the full parser."""
    assert quick(words) == wanted
