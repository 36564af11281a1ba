"""Promises against hostile clients: they are cut off and logged, and others are served."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from tests.control.conftest import eventually
from tests.control.daemon.conftest import (
    DEFAULT_W,
    NOBODY_UID,
    RULES,
    DaemonRig,
    as_user,
    needs_root,
)
from wattloop.control.daemon.client import Client, connect
from wattloop.control.daemon.protocol import REQUEST_MOST_B, PermissionDenied
from wattloop.core.errors import DeviceBusy

LIMIT = "gpu:0/power_limit"


@contextmanager
def line_to(daemon: DaemonRig) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(120)
        line.connect(str(daemon.socket))
        yield line


def reply_to(daemon: DaemonRig, data: bytes) -> bytes:
    """Return everything that comes back until the daemon closes the connection, or one line."""
    with line_to(daemon) as line:
        found = b""
        try:
            line.sendall(data)
            while not found.endswith(b"\n"):
                more = line.recv(1 << 16)
                if not more:
                    break
                found += more
        except (BrokenPipeError, ConnectionResetError):
            pass
        return found


def _sets(client: Client) -> bool:
    """Return false while the daemon has not noticed the end of the earlier client."""
    try:
        client.set(LIMIT, 400.0)
    except DeviceBusy:
        return False
    return True


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\n", "not JSON"),
        (b"\x00\xff\xfe\n", "not JSON"),
        (b"[]\n", "not a JSON object"),
        (b'{"v": 2, "id": 1, "do": "hello"}\n', "version '2'"),
        (b'{"v": true, "id": 1, "do": "hello"}\n', "version 'True'"),
        (b'{"v": 1, "id": 1, "do": "set", "value": NaN}\n', "not JSON"),
        (b"[" * 4_000 + b"\n", "not JSON"),
        (b"x" * (REQUEST_MOST_B + 2) + b"\n", "more than 4096 bytes"),
        (b"x" * 100_000, "more than 4096 bytes"),
    ],
    ids=["http", "bytes", "list", "version", "bool", "nan", "deep", "long", "endless"],
)
def test_rubbish_is_cut_off_and_logged(daemon: DaemonRig, data: bytes, why: str) -> None:
    """A client that speaks another protocol is told so and disconnected."""
    before = len(daemon.log("cut_off"))
    with daemon.connect() as other:
        assert eventually(lambda: _sets(other))
        reply = reply_to(daemon, data)
        if reply:
            assert json.loads(reply)["error"]["kind"] == "protocol"
        assert eventually(lambda: len(daemon.log("cut_off")) == before + 1)
        assert why in daemon.log("cut_off")[-1]["why"]
        assert other.read(LIMIT) == 400.0 == daemon.limit_w()


def test_wrong_requests_are_answered(daemon: DaemonRig) -> None:
    """A valid message with an invalid request gets an error that says what is wrong."""
    for fields, why in (
        ({"do": "reboot"}, "'do' is one of hello, levers"),
        ({"do": "set"}, "'lever' is a name"),
        ({"do": "set", "lever": "x" * 1_000}, "'lever' is a name"),
        ({"do": "set", "lever": LIMIT}, "'value' is missing"),
        ({"do": "set", "lever": LIMIT, "value": [1]}, "'value' is a number"),
        ({"do": "set", "lever": LIMIT, "value": True}, "neither a number"),
        ({"do": "set", "lever": LIMIT, "value": 300, "for": 7}, "'for' is"),
        ({"do": "set", "lever": LIMIT, "value": 300, "for": {"job": "\n"}}, "'for' is"),
        ({"do": "release", "lever": 5}, "'lever' is a name"),
        ({"do": "read", "lever": "../../etc"}, "no such lever"),
    ):
        reply = json.loads(
            reply_to(daemon, json.dumps({"v": 1, "id": 3} | fields).encode() + b"\n")
        )
        assert (reply["id"], reply["ok"]) == (3, False)
        assert why in reply["error"]["message"], fields
    assert daemon.limit_w() == 700.0


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    message=some.dictionaries(
        some.sampled_from(["v", "id", "do", "lever", "value", "for"]),
        some.one_of(
            some.sampled_from([1, "set", "release", "read", "levers", LIMIT, "low_power"]),
            some.recursive(
                some.none() | some.booleans() | some.integers() | some.text(max_size=20),
                lambda inner: (
                    some.lists(inner, max_size=3)
                    | some.dictionaries(some.text(max_size=5), inner, max_size=3)
                ),
                max_leaves=5,
            ),
        ),
    )
)
def test_no_message_breaks_the_daemon(daemon: DaemonRig, message: dict[str, object]) -> None:
    """For any message it answers or closes the connection, and no lever stays set."""
    reply = reply_to(daemon, json.dumps(message).encode() + b"\n")
    assert json.loads(reply)["ok"] in (True, False)
    assert b"the control daemon failed" not in reply


def test_a_line_that_never_ends_is_not_waited_for(rig: DaemonRig) -> None:
    """A byte from time to time does not keep a connection open."""
    rig.write_rules(RULES.replace("line_s: 60", "line_s: 0.5"))
    rig.start()
    with line_to(rig) as line:
        line.sendall(b'{"v": 1')
        assert eventually(lambda: bool(rig.log("cut_off")))
        assert "not ended in 0.5 s" in rig.log("cut_off")[-1]["why"]


@needs_root
def test_a_flood_is_cut_off_and_others_are_served(daemon: DaemonRig) -> None:
    """Requests are limited per user: a second connection does not raise the limit."""

    def flood() -> int:
        sent = 0
        for _ in range(3):
            with connect(daemon.socket) as client:
                while sent < 5_000:
                    client.read(LIMIT)
                    sent += 1
        return sent

    with pytest.raises(Exception, match=r"more requests than|gone|answers"):
        as_user(NOBODY_UID, flood)
    assert "more requests than 50 a second" in daemon.log("cut_off")[-1]["why"]
    with daemon.connect() as root:
        assert root.set(LIMIT, 400.0).after == 400.0


@needs_root
def test_one_user_cannot_take_all_connections(daemon: DaemonRig) -> None:
    """Root can still connect, and the user again once connections are closed."""

    def many() -> str:
        clients = []
        try:
            for _ in range(10):
                clients.append(connect(daemon.socket))
        except PermissionDenied as error:
            return f"{len(clients)} {error}"
        return "all"

    said = as_user(4_243, many)
    assert said.startswith("4 ") and "more than 4 connections of user 4243" in said
    assert daemon.log("turned_away")[-1]["uid"] == 4_243
    daemon.connect().close()
    assert eventually(lambda: as_user(4_243, many).startswith("4 "))


@needs_root
def test_a_crowd_does_not_keep_a_trusted_client_out(rig: DaemonRig) -> None:
    """Caps of jobs are served before clients without trust."""
    rig.write_rules(RULES.replace("connections_per_user: 4", "connections: 2"))
    rig.start()
    until, leave = os.pipe()
    said, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(leave)
        os.setgroups(())
        os.setgid(4_243)
        os.setuid(4_243)
        held = [connect(rig.socket), connect(rig.socket)]
        try:
            held.append(connect(rig.socket))
        except PermissionDenied as error:
            os.write(say, str(error).encode())
        os.read(until, 1)
        os._exit(0)
    try:
        assert b"more than 2 connections" in os.read(said, 1_000)
        with rig.connect() as client:
            assert client.set(LIMIT, 400.0).after == 400.0
    finally:
        os.close(leave)
        os.waitpid(pid, 0)
        for descriptor in (until, said, say):
            os.close(descriptor)


def test_full_queue_does_not_keep_a_trusted_client_out(daemon: DaemonRig) -> None:
    """Clients that fill the queue of the common socket do not affect that of trusted users."""
    assert daemon.process is not None
    crowd: list[socket.socket] = []
    daemon.process.send_signal(signal.SIGSTOP)
    goes_on = threading.Timer(1.0, daemon.process.send_signal, [signal.SIGCONT])
    try:
        with suppress(BlockingIOError):
            while True:
                crowd.append(socket.socket(socket.AF_UNIX))
                crowd[-1].setblocking(False)
                crowd[-1].connect(str(daemon.socket))
        goes_on.start()
        with daemon.connect() as client:
            assert client.hello()["trusted"]
    finally:
        goes_on.cancel()
        daemon.process.send_signal(signal.SIGCONT)
        for line in crowd:
            line.close()


CROWD = """
import os, socket, sys
os.setgroups([]), os.setgid(4244), os.setuid(4244)
print("ready", flush=True)
while True:
    line = socket.socket(socket.AF_UNIX)
    line.setblocking(False)
    try:
        line.connect(sys.argv[1])
    except OSError:
        pass
    line.close()
