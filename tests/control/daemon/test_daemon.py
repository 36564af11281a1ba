"""Promises of the daemon to well-behaved clients: leases, their owners, and the log."""

import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.control.conftest import eventually
from tests.control.daemon.conftest import (
    DEFAULT_W,
    GROUP,
    ME,
    NOBODY_UID,
    DaemonRig,
    as_user,
    needs_root,
)
from wattloop.control.daemon.client import LOW_POWER, Change, connect
from wattloop.control.daemon.job_gpus import JobGpus, write_job_gpus
from wattloop.control.daemon.protocol import DaemonDisconnected, PermissionDenied
from wattloop.core.errors import ConfigError, DeviceBusy, LeverError

LIMIT = "gpu:0/power_limit"


def test_a_lease_lasts_as_long_as_its_connection(daemon: DaemonRig) -> None:
    """The value is set, read back, and restored at the end, each with a line in the log."""
    with daemon.connect() as client:
        assert client.set(LIMIT, 400.0, job="12", uid=1000) == Change(DEFAULT_W, 400.0)
        assert daemon.limit_w() == 400.0 == client.read(LIMIT)
        assert client.set(LIMIT, "50%") == Change(400.0, 350.0)
        assert len(daemon.journals()) == 1
    assert eventually(lambda: bool(daemon.log("released")))
    assert daemon.limit_w() == DEFAULT_W and not daemon.journals()
    first, second = daemon.log("set")[-2:]
    assert (first["lever"], first["before"], first["after"]) == (LIMIT, DEFAULT_W, 400.0)
    assert (first["pid"], first["uid"], first["user"]) == (os.getpid(), os.geteuid(), ME)
    assert (first["job"], first["job_uid"]) == ("12", 1000)
    assert second["why"] == "asked for 50%"
    last = daemon.log("released")[-1]
    assert (last["before"], last["after"]) == (350.0, DEFAULT_W)
    assert last["why"] == "the client closed the connection"


def test_one_lever_of_a_lease_can_be_released(daemon: DaemonRig) -> None:
    """The other levers of the lease stay set."""
    with daemon.connect() as client:
        client.set(LIMIT, 400.0)
        client.set("gpu:1/power_limit", 410.0)
        client.set("gpu:1/sm_clock", 1000)
        client.release(LIMIT)
        assert (daemon.limit_w(0), daemon.limit_w(1)) == (DEFAULT_W, 410.0)
        client.release()
        assert (daemon.limit_w(1), client.read("gpu:1/sm_clock")) == (DEFAULT_W, None)
        assert not daemon.journals()


def test_the_second_on_a_device_is_refused_with_the_name_of_the_first(daemon: DaemonRig) -> None:
    """This also holds for another lever of the device; another device is free."""
    with daemon.connect() as first, daemon.connect() as second:
        first.set(LIMIT, 400.0)
        for lever, value in ((LIMIT, 500.0), ("gpu:0/sm_clock", 1000.0)):
            with pytest.raises(DeviceBusy, match=rf"gpu:0 is held by {ME} \(process {os.getpid()}"):
                second.set(lever, value)
        assert second.set("gpu:1/power_limit", 500.0).after == 500.0
        assert daemon.log("refused")[-1]["kind"] == "busy"
        first.release()
        assert second.set(LIMIT, 500.0) == Change(DEFAULT_W, 500.0)
    assert eventually(lambda: not daemon.journals())


def test_values_outside_the_device_are_refused(daemon: DaemonRig) -> None:
    """The device's limits also bind users whose rules allow any value."""
    with daemon.connect() as client:
        for value in (99_999.0, -1.0, "fast", "1e999"):
            with pytest.raises(ConfigError, match=LIMIT):
                client.set(LIMIT, value)
        with pytest.raises(ConfigError, match="no such lever here; there are gpu:0/power_limit"):
            client.set("gpu:7/power_limit", 300.0)
        assert client.check(LIMIT, "70%") == pytest.approx(490.0)
        assert daemon.limit_w() == DEFAULT_W


@needs_root
def test_a_user_may_do_what_their_rules_say_and_no_more(daemon: DaemonRig) -> None:
    """The kernel names the user; every refusal is logged with that name."""

    def act() -> list[object]:
        with connect(daemon.socket) as client:
            done: list[object] = [client.hello()["uid"], client.set(LIMIT, 340.0).after]
            done.append(client.set(LIMIT, LOW_POWER).after)  # 70% is 490 W, outside the rule
            for value, lever in ((360.0, LIMIT), (1000.0, "gpu:0/memory_clock")):
                try:
                    client.set(lever, value)
                except PermissionDenied as error:
                    done.append(str(error))
            try:
                client.set(LIMIT, 340.0, job="1", uid=0)
            except PermissionDenied as error:
                done.append(str(error))
            return done

    uid, taken, low_power, range_, none, job = as_user(NOBODY_UID, act)
    assert (uid, taken, low_power) == (NOBODY_UID, 340.0, 350.0)
    assert "360 W is outside 300 to 350 W" in str(range_)
    assert "no rule" in str(none)
    assert "no rule trusts nobody to act for jobs" in str(job)
    refused = daemon.log("refused")[-3:]
    assert {(line["uid"], line["user"]) for line in refused} == {(NOBODY_UID, "nobody")}
    assert eventually(lambda: daemon.limit_w() == DEFAULT_W)


