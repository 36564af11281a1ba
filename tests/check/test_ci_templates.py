"""Promises of docs/check.md: the action and the template run `ci/check.sh`, which hands on codes.

`wattloop` and `gh` are small programs on PATH that record how they were called: what is tested is
the script between them. `tests/cli/test_check.py` tests the verb itself.
"""

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "ci" / "check.sh"


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def checked(folder: Path, code: int, known: str = "", **variables: str):
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    program(
        tools, "wattloop",
        f'printf "%s\\n" "$@" > {folder}/called; [ {code} = 2 ] || '
        f'while [ $# -gt 0 ]; do [ "$1" = --markdown ] && echo "### table" > "$2"; shift; done; '
        f"exit {code}",
    )  # fmt: skip
    program(
        tools, "gh",
        f'echo "$@" >> {folder}/gh; case "$*" in *--jq*) echo "{known}";; '
        f'*body=@*) for w in "$@"; do case "$w" in body=@*) cat "${{w#body=@}}" > {folder}/body;; '
        "esac; done;; esac",
    )  # fmt: skip
    base = {
        key: value for key, value in os.environ.items() if not key.startswith(("CI_", "GITHUB"))
    }
    environment = {
        **base, "PATH": f"{tools}:{os.environ['PATH']}", "WATTLOOP_COMMAND": "python train.py",
        **variables,
    }  # fmt: skip
    return subprocess.run(
        ["sh", str(SCRIPT)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("code", "strict", "expected"),
    [(0, "false", 0), (1, "false", 1), (2, "false", 2), (3, "false", 0), (3, "true", 1)],
)
def test_exit_codes(tmp_path: Path, code: int, strict: str, expected: int) -> None:
    done = checked(tmp_path, code, WATTLOOP_STRICT=strict, GITHUB_ACTIONS="true")
    assert done.returncode == expected
    assert ("cannot tell" in done.stdout) is (code == 3)


def test_the_command_is_one_word_for_the_shell(tmp_path: Path) -> None:
    """A command with quotes and variables reaches `sh -c` as it was written."""
    command = "python train.py --name 'a b' && echo $HOME"
    checked(tmp_path, 0, WATTLOOP_COMMAND=command)
    words = (tmp_path / "called").read_text().splitlines()
    assert words[-4:] == ["--", "sh", "-c", command]


def test_the_comment_is_made_once_and_updated(tmp_path: Path) -> None:
    variables = {
        "WATTLOOP_COMMENT": "true", "WATTLOOP_PULL_REQUEST": "7", "GITHUB_REPOSITORY": "o/r",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }  # fmt: skip
    checked(tmp_path, 1, **variables)
    assert (tmp_path / "body").read_text().startswith("<!-- wattloop check -->\n### table")
    assert "### table" in (tmp_path / "summary").read_text()
    assert "PATCH" not in (tmp_path / "gh").read_text()
    checked(tmp_path, 1, known="42", **variables)
    assert "-X PATCH repos/o/r/issues/comments/42" in (tmp_path / "gh").read_text()
    assert not list(tmp_path.glob("*.comment"))


def test_no_table_no_comment(tmp_path: Path) -> None:
    checked(
        tmp_path, 2, WATTLOOP_COMMENT="true", WATTLOOP_PULL_REQUEST="7", GITHUB_REPOSITORY="o/r"
    )
    assert not (tmp_path / "gh").exists()


def test_without_a_command_it_says_what_to_set(tmp_path: Path) -> None:
    done = checked(tmp_path, 0, WATTLOOP_COMMAND="")
    assert done.returncode == 2
    assert "set WATTLOOP_COMMAND" in done.stderr


def test_inputs_never_become_a_script() -> None:
    """Promise: no `${{ ... }}` in a `run`, where its text would be executed."""
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    assert action["runs"]["using"] == "composite"
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"]
        assert step["shell"] == "sh"
    used = json.dumps(action["runs"])
    for name in action["inputs"]:
        assert f"inputs.{name} " in used
    assert all("description" in each for each in action["inputs"].values())


def test_the_gitlab_template_sets_what_the_script_reads() -> None:
    job = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text("utf-8"))[".wattloop-check"]
    script = SCRIPT.read_text("utf-8")
    for name in ("WATTLOOP_BASELINE", "WATTLOOP_TABLE", "WATTLOOP_COMMENT"):
        assert name in job["variables"]
        assert name in script
    assert job["script"] == ["sh wattloop-check.sh"]
