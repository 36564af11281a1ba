"""Promises of docs/check.md: the action and the template run `ci/check.sh`, which passes exit codes
on.

`wattloop` and `gh` are small programs on PATH that record how they were called: what is tested is
the script between them. `tests/cli/test_check.py` tests the verb itself. GitLab's notes API is a
local HTTP server, and `curl` is the real one.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "ci" / "check.sh"


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def checked(folder: Path, code: int, known: str = "", gh: str = "", **variables: str):
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    program(
        tools, "wattloop",
        f'printf "%s\\n" "$@" > {folder}/called; [ {code} = 2 ] || '
        f'while [ $# -gt 0 ]; do [ "$1" = --markdown ] && echo "### table" > "$2"; shift; done; '
        f"exit {code}",
    )  # fmt: skip
    program(
        tools, "gh", gh or
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


def test_a_comment_that_is_refused_leaves_the_code_of_the_check(tmp_path: Path) -> None:
    """A fork's token may not comment. Without the list of comments none is added a second time."""
    variables = {
        "WATTLOOP_COMMENT": "true", "WATTLOOP_PULL_REQUEST": "7", "GITHUB_REPOSITORY": "o/r"
    }  # fmt: skip
    for code in (0, 1):
        done = checked(tmp_path, code, gh=f"echo $@ >> {tmp_path}/gh; exit 1", **variables)
        assert done.returncode == code
        assert "the comment could not be written" in done.stderr
    assert "body=" not in (tmp_path / "gh").read_text()


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


TOKEN = "glpat-of-the-project"
NOTES = "/api/v4/projects/5/merge_requests/7/notes"
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is missing")


class GitLab:
    """Notes of a merge request, newest first, in pages, for requests with the token."""

    def __init__(self) -> None:
        self.notes: list[dict] = []
        self.lines: list[str] = []
        self.status: dict[str, int] = {}
        self.foreign: set[int] = set()

    def answer(self, method: str, target: str, token: str, body: str) -> tuple[int, object]:
        self.lines.append(f"{method} {target}")
        parts = urlsplit(target)
        if token != TOKEN:
            return 401, {"message": "401 Unauthorized"}
        if method in self.status:
            return self.status[method], {"message": "no"}
        text = parse_qs(body).get("body", [""])[0]
        if method == "GET" and parts.path == NOTES:
            query = {name: int(v[0]) for name, v in parse_qs(parts.query).items() if v[0].isdigit()}
            begin = (query["page"] - 1) * query["per_page"]
            return 200, self.notes[::-1][begin : begin + query["per_page"]]
        if method == "POST" and parts.path == NOTES:
            self.add(text)
            return 201, {}
        found = re.fullmatch(rf"{NOTES}/(\d+)", parts.path)
        if method == "PUT" and found and 0 < int(found[1]) <= len(self.notes):
            if int(found[1]) in self.foreign:
                return 403, {"message": "403 Forbidden"}
            self.notes[int(found[1]) - 1]["body"] = text
            return 200, {}
        return 404, {"message": "404 Not found"}

    def add(self, text: str) -> None:
        self.notes.append({"id": len(self.notes) + 1, "body": text, "system": False})

    def tables(self) -> list[str]:
        return [n["body"] for n in self.notes if n["body"].startswith("<!-- wattloop check -->\n")]

    def asked(self, method: str) -> int:
        return sum(line.startswith(method) for line in self.lines)


@pytest.fixture
def gitlab() -> Iterator[GitLab]:
    state = GitLab()

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            token = self.headers.get("PRIVATE-TOKEN", "")
            status, data = state.answer(self.command, self.path, token, body)
            answer = data if isinstance(data, bytes) else json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_GET(self) -> None:
            self.respond()

        do_POST = do_PUT = do_GET  # noqa: N815 - names of http.server

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_port}/api/v4"  # type: ignore[attr-defined]  # of the stand-in
    yield state
    server.shutdown()
    server.server_close()


def in_gitlab(folder: Path, gitlab: GitLab, code: int, **variables: str):
    return checked(
        folder, code, WATTLOOP_COMMENT="true", CI_API_V4_URL=gitlab.url,
        **{
            "CI_PROJECT_ID": "5",
            "CI_MERGE_REQUEST_IID": "7",
            "WATTLOOP_GITLAB_TOKEN": TOKEN,
            **variables,
        },
    )  # fmt: skip


@needs_curl
def test_the_note_is_made_once_and_updated(tmp_path: Path, gitlab: GitLab) -> None:
    """Promise: each push updates the note, however many comments came after it."""
    gitlab.add("nice")
    done = in_gitlab(tmp_path, gitlab, 1)
    assert done.returncode == 1
    assert done.stderr == ""
    assert gitlab.tables() == ["<!-- wattloop check -->\n### table\n"]
    gitlab.notes[1]["body"] += "of the last push"
    for number in range(120):  # the note is on the second page now
        gitlab.add(f'comment {number}\n with a "quote" and a \\n backslash')
    assert in_gitlab(tmp_path, gitlab, 0).returncode == 0
    assert gitlab.tables() == ["<!-- wattloop check -->\n### table\n"]
    assert (gitlab.asked("POST"), gitlab.asked("PUT")) == (1, 1)
    assert TOKEN not in "".join(gitlab.lines)
    assert not list(tmp_path.glob("*.comment"))


