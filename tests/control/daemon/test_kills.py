"""Promises after `kill -9` of a client, of the daemon, or of both, at any moment."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.control.conftest import eventually
from tests.control.daemon.conftest import DEFAULT_W, RULES, DaemonRig
from wattloop.control.daemon.client import connect
from wattloop.core.errors import WattloopError

LIMIT = "gpu:0/power_limit"
SEED = 20_260_308
KILLS = 12


@contextmanager
def setting_forever(rig: DaemonRig, *seeds: int) -> Iterator[None]:
    """Start children that set and release levers of one GPU each in a loop, until killed."""
    pids = [_child(rig, seed) for seed in seeds]
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _child(rig: DaemonRig, seed: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    rng = random.Random(seed)
    gpu = seed % 2
    try:
        while True:
            try:
                with connect(rig.socket) as client:
                    for _ in range(rng.randrange(1, 9)):
                        client.set(f"gpu:{gpu}/power_limit", float(rng.randrange(300, 690)))
                        if rng.random() < 0.3:
                            client.set(f"gpu:{gpu}/sm_clock", float(rng.randrange(600, 1900)))
                        if rng.random() < 0.3:
                            client.release()
                        time.sleep(rng.uniform(0, 0.02))
            except WattloopError:
                time.sleep(0.01)
    finally:
        os._exit(1)


def at_default(rig: DaemonRig) -> bool:
    return rig.limit_w(0) == DEFAULT_W == rig.limit_w(1) and not rig.journals()


def test_a_killed_client_loses_its_lease(rig: DaemonRig) -> None:
    """At random moments; the levers are restored and free for others at once."""
    rng = random.Random(SEED)
    rig.rules.write_text(rig.rules.read_text().replace("line_s", "burst: 100000, line_s"))
    rig.start()
    for number in range(KILLS):
        with setting_forever(rig, 2 * number, 2 * number + 1):
            time.sleep(rng.uniform(0.0, 0.15))
        assert eventually(lambda: at_default(rig)), f"seed {SEED}, kill {number}"
    assert len(rig.log("set")) > KILLS
    assert not rig.log("not_restored") and not rig.log("note")


def test_what_a_killed_daemon_had_set_is_restored(rig: DaemonRig) -> None:
    """Its watcher restores without a new start; a new daemon sets its caps again."""
    rng = random.Random(SEED)
    rig.write_rules("default_cap: -10%\n" + RULES.replace("line_s", "burst: 100000, line_s"))
    for number in range(3):
        rig.start()
        with setting_forever(rig, 2 * number, 2 * number + 1):
            time.sleep(rng.uniform(0.0, 0.3))
            assert rig.end(signal.SIGKILL) == -signal.SIGKILL
            assert eventually(lambda: at_default(rig)), f"seed {SEED}, kill {number}"
    rig.start()
    assert eventually(lambda: rig.limit_w() == 630.0)
    assert rig.end() == 0
    assert at_default(rig)


def test_the_next_daemon_restores_unwatched_levers(rig: DaemonRig) -> None:
    """Daemon and watcher are killed together, as when a machine runs out of memory."""
    rig.write_rules("default_cap: -10%\n" + RULES)
    daemon = rig.start()
    client = rig.connect()
    client.set(LIMIT, 400.0)
    children = f"/proc/{daemon.pid}/task/{daemon.pid}/children"
    with open(children) as file:  # noqa: PTH123 - a file of the kernel
        watchers = [int(pid) for pid in file.read().split()]
    assert len(watchers) == 1
    os.kill(watchers[0], signal.SIGKILL)
    rig.end(signal.SIGKILL)
    client.close()
    assert rig.limit_w() == 400.0 and len(rig.journals()) == 2
    rig.write_rules(RULES)
    rig.start()
    assert (rig.limit_w(0), rig.limit_w(1)) == (DEFAULT_W, DEFAULT_W)
    assert {line["lever"] for line in rig.log("leftover")} == {LIMIT, "gpu:1/power_limit"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_that_is_told_to_end_restores_all(rig: DaemonRig, number: int) -> None:
    """Leases and default caps are restored, with exit code 0, and the socket is removed."""
    rig.write_rules("default_cap: -10%\n" + RULES)
    rig.start()
    with rig.connect() as client, rig.connect():
        client.set(LIMIT, 400.0)
        assert rig.end(number) == 0
        assert at_default(rig)
        assert not rig.socket.exists()


def test_a_second_daemon_is_refused_and_a_dead_socket_replaced(rig: DaemonRig) -> None:
    """Two daemons never share a socket; the socket of a killed daemon is replaced."""
    rig.start()
    words = ["control-daemon", "--rules", str(rig.rules)]
    second = rig.wattloop(*words)
    assert second.returncode == 2
    assert "another control daemon listens there" in second.stderr
    rig.end(signal.SIGKILL)
    assert rig.socket.exists()
    rig.start()
    rig.end()
    rig.socket.symlink_to(rig.folder / "elsewhere")
    third = rig.wattloop(*words)
    assert (third.returncode, "no socket; move it away" in third.stderr) == (2, True)
    assert rig.socket.is_symlink() and not (rig.folder / "elsewhere").exists()


def test_a_watcher_that_was_killed_is_replaced(rig: DaemonRig) -> None:
    """After the watcher is killed, the promise holds again shortly."""
    program = (
        "import os, signal, sys\n"
        "from wattloop.control.daemon import server\n"
        "server.TICK_S = 0.1\n"
        "from wattloop.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = [sys.executable, "-c", program, "control-daemon", "--rules", str(rig.rules)]
    daemon = rig.process = subprocess.Popen(words, env=rig.environment)
    assert eventually(lambda: rig.socket.exists() and len(_children(daemon.pid)) == 1)
    (watcher,) = _children(daemon.pid)
    os.kill(watcher, signal.SIGKILL)
    assert eventually(lambda: bool(set(_children(daemon.pid)) - {watcher}))
    assert rig.end() == 0


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123 - a file of the kernel
        return [int(child) for child in file.read().split()]