"""


@needs_root
def test_user_who_connects_in_a_loop_keeps_no_one_out(daemon: DaemonRig) -> None:
    """Neither root nor another user is kept out, and the log names the user."""
    crowd = [
        subprocess.Popen([sys.executable, "-c", CROWD, str(daemon.socket)], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for process in crowd:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for _ in range(6):
            with daemon.connect() as client:
                assert client.set(LIMIT, 400.0).after == 400.0
            assert as_user(NOBODY_UID, lambda: connect(daemon.socket).hello()["uid"]) == NOBODY_UID
    finally:
        for process in crowd:
            process.kill()
            process.communicate()
    assert eventually(lambda: daemon.limit_w() == DEFAULT_W)
    assert any(line["uid"] == 4_244 for line in daemon.log("turned_away"))


def test_sockets_of_trusted_users_are_only_theirs(daemon: DaemonRig) -> None:
    """No other user can fill their queues."""
    own = daemon.socket.with_name(f"{daemon.socket.name}.u{os.geteuid()}")
    assert own.stat().st_mode & 0o777 == 0o600
    assert own.stat().st_uid == os.geteuid()


@needs_root
def test_root_of_a_namespace_of_ones_own_is_the_user_outside(daemon: DaemonRig) -> None:
    """A user who is root in a container of their own is refused by the real user id."""
    inside = ["unshare", "--user", "--map-root-user", "id", "-u"]
    if shutil.which("unshare") is None or subprocess.run(inside, check=False).returncode:
        pytest.skip("no user namespaces here")
    program = (
        "import json, socket, sys\n"
        "line = socket.socket(socket.AF_UNIX)\n"
        "line.connect(sys.argv[1])\n"
        'line.sendall(b\'{"v": 1, "id": 1, "do": "hello"}\\n\')\n'
        "print(line.recv(4096).decode())\n"
    )
    words = ["unshare", "--user", "--map-root-user", "/usr/bin/env", "python3", "-c", program]
    done = subprocess.run(
        [*words, str(daemon.socket)], capture_output=True, text=True, check=True,
        user=4_243, group=4_243, extra_groups=(),
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert (said["uid"], said["trusted"]) == (4_243, False)


@needs_root
def test_a_very_high_user_number_is_that_number(daemon: DaemonRig) -> None:
    """It is not read as a negative number, which no rule could name."""
    high = 2**32 - 3
    assert as_user(high, lambda: connect(daemon.socket).hello()["uid"]) == high


def test_a_client_that_reads_nothing_is_cut_off(rig: DaemonRig) -> None:
    """Replies do not fill the daemon's memory, and its thread ends."""
    rig.rules.write_text(
        rig.rules.read_text().replace(
            "line_s: 60", "requests_per_s: 100000, burst: 100000, line_s: 0.5"
        )
    )
    rig.start()
    request = b'{"v":1,"id":1,"do":"levers"}\n' * 2_000
    with line_to(rig) as line, rig.connect() as other:
        line.settimeout(0.2)
        with pytest.raises(TimeoutError):
            for _ in range(1_000):
                line.sendall(request)
        assert other.read(LIMIT) == 700.0
        assert eventually(lambda: bool(rig.log("cut_off")))
        assert "not read" in rig.log("cut_off")[0]["why"]


def test_random_bytes_from_many_at_once(daemon: DaemonRig) -> None:
    """From a seed: 40 connections of noise around one that works."""
    rng = random.Random(8)
    with daemon.connect() as client:
        for _ in range(40):
            with line_to(daemon) as line:
                line.sendall(rng.randbytes(rng.randrange(1, 2_000)) + b"\n")
            client.set(LIMIT, float(rng.randrange(300, 700)))
    assert eventually(lambda: daemon.limit_w() == 700.0)
