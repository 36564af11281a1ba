"""Promises of `make test`: it starts a PostgreSQL server of its own, which ends with the tests."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.postgres_lab import why_no_postgres

pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'wattloop[postgres]'")
needs_programs = pytest.mark.skipif(bool(why_no_postgres()), reason=why_no_postgres() or "-")

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "with-postgres.sh"
CONNECT = """
import os, sys, psycopg
url = os.environ["WATTLOOP_TEST_POSTGRES"]
with psycopg.connect(url) as connection:
    print(connection.execute("SELECT 42").fetchone()[0], url, flush=True)
sys.stdin.read()
sys.exit(7)
"""


def started(**variables: str) -> "subprocess.Popen[str]":
    """Start a command with a server of its own, in a process group like that of a terminal."""
    environment = {k: v for k, v in os.environ.items() if k != "WATTLOOP_TEST_POSTGRES"}
    environment |= variables
    return subprocess.Popen(
        ["sh", str(SCRIPT), sys.executable, "-c", CONNECT],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def refuses(url: str) -> bool:
    """Wait until no server accepts connections there, and return true if so."""
    import psycopg

    try:
        psycopg.connect(url, connect_timeout=30).close()
    except psycopg.OperationalError:
        return True
    return False


@needs_programs
def test_the_command_has_a_server_and_its_exit_code_is_returned() -> None:
    """The server answers while the command runs, and has ended after it."""
    command = started()
    said, _ = command.communicate("", timeout=300)
    assert command.returncode == 7
    answer, url = said.split()
    assert answer == "42"
    assert refuses(url)


@needs_programs
def test_a_port_in_use_is_passed_over() -> None:
    """Two suites on one machine, or any other program, may have the first port."""
    with socket.socket() as taken, socket.socket() as free:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in (taken, free)]
        free.close()
        command = started(WATTLOOP_TEST_POSTGRES_PORTS=" ".join(map(str, ports)))
        said, _ = command.communicate("", timeout=300)
    assert command.returncode == 7
    assert f":{ports[1]}/" in said


@needs_programs
def test_ctrl_c_leaves_no_server() -> None:
    """Interrupted in the middle of the tests, the server ends too."""
    command = started()
    assert command.stdout is not None
    _, url = command.stdout.readline().split()
    os.killpg(command.pid, signal.SIGINT)
    command.communicate(timeout=300)
    give_up_s = time.monotonic() + 120
    while not refuses(url):
        assert time.monotonic() < give_up_s, "the server still runs"
        time.sleep(0.1)
    assert command.returncode != 0


def test_a_named_server_is_taken_as_it_is() -> None:
    """No second server is started."""
    environment = {**os.environ, "WATTLOOP_TEST_POSTGRES": "postgresql://elsewhere/x"}
    done = subprocess.run(
        ["sh", str(SCRIPT), "sh", "-c", "echo $WATTLOOP_TEST_POSTGRES"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "postgresql://elsewhere/x\n"


def test_make_test_uses_it() -> None:
    """A developer's `make test` runs the same tests as CI."""
    done = subprocess.run(
        ["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (line,) = (line for line in done.stdout.splitlines() if "-m pytest" in line)
    assert line.startswith("sh scripts/with-postgres.sh ")
