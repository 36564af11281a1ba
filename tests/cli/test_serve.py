"""Promises of `wattloop serve` as a process: where it is, what it refuses, answers at once."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

from wattloop.cli.commands.serve import listening
from wattloop.cli.main import main
from wattloop.core import user_code

from .conftest import Machine


@pytest.fixture(autouse=True)
def code_stays_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`serve` forbids code of the user in its process for good; here that is the process of the
    tests.
    """
    monkeypatch.setattr(user_code, "_forbidden", user_code._forbidden)


def test_it_says_where_it_is_and_ends_when_told(machine: Machine) -> None:
    """Promise: port 0 takes a free one, the address is printed, Ctrl-C ends it cleanly."""
    process = subprocess.Popen(
        machine.command("serve", "--port", "0"),
        env=machine.environment,
        cwd=machine.folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/", process.stderr.readline())
        assert found
        with urllib.request.urlopen(f"{found[0]}api/v1/jobs", timeout=300) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(120) in (0, 130)
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_programs_are_told_where_it_is(machine: Machine) -> None:
    """Promise: `--json` writes the address as soon as the server accepts connections."""
    process = subprocess.Popen(
        machine.command("serve", "--port", "0", "--json", "where.json"),
        env=machine.environment,
        cwd=machine.folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        told = json.loads((machine.folder / "where.json").read_text())
        assert told["url"] in said
        assert told["pid"] == process.pid
        with urllib.request.urlopen(f"{told['api']}/jobs", timeout=300) as answer:
            assert answer.status == 200
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "--token"),
        (["--host", "no.such.host.invalid", "--token", "x"], "choose another"),
        (["--store", "/proc/none/runs.db"], "/proc/none"),
        (["--json", "none/where.json"], "no folder"),
    ],
)
def test_what_cannot_be_served_is_said(
    here: Machine, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    """Promise: exit code 2 and a sentence, never a traceback."""
    assert main(["serve", "--port", "0", *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_port_in_use_is_said(here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """Promise: before anything starts, with what to do."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert main(["serve", "--port", str(other.getsockname()[1])]) == 2
    assert "0 takes any free port" in capsys.readouterr().err


def test_small_answers_are_sent_at_once() -> None:
    """Promise: a reader that keeps its connection does not wait 40 ms for its own ACK."""

    async def nodelay() -> int:
        with listening("127.0.0.1", 0) as (place, _):
            found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

            def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                own = writer.get_extra_info("socket")
                found.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                writer.close()

            server = await asyncio.start_server(met, sock=place)
            _, writer = await asyncio.open_connection(*place.getsockname())
            option = await asyncio.wait_for(found, 10)
            writer.close()
            server.close()
            return option

    assert asyncio.run(nodelay()) == 1


def test_secret_from_a_file_or_standard_input_is_not_in_the_list_of_processes(
    machine: Machine,
) -> None:
    """Promise: the server knows its token, and `ps` does not."""
    secret = machine.folder / "secret"
    secret.write_text("from-the-file\n")
    secret.chmod(0o600)
    for source, given, known in (
        (str(secret), "", "from-the-file"),
        ("-", "from-the-input\n", "from-the-input"),
    ):
        process = subprocess.Popen(
            machine.command("serve", "--port", "0", "--host", "0.0.0.0", "--token-file", source),
            env=machine.environment,
            cwd=machine.folder,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            process.stdin.write(given)
            process.stdin.close()
            said = process.stderr.readline()
            port = re.search(r":(\d+)/", said)
            assert port, said
            assert known not in Path(f"/proc/{process.pid}/cmdline").read_text()
            url = f"http://127.0.0.1:{port[1]}/api/v1/jobs"
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(url, timeout=300)
            asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {known}"})
            with urllib.request.urlopen(asked, timeout=300) as answer:
                assert answer.status == 200
        finally:
            process.kill()
            process.wait()
            process.stderr.close()


def test_secret_on_the_command_line_is_warned_of_and_a_readable_file_refused(
    here: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: the old option works, and warns that other users can read it."""
    assert main(["serve", "--host", "no.such.host.invalid", "--token", "x"]) == 2
    assert "warning: --token: anybody who lists the processes" in capsys.readouterr().err
    secret = here.folder / "secret"
    secret.write_text("x")
    secret.chmod(0o644)
    assert main(["serve", "--token-file", str(secret)]) == 2
    assert "chmod 600" in capsys.readouterr().err
    assert main(["serve", "--token-file", str(secret), "--token", "x"]) == 2
    capsys.readouterr()
    monkeypatch.setenv("WATTLOOP_TOKEN", "x")
    assert main(["serve", "--host", "no.such.host.invalid"]) == 2
    assert "warning" not in capsys.readouterr().err