@needs_root
def test_a_trusted_client_comes_before_a_user(daemon: DaemonRig) -> None:
    """The agent enforces a power budget; the user's lease on that device ends, with a log line."""
    ready, go = os.pipe(), os.pipe()
    with ThreadPoolExecutor() as pool:

        def act() -> str:
            client = connect(daemon.socket)
            client.set(LIMIT, 340.0)
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            try:
                client.set(LIMIT, 330.0)
            except DeviceBusy as error:
                return str(error)
            return ""

        user = pool.submit(as_user, NOBODY_UID, act)
        os.read(ready[0], 1)
        with daemon.connect() as agent:
            try:
                assert agent.set(LIMIT, 500.0, job="3", uid=NOBODY_UID) == Change(DEFAULT_W, 500.0)
            finally:
                os.write(go[1], b"x")
            assert f"gpu:0 is held by {ME}" in user.result() and "for job 3" in user.result()
            assert daemon.limit_w() == 500.0
    line = next(line for line in daemon.log("released") if "taken over" in line["why"])
    assert (line["user"], line["before"], line["after"]) == ("nobody", 340.0, DEFAULT_W)
    assert eventually(lambda: daemon.limit_w() == DEFAULT_W)
    for descriptor in (*ready, *go):
        os.close(descriptor)


@needs_root
def test_only_own_gpus_by_supplementary_group(daemon: DaemonRig) -> None:
    """The agent's list decides, for a user with the group as a supplementary one."""
    write_job_gpus(daemon.folder / "jobs.json", [JobGpus("5", 4242, (1,))])

    def act() -> tuple[object, str]:
        with connect(daemon.socket) as client:
            taken = client.set("gpu:1/power_limit", 600.0).after
            try:
                client.set(LIMIT, 600.0)
            except PermissionDenied as error:
                return taken, str(error)
        return taken, ""

    taken, refusal = as_user(4242, act, groups=(GROUP.gr_gid,))
    assert taken == 600.0
    assert "only GPUs of their own jobs here: gpu:1" in refusal
    with pytest.raises(PermissionDenied, match="no rule"):  # not in the group
        as_user(4242, lambda: connect(daemon.socket).set(LIMIT, 600.0))


def test_a_forked_child_neither_uses_nor_prolongs_a_lease(daemon: DaemonRig) -> None:
    """A child may run for hours after the program that set the lever."""
    client = daemon.connect()
    client.set(LIMIT, 400.0)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            client.read(LIMIT)
        except LeverError as error:
            os.write(writer, str(error).encode())
        time.sleep(60)
        os._exit(0)
    try:
        assert b"not of its children" in os.read(reader, 1_000)
        client.close()
        assert eventually(lambda: daemon.limit_w() == DEFAULT_W)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)


def test_a_lease_ends_with_the_process_that_asked_for_it(daemon: DaemonRig) -> None:
    """This also holds for a program whose children inherit the connection."""
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        line = socket.socket(socket.AF_UNIX)
        line.connect(str(daemon.socket))
        line.sendall(
            json.dumps({"v": 1, "id": 1, "do": "set", "lever": LIMIT, "value": 400}).encode()
        )
        line.sendall(b"\n")
        line.recv(1_000)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        os.write(writer, str(child).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    child = int(os.read(reader, 100))
    try:
        assert eventually(lambda: daemon.limit_w() == DEFAULT_W)
        assert eventually(lambda: daemon.log("released")[-1]["why"] == "the client ended")
    finally:
        os.kill(child, 9)
        os.close(reader)
        os.close(writer)


def test_a_lease_is_not_given_to_a_child_of_one_that_ended_before_it_was_heard(
    daemon: DaemonRig,
) -> None:
    """A busy daemon accepts late: by then the process that connected may have ended."""
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        line = socket.socket(socket.AF_UNIX)
        line.connect(str(daemon.socket))
        line.sendall(
            b'{"v": 1, "id": 1, "do": "set", "lever": "gpu:0/power_limit", "value": 400}\n'
        )
        if os.fork() == 0:
            line.settimeout(30)
            with suppress(ConnectionError):
                os.write(writer, line.recv(1_000))
            os.write(writer, b"nothing more")
            os._exit(0)
        os._exit(0)
    os.waitpid(parent, 0)
    daemon.process.send_signal(signal.SIGCONT)
    try:
        assert os.read(reader, 1_000) == b"nothing more"
        assert daemon.limit_w() == DEFAULT_W
    finally:
        os.close(reader)
        os.close(writer)


def test_a_later_change_by_another_program_is_kept(daemon: DaemonRig) -> None:
    """An administrator's change takes precedence over a lease that ends."""
    with daemon.connect() as client:
        client.set(LIMIT, 400.0)
        daemon.put_limit_w(555.0)
    assert eventually(lambda: bool(daemon.log("not_restored")))
    assert "another process" in daemon.log("not_restored")[-1]["fault"]
    assert daemon.limit_w() == 555.0
    with daemon.connect() as client:  # and what it is now is what the next one goes back to
        assert client.set(LIMIT, 400.0) == Change(555.0, 400.0)
    assert eventually(lambda: daemon.limit_w() == 555.0)
    daemon.put_limit_w(DEFAULT_W)


def test_a_client_connects_again_after_a_silence(rig: DaemonRig) -> None:
    """Without a lease it need not notice; with a lease it is not cut off."""
    rules = rig.rules.read_text().replace("line_s: 60", "idle_s: 0.2")
    rig.rules.write_text(rules)
    rig.start()
    with rig.connect() as client, rig.connect() as holder:
        holder.set(LIMIT, 400.0)
        time.sleep(0.5)
        assert client.read(LIMIT) == 400.0
        assert holder.read(LIMIT) == 400.0
        rig.end()
        with pytest.raises(DaemonDisconnected, match=f"{LIMIT} goes back to what it was"):
            holder.read(LIMIT)
        with pytest.raises(DaemonDisconnected, match="no control daemon answers"):
            client.read(LIMIT)
    assert rig.limit_w() == DEFAULT_W
