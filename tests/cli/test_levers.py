"""Promises of `wattloop set` and `wattloop restore`: exit codes, messages, and restored levers."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cli.conftest import SRC
from tests.control.conftest import Rig, eventually, rig, stub, stub_folder
from tests.control.test_restore import dead_owner
from tests.control.test_session import LIMIT, SLEEPER, is_back
from tests.support.environment import without
from tests.support.nvml_stub import Call, StubNvml
from tests.support.powercap_tree import PowercapTree
from tests.sweep.conftest import virtual_environment
from wattloop.cli.main import main

__all__ = ["rig", "stub", "stub_folder"]

SHOW = (
    "import pathlib, sys; print(pathlib.Path(sys.argv[1]).read_text().strip()); "
    "sys.exit(int(sys.argv[2]))"
)


def show(rig: Rig, code: int = 0) -> list[str]:
    """A program that prints the power limit as it finds it."""
    path = rig.package / "constraint_0_power_limit_uw"
    return ["--", sys.executable, "-c", SHOW, str(path), str(code)]


def test_set_for_the_time_of_a_program(rig: Rig) -> None:
    """The program sees the value, its exit code is ours, and afterwards all is as before."""
    done = rig.wattloop("set", f"{LIMIT}=60%", "cpu/governor=schedutil", *show(rig, 7))
    assert (done.returncode, done.stdout.strip()) == (7, "120000000"), done.stderr
    assert done.stderr == ""
    assert is_back(rig)
    assert rig.journals() == []


def test_set_json(rig: Rig) -> None:
    """It has the new value, the earlier one, every write, and the exit code."""
    out = rig.folder / "set.json"
    rig.wattloop("set", "--json", str(out), f"{LIMIT}=100 W", *show(rig))
    data = json.loads(out.read_text())
    assert data["set"] == {LIMIT: 100.0}
    assert data["previous"] == {LIMIT: 150.0}
    assert data["exit_code"] == 0
    assert [r["fate"] for r in data["restored"]] == ["restored"]
    assert len(data["writes"]) == 1


def test_set_dry_run(rig: Rig) -> None:
    """Every write is printed, there and back; nothing is written, locked or run."""
    done = rig.wattloop("set", "--dry-run", "cpu/governor=schedutil", *show(rig))
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert [line.split()[1] for line in lines] == [
        "schedutil",
        "schedutil",
        "powersave",
        "performance",
    ]
    assert is_back(rig)
    assert not rig.state.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([f"{LIMIT}=900 W"], "900 W is outside the device's limits, 0 to 200 W"),
        ([f"{LIMIT}=lots"], "write it as 250 W, 70% or default"),
        (["cpu/govenor=powersave"], "did you mean cpu/governor?"),
        (["gpu:5/power_limit=200"], "there is no gpu:5 here; there are gpu:0"),
        (["cpu/governor"], "write settings as LEVER=VALUE"),
        (["cpu/governor=powersave", "cpu/governor=performance"], "is set twice"),
        (["cpu/min_frequency=3 GHz"], "would pass cpu/max_frequency=1200 MHz of policy1; set both"),
    ],
)
def test_bad_input_is_explained(rig: Rig, words: list[str], message: str) -> None:
    """Exit code 2, one clear line, no traceback, nothing set and the program not started."""
    done = rig.wattloop("set", *words, *show(rig))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert is_back(rig)
    assert rig.journals() == []


def test_program_is_asked_for(rig: Rig) -> None:
    """Without a program the command cannot know when to restore the levers."""
    done = rig.wattloop("set", "cpu/governor=schedutil")
    assert done.returncode == 2
    assert "name the program after '--'" in done.stderr


def test_program_that_does_not_exist(rig: Rig) -> None:
    """127, as from a shell, and nothing was set."""
    done = rig.wattloop("set", "cpu/governor=schedutil", "--", "no-such-program")
    assert done.returncode == 127
    assert is_back(rig)


def test_machine_without_any_lever(tmp_path: Path, rig: Rig) -> None:
    """It says what would be needed; exit code 2."""
    (tmp_path / "empty").mkdir()
    done = rig.wattloop(
        "set", "gpu:0/power_limit=200", *show(rig), WATTLOOP_SYSFS_ROOT=str(tmp_path / "empty")
    )
    assert done.returncode == 2
    assert "cannot be set here: " in done.stderr
    assert "WATTLOOP_VIRTUAL_GPUS=1" in done.stderr


def test_no_permission(rig: Rig, stub: StubNvml) -> None:
    """The driver's refusal comes with the remedy; exit code 2; no setting stays."""
    stub.inject(0, "forbidden", calls=Call.SET)
    done = rig.wattloop("set", "gpu:0/power_limit=300", *show(rig))
    assert done.returncode == 2
    assert "sudo nvidia-smi -pl WATTS" in done.stderr
    assert rig.journals() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_no_permission_of_a_plain_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who may not write the file gets the command that grants it; exit code 2."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        PowercapTree(Path(folder) / "sys").add_package(0, max_power_w=200, limit_w=150)
        monkeypatch.setenv("WATTLOOP_SYSFS_ROOT", f"{folder}/sys")
        monkeypatch.setenv("WATTLOOP_STATE_DIR", f"{folder}/state")
        monkeypatch.setenv("HOME", folder)
        # now, since the other user may not be able to read our installation
        assert main(["set", "--dry-run", f"{LIMIT}=100"]) == 0
        with Path(folder, "said").open("w+") as said:
            child = os.fork()
            if child == 0:
                os.setresuid(65534, 65534, 65534)
                sys.stderr = said
                code = main(["set", f"{LIMIT}=100", "--", "/bin/true"])
                said.flush()
                os._exit(code)
            _, status = os.waitpid(child, 0)
            said.seek(0)
            text = said.read()
    assert os.waitstatus_to_exitcode(status) == 2, text
    assert "writable by root only; run as root, or 'sudo chmod a+w" in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_set_puts_back_when_it_is_killed(rig: Rig, number: signal.Signals) -> None:
    """Whatever ends `wattloop set`, the levers go back."""
    sleeper = [sys.executable, "-c", "import time; print('on', flush=True); time.sleep(60)"]
    command = [sys.executable, "-m", "wattloop.cli.main", "set", f"{LIMIT}=90", "--", *sleeper]
    process = subprocess.Popen(
        command, env=rig.environment, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    assert rig.limit_w() == 90
    os.kill(process.pid, number)
    process.wait(120)
    assert eventually(lambda: rig.limit_w() == 150 and not rig.journals())
    if number == signal.SIGKILL:
        os.killpg(process.pid, signal.SIGKILL)  # the program continues without Wattloop
    process.stdout.close()


def test_set_restores_leftovers_first_and_says_so(rig: Rig) -> None:
    """Also those of devices it does not set itself."""
    owner = rig.start(SLEEPER, WATTLOOP_GUARDIAN="0")
    owner.kill()
    owner.wait()
    done = rig.wattloop("set", "gpu:0/power_limit=200", *show(rig))
    assert done.stdout.strip() == "150000000"
    assert f"leftover of process {owner.pid}" in done.stderr
    assert f"{LIMIT} restored to 150" in done.stderr
    assert is_back(rig)


def test_device_held_by_another(rig: Rig) -> None:
    """The message names process, command and user; exit code 2."""
    owner = rig.start(SLEEPER)
    done = rig.wattloop("set", f"{LIMIT}=100", *show(rig))
    assert done.returncode == 2
    assert f"is held by process {owner.pid} (-c) of " in done.stderr
    assert rig.limit_w() == 90


def test_restore_without_leftovers(rig: Rig) -> None:
    """Says so; exit code 0."""
    done = rig.wattloop("restore")
    assert (done.returncode, done.stdout) == (0, "Nothing is left to restore.\n")


def test_restore_after_kill(rig: Rig) -> None:
    """The previous values are back, each is listed, and the exit code is 0."""
    owner = rig.start(SLEEPER, WATTLOOP_GUARDIAN="0")
    owner.kill()
    owner.wait()
    shown = rig.wattloop("restore", "--dry-run")
    assert "write 150000000 to" in shown.stdout
    assert rig.limit_w() == 90
    done = rig.wattloop("restore", "--json", "-")
    assert done.returncode == 0
    data = json.loads(done.stdout)
    assert data["ok"] is True
    assert {(r["lever"], r["fate"]) for r in data["levers"]} == {
        (LIMIT, "restored"),
        ("cpu/governor", "restored"),
    }
    assert is_back(rig)


def test_restore_finds_devices_as_their_owner_did(rig: Rig) -> None:
    """Another terminal without the owner's variables restores all the same."""
    owner = rig.start(SLEEPER, WATTLOOP_GUARDIAN="0")
    owner.kill()
    owner.wait()
    environment = {"PYTHONPATH": str(SRC), "WATTLOOP_STATE_DIR": str(rig.state)}
    subprocess.run(
        [sys.executable, "-m", "wattloop.cli.main", "restore"],
        env={"PATH": os.environ["PATH"], **environment},
        check=True,
        capture_output=True,
    )
    assert is_back(rig)


def test_restore_that_fails_ends_with_1(rig: Rig) -> None:
    """A lever that could not be restored is named, stays in the journal, and is restored later."""
    owner = rig.start(SLEEPER, WATTLOOP_GUARDIAN="0")
    owner.kill()
    owner.wait()
    limit = rig.package / "constraint_0_power_limit_uw"
    limit.rename(limit.with_name("away"))
    done = rig.wattloop("restore")
    assert done.returncode == 1
    assert f"{LIMIT}: the device rapl:intel-rapl:0 is not there any more" in done.stdout
    limit.with_name("away").rename(limit)
    assert rig.wattloop("restore").returncode == 0
    assert is_back(rig)


def test_restore_force_and_forget(rig: Rig) -> None:
    """A value set by another user: exit code 1, then either option resolves it."""
    dead_owner(rig)
    rig.put_limit_w(111)
    done = rig.wattloop("restore")
    assert done.returncode == 1
    assert "--force" in done.stdout
    assert rig.wattloop("restore", "--force", "--forget").returncode == 2
    assert rig.wattloop("restore", "--force").returncode == 0
    assert rig.limit_w() == 150
    dead_owner(rig)
    rig.put_limit_w(111)
    assert rig.wattloop("restore", "--forget").returncode == 0
    assert rig.limit_w() == 111
    assert rig.journals() == []


@pytest.mark.parametrize(("file", "code"), [("", 2), ("mine.state", 0)])
def test_virtual_gpus_that_are_in_use_say_how_to_have_others(
    tmp_path: Path, file: str, code: int
) -> None:
    """Of two people on one account, the second is told of WATTLOOP_VIRTUAL_STATE, and it helps."""
    own = virtual_environment(tmp_path)
    path = f"{SRC}{os.pathsep}{own.pop('SITE')}"
    kept = without("WATTLOOP", "XDG")
    command = [sys.executable, "-m", "wattloop.cli.main", "set", "gpu:0/power_limit=300", "--"]
    other = ["env", f"WATTLOOP_VIRTUAL_STATE={tmp_path / file}"] if file else []
    done = subprocess.run(
        [*command, *other, *command, "true"],
        env={**kept, **own, "PYTHONPATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert ("name another file in WATTLOOP_VIRTUAL_STATE" in done.stderr) is (code == 2)