@needs_curl
def test_a_note_of_another_user_is_left_alone(tmp_path: Path, gitlab: GitLab) -> None:
    """Promise: a copy of the marker does not keep the table from being shown, nor add more."""
    gitlab.add("<!-- wattloop check -->\nall is well")
    gitlab.foreign.add(1)
    for _ in range(3):
        assert in_gitlab(tmp_path, gitlab, 1).returncode == 1
    assert [text.splitlines()[1] for text in gitlab.tables()] == ["all is well", "### table"]


@needs_curl
@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize(
    "refusal", [{"GET": 500}, {"GET": 403}, {"POST": 403}, {"POST": 500}, {"PUT": 500}]
)
def test_a_note_that_is_refused_leaves_the_code_of_the_check(
    tmp_path: Path, gitlab: GitLab, code: int, refusal: dict[str, int]
) -> None:
    if "PUT" in refusal:
        gitlab.add("<!-- wattloop check -->\nold")
    gitlab.status = refusal
    before = len(gitlab.notes)
    done = in_gitlab(tmp_path, gitlab, code)
    assert done.returncode == code
    assert "the note could not be written; the table is an artefact" in done.stderr
    assert len(gitlab.notes) == before
    assert TOKEN not in done.stdout + done.stderr


LIE = b'[{"id": "../7", "body": "<!-- wattloop check -->"}]'


@needs_curl
@pytest.mark.parametrize("answer", [b"<html>", b"7", LIE])
def test_an_answer_that_is_not_a_list_of_notes(
    tmp_path: Path, gitlab: GitLab, answer: bytes
) -> None:
    gitlab.answer = lambda *_: (200, answer)  # type: ignore[method-assign]  # an API that lies
    done = in_gitlab(tmp_path, gitlab, 1)
    assert done.returncode == 1
    assert "the note could not be written" in done.stderr


@needs_curl
def test_a_fork_has_no_token(tmp_path: Path, gitlab: GitLab) -> None:
    """Nor does a job outside a merge request: the table stays an artefact, and nothing is asked."""
    done = in_gitlab(tmp_path, gitlab, 1, WATTLOOP_GITLAB_TOKEN="")
    assert (done.returncode, done.stderr) == (1, "")
    assert in_gitlab(tmp_path, gitlab, 0, CI_MERGE_REQUEST_IID="").returncode == 0
    assert gitlab.lines == []
    assert (tmp_path / "energy-check.md").read_text() == "### table\n"


@needs_curl
def test_the_token_is_on_no_command_line(tmp_path: Path, gitlab: GitLab) -> None:
    """Promise: other users of a shared runner cannot read the token from a list of processes."""
    tools = tmp_path / "tools"
    tools.mkdir()
    program(tools, "curl", f'echo "$@" >> {tmp_path}/words; exec {shutil.which("curl")} "$@"')
    in_gitlab(tmp_path, gitlab, 0)
    assert len(gitlab.tables()) == 1
    assert TOKEN not in (tmp_path / "words").read_text()


@needs_curl
def test_the_gitlab_template_runs(tmp_path: Path, gitlab: GitLab) -> None:
    """The commands of `ci/gitlab.yml` as a runner would execute them, with the real `wattloop`."""
    job = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text("utf-8"))[".wattloop-check"]
    tools = tmp_path / "tools"
    tools.mkdir()
    program(tools, "pip", f'echo "$@" > {tmp_path}/installed')
    folder = Path(sys.executable).parent
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("CI_", "GITHUB"))},
        **job["variables"],
        "PATH": f"{tools}:{folder}:{os.environ['PATH']}",
        "WATTLOOP_COMMAND": "true",
        "WATTLOOP_REPEATS": "2",
        "WATTLOOP_SCRIPT": SCRIPT.as_uri(),
        "WATTLOOP_GITLAB_TOKEN": TOKEN,
        "WATTLOOP_STORE": str(tmp_path / "runs.db"),
        "CI_API_V4_URL": gitlab.url,  # type: ignore[attr-defined]  # of the stand-in
        "CI_PROJECT_ID": "5",
        "CI_MERGE_REQUEST_IID": "7",
    }
    lines = "\n".join([*job["before_script"], *job["script"]])
    take = "wattloop check --baseline energy.json --update --repeats 2 -- sh -c true"
    for script in (take, lines):
        done = subprocess.run(
            ["sh", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stderr  # 1: a difference between two runs of `true`
    table = (tmp_path / "energy-check.md").read_text()
    assert "baseline" in table
    assert gitlab.tables() == [f"<!-- wattloop check -->\n{table}"]
    assert (tmp_path / "installed").read_text() == "install --quiet wattloop\n"
