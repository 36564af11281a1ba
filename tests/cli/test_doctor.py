"""Promises of `wattloop doctor`: it finds what is wrong, tells the fix, and changes nothing."""

import json
import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.environment import without
from wattloop.cli.main import main


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of its own: no configuration, an empty store, nothing under /sys."""
    for name in os.environ.keys() - without("WATTLOOP").keys():
        monkeypatch.delenv(name)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("WATTLOOP_SYS", str(tmp_path / "sys"))
    monkeypatch.setenv("WATTLOOP_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("WATTLOOP_STORE", str(tmp_path / "runs.db"))
    return tmp_path


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code, and the findings by check."""
    code = main(["doctor", "-j", *words])
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] is (code == 0)
    return code, {finding["check"]: finding for finding in data["checks"]}


def test_a_sound_machine_passes(capsys: pytest.CaptureFixture[str], machine: Path) -> None:
    """Promise: exit code 0, a line per check, and no file is made."""
    before = sorted(machine.rglob("*"))
    code, found = checked(capsys)
    assert code == 0
    assert {"python", "config", "store", "cpu", "gpu", "levers", "extras", "agent"} <= set(found)
    assert sorted(machine.rglob("*")) == before
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok    python    Python 3.")
    warned = {check for check, finding in found.items() if finding["state"] == "warn"}
    assert warned <= {"cpu", "nvidia", "amd-gpu", "sensor"}, found  # what this machine lacks
    assert re.fullmatch(r"All is well\.|1 warning\.|\d+ warnings\.", lines[-1])


def test_a_sensor_that_may_not_be_read_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """Promise: without RAPL the CPU is estimated, with the reason and the remedy."""
    code, found = checked(capsys)
    assert (code, found["cpu"]["state"]) == (0, "warn")
    assert "no energy zone" in found["cpu"]["text"]
    assert "modprobe" in found["cpu"]["fix"]


def test_virtual_gpus_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: every GPU that can be measured is named with its source."""
    monkeypatch.setenv("WATTLOOP_VIRTUAL_GPUS", "2")
    _, found = checked(capsys)
    assert "gpu:0 (virtual" in found["gpu"]["text"]
    assert "gpu:1 (virtual" in found["gpu"]["text"]


def test_a_wrong_setting_is_named(capsys: pytest.CaptureFixture[str], machine: Path) -> None:
    """Promise: the error names the file, the setting and the allowed values; exit code 1."""
    (machine / "wattloop.yaml").write_text("interval_s: never\n")
    code, found = checked(capsys)
    assert (code, found["config"]["state"]) == (1, "fail")
    assert "interval_s" in found["config"]["text"]
    assert "wattloop.yaml" in found["config"]["text"]


@pytest.mark.parametrize("place", ["runs.db/under/a/file.db", "mysql://host/runs"])
def test_a_store_that_cannot_be_used_is_a_fault(
    capsys: pytest.CaptureFixture[str], machine: Path, place: str
) -> None:
    """Promise: a store in a place where no file can be, or of another kind, fails with a remedy."""
    (machine / "runs.db").write_text("not a database")
    code, found = checked(capsys, "--store", place)
    assert (code, found["store"]["state"]) == (1, "fail")
    assert "WATTLOOP_STORE" in found["store"]["fix"]


def test_a_broken_store_is_a_fault(capsys: pytest.CaptureFixture[str], machine: Path) -> None:
    """Promise: a file that is not a store is found before a run is lost; it stays as it is."""
    (machine / "runs.db").write_text("not a database" * 100)
    code, found = checked(capsys)
    assert (code, found["store"]["state"]) == (1, "fail")
    assert (machine / "runs.db").read_text() == "not a database" * 100


def test_an_agent_that_never_ran_is_a_fault(
    capsys: pytest.CaptureFixture[str], machine: Path
) -> None:
    """Promise: a configured agent that does not work fails, with the command that starts it."""
    (machine / "agent.yaml").write_text(f"folder: {machine}/agent\n")
    code, found = checked(capsys, "--agent", "agent.yaml")
    assert (code, found["agent"]["state"]) == (1, "fail")
    assert "wattloop agent run" in found["agent"]["fix"]


class _Server(BaseHTTPRequestHandler):
    status = 401

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Server) as opened:
        threading.Thread(target=opened.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{opened.server_address[1]}"
        opened.shutdown()


@pytest.mark.parametrize(("status", "state"), [(200, "ok"), (401, "ok"), (503, "fail")])
def test_a_server_that_answers_is_reachable(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    server: str,
    status: int,
    state: str,
) -> None:
    """Promise: an answer is enough, also one that asks for a token; an error of the server not."""
    monkeypatch.setattr(_Server, "status", status)
    _, found = checked(capsys, "--server", server)
    assert found["server"]["state"] == state


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9", "ftp://host", "nonsense", "http://[", "file:///etc/passwd"]
)
def test_a_server_that_is_not_there_is_a_fault(
    capsys: pytest.CaptureFixture[str], url: str
) -> None:
    """Promise: no answer, another protocol or a wrong address fail with exit code 1."""
    code, found = checked(capsys, "--server", url)
    assert (code, found["server"]["state"]) == (1, "fail")
