"""Promises of shell completion: names in every shell, quickly, and nothing is changed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import SRC
from wattloop.cli.main import main
from wattloop.store.database import open_store
from wattloop.store.experiments import Experiment, create_experiment
from wattloop.store.runs import RunRecord, insert_run

SHELLS = ("bash", "zsh", "fish")
HEAVY = ("sqlalchemy", "numpy", "torch", "pandas", "vl_convert")


def completed(
    shell: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Ask as the shell's script does; return what the program answers."""
    for name, value in asked(shell, line).items():
        monkeypatch.setenv(name, value)
    assert main([]) == 0
    return capsys.readouterr().out


def asked(shell: str, line: str) -> dict[str, str]:
    words = line.split(" ")
    return {
        "_WATTLOOP_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "runs.db"
    with open_store(str(place)) as opened:
        for number, name in enumerate(("night", "day shift", "night", "morning")):
            run_id = f"20260101-00000{number}-abcdef"
            insert_run(opened, RunRecord(run_id=run_id, name=name, started_wall_s=float(number)))
        create_experiment(opened, Experiment(experiment_id="sweep-1", kind="sweep", name="caps"))
    monkeypatch.setenv("WATTLOOP_STORE", str(place))
    monkeypatch.chdir(tmp_path)
    return place


CASES = {
    "wattloop sim": "simulate",
    "wattloop runs show n": "night",
    "wattloop runs show l": "last",
    "wattloop runs show 20260101-000003": "20260101-000003-abcdef",
    "wattloop runs compare night m": "morning",
    "wattloop sweep show c": "caps",
    "wattloop report m": "morning",
    "wattloop predict --model hf:gpt2-m": "hf:gpt2-medium",
    "wattloop predict run --gpu h20": "h200",
    "wattloop predict --compare a100-sxm-80gb,h20": "a100-sxm-80gb,h200",
    "wattloop simulate thesis-p": "thesis-pareto",
    "wattloop simulate whatif thesis-p": "thesis-pareto",
    "wattloop simulate run x --policies fifo,ze": "fifo,zeus",
    "wattloop slurm run --policy cha": "charon",
    "wattloop runs list --sta": "--status",
}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("line", CASES)
def test_names_are_completed(
    shell: str,
    line: str,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Promise: commands, options, runs, models, GPUs, scenarios and policies are completed."""
    answer = completed(shell, line, monkeypatch, capsys)
    if shell == "zsh":
        offered = [each.replace("\\\\:", ":") for each in re.findall(r'"([^"]+)"', answer)]
    else:
        offered = [each.partition("\t")[0] for each in answer.split("\n")]
    assert CASES[line] in offered, answer


@pytest.mark.parametrize(
    ("words", "replies"),
    [
        ("wattloop predict --model hf : gpt2-m", ["gpt2-medium"]),
        ("wattloop predict --model hf : gpt2-l", ["gpt2-large"]),
        ("wattloop predict run --gpu h20", ["h20", "h200"]),
        ("wattloop runs show mor", ["morning"]),
    ],
)
def test_bash_replaces_what_follows_a_colon(
    words: str, replies: list[str], store: Path, tmp_path: Path
) -> None:
    """Promise: the script in a real bash, which takes words apart at colons, inserts the rest."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash on this machine")
    program = tmp_path / "wattloop"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m wattloop "$@"\n')
    program.chmod(0o755)
    count = len(words.split()) - 1
    script = (
        'eval "$(_WATTLOOP_COMPLETE=source_bash wattloop)"\n'
        f"COMP_WORDS=({words}); COMP_CWORD={count}\n"
        '_wattloop_completion wattloop; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(SRC)}
    done = subprocess.run(
        [bash, "--norc", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == replies, done.stderr


def test_a_name_is_offered_once_and_one_with_spaces_not_at_all(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: the shell inserts one argument that `runs show` accepts."""
    answer = completed("bash", "wattloop runs show ", monkeypatch, capsys)
    assert answer.split("\n") == ["last", "morning", "night", ""]


@pytest.mark.parametrize("content", [None, b"", b"not a database", b"SQLite format 3\x00"])
def test_a_bad_store_offers_nothing(
    content: bytes | None,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Promise: a missing, empty or broken store is not an error at a press of TAB, nor changed."""
    store.unlink()
    if content is not None:
        store.write_bytes(content)
    assert completed("bash", "wattloop runs show x", monkeypatch, capsys).strip() == ""
    assert (store.read_bytes() if store.exists() else None) == content


@pytest.mark.parametrize("line", ["wattloop runs show n", "wattloop simulate run thesis-pa"])
def test_completion_imports_nothing_heavy(line: str, store: Path) -> None:
    """Promise: an answer costs no more than starting typer: no database layer, no NumPy."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "wattloop"],
        env={**os.environ, **asked("bash", line), "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() in (["night"], ["thesis-pareto"])
    imported = {row.rpartition("|")[2].strip() for row in done.stderr.splitlines()}
    assert not imported & set(HEAVY)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_names_the_program(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: the script of `--show-completion` calls this program with its variable."""
    monkeypatch.setenv("_WATTLOOP_COMPLETE", f"source_{shell}")
    assert main([]) == 0
    script = capsys.readouterr().out
    assert "_WATTLOOP_COMPLETE=complete_" in script
    assert "wattloop" in script
