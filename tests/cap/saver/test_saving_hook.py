"""Promises of `wattloop run --save`: live steps, levers that are always restored, and its
messages.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cli.pseudo_terminal import in_terminal
from tests.support.nvml_stub import NoCompiler, StubNvml
from tests.support.saved_runs import (
    TRAINING,
    TRAP,
    command,
    environment,
    saved_run,
    start,
    wait_until,
)
from tests.support.virtual_caps import settle
from wattloop.cap.saver.job_leader import BEAT_S, LEASE_S, JobFollower, JobLeader, _torchrun_nodes
from wattloop.cap.saver.proof import (
    LearnedSetting,
    SavingResult,
    SavingState,
    Setting,
    format_saving,
)
from wattloop.cap.saver.saving_hook import ProgramKey, read_learned, write_learned
from wattloop.control.registry import find_levers, lever_named
from wattloop.control.restore import restore
from wattloop.control.session import lever_session
from wattloop.core.errors import LeverError
from wattloop.core.settings import Settings
from wattloop.integrations.step_hook import step_file
from wattloop.integrations.step_hook.collector import LiveSteps
from wattloop.measure.command import is_stopped
from wattloop.virtual.gpu import Fault
from wattloop.virtual.node import shared_gpus

SETTINGS = Settings(virtual_gpus=2, meters=("virtual",))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A machine with two virtual GPUs."""
    settle(monkeypatch, tmp_path)
    for name in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def limits():
    found = find_levers(settings=SETTINGS)
    return [lever_named(found, f"gpu:{n}/{leaf}").read() for n in (0, 1) for leaf in LEAVES]


LEAVES = ("power_limit", "sm_clock")
AS_FOUND = [700.0, None] * 2


def test_a_training_is_saved_and_levers_are_restored(folder):
    """Promise: less energy, the program's own output and exit code, levers restored, a record."""
    program = TRAINING + "train(4, until=was_set)\nprint('trained')\nraise SystemExit(3)"
    done, data = saved_run(folder, program, "--max-slowdown", "10%")
    assert (done.returncode, done.stdout) == (3, "trained\n"), done.stderr
    saving = SavingResult.from_dict(data["saving"])
    assert saving.state is SavingState.APPLIED, (saving, done.stderr)
    assert saving.saving_slices > 0
    assert limits() == AS_FOUND
    assert format_saving(saving) in done.stderr
    assert not list((folder / "state").glob("*.journal"))
    assert saving.learned is not None
    assert list((folder / "saver").glob("*.json"))


def test_observing_touches_no_lever(folder):
    """Promise: `--observe` calls no function that locks or sets a lever."""
    done, data = saved_run(
        folder, TRAINING + "train(3)", "--observe", **{TRAP: str(folder / "touched")}
    )
    saving = SavingResult.from_dict(data["saving"])
    assert saving.state is SavingState.OBSERVED
    assert saving.expected_pct is not None
    assert not saving.periods
    assert "modelled" in done.stderr
    assert not (folder / "touched").exists()


def test_the_trap_notices_levers(folder):
    """Without `--observe` the trap of the test above detects a call."""
    program = TRAINING + "train(0, until=lambda: os.path.exists('touched'))"
    saved_run(folder, program, **{TRAP: str(folder / "touched")})
    assert (folder / "touched").exists()


def test_without_permission_nothing_is_set(folder):
    """Promise: it observes, and reports the possible saving and the command that allows it."""
    shared_gpus(2)[1].inject(Fault.SET_FORBIDDEN)
    done, data = saved_run(folder, TRAINING + "train(3)", **{TRAP: str(folder / "touched")})
    assert done.returncode == 0
    saving = SavingResult.from_dict(data["saving"])
    assert saving.state is SavingState.OBSERVED
    assert saving.expected_pct is not None
    assert "gpu:1/power_limit cannot be set" in saving.reason
    assert "sudo wattloop control-daemon" in done.stderr
    assert not (folder / "touched").exists()


def test_levers_of_another_process_are_not_set(folder):
    """Promise: it names the owner and changes nothing, and the program runs."""
    chosen = lever_named(find_levers(settings=SETTINGS), "gpu:1/power_limit")
    with lever_session([chosen]) as held:
        held.set({chosen.name: 500})
        done, data = saved_run(folder, TRAINING + "train(8)")
        assert chosen.read() == 500
    assert done.returncode == 0
    saving = SavingResult.from_dict(data["saving"])
    assert saving.state is SavingState.LEFT
    assert f"process {os.getpid()} (" in saving.reason
    assert saving.reason in done.stderr


def test_a_lever_that_fails_meanwhile(folder):
    """Promise: the lever is named, the program runs, and all levers are restored once that is
    possible.
    """
    program = TRAINING + (
        "from wattloop.virtual.gpu import Fault\n"
        "train(1, until=was_set)\ngpus[1].inject(Fault.SET_FORBIDDEN)\ntrain(6)\n"
        "gpus[1].inject(Fault.NONE)\nprint('trained')\n"
    )
    done, data = saved_run(folder, program, "--reference-share", "40%")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "permission denied" in data["saving"]["reason"], (data["saving"], done.stderr)
    assert limits()[:2] == AS_FOUND[:2]
    restore(folder / "state")
    assert limits() == AS_FOUND


def test_a_program_without_steps_is_not_saved(folder):
    """Promise: the summary gives the reason and an alternative."""
    done, data = saved_run(folder, "print('no steps')", **{TRAP: str(folder / "touched")})
    assert (done.returncode, done.stdout) == (0, "no steps\n")
    assert data["saving"]["state"] == "left alone"
    assert "cap find --progress" in done.stderr
    assert not (folder / "touched").exists()


def test_no_folder_for_steps(folder):
    """Promise: without write access the program runs, and the summary says why it was not saved."""
    done, data = saved_run(folder, "print(1)", TMPDIR="/dev/null", XDG_RUNTIME_DIR="")
    assert done.returncode == 0
    assert "cannot be written" in data["saving"]["reason"]


def test_a_step_that_never_comes_again(folder):
    """Promise: levers are restored while the program still runs."""
    program = TRAINING + "train(1, until=was_set)\ntime.sleep(600)"
    started = start(folder, program, SAVED_RUNS_IDLE_S="1")
    try:
        wait_until(lambda: limits() != AS_FOUND)
        wait_until(lambda: len(set(_limits_for(1.0))) == 1 and limits() == AS_FOUND)
        assert started.poll() is None
    finally:
        started.send_signal(signal.SIGTERM)
        started.communicate(timeout=300)
    assert started.returncode == 128 + signal.SIGTERM
    assert limits() == AS_FOUND


def _limits_for(seconds):
    import time

    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        yield tuple(limits())
        time.sleep(0.05)


@pytest.mark.parametrize("victim", ["wattloop", "program", "both"])
def test_kill(folder, victim):
    """Promise: after `kill -9` of wattloop, of the program or of both, levers are restored."""
    program = TRAINING + "open('pid', 'w').write(str(os.getpid()))\ntrain(600)"
    started = start(folder, program, WATTLOOP_GUARDIAN="1")
    wait_until(lambda: limits() != AS_FOUND)
    pid = int((folder / "pid").read_text())
    for name, number in (("wattloop", started.pid), ("program", pid)):
        if victim in (name, "both"):
            os.kill(number, signal.SIGKILL)
    started.wait(600)
    wait_until(lambda: limits() == AS_FOUND)
    expected = 128 + signal.SIGKILL if victim == "program" else -signal.SIGKILL
    assert started.returncode == expected
    if victim == "wattloop":
        os.kill(pid, signal.SIGKILL)
    started.communicate()
    wait_until(lambda: not list((folder / "state").glob("*.journal")))


def test_a_program_that_goes_into_the_background(folder):
    """Promise: `--follow` follows its steps, and does not wait for Wattloop's own watchdog."""
    program = TRAINING + "os.fork() and os._exit(0)\ntrain(2, until=was_set)\nprint('trained')"
    done, data = saved_run(folder, program, "--follow", WATTLOOP_GUARDIAN="1")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert data["left_running"] == 0
    assert data["saving"]["state"] == "applied", data["saving"]
    assert limits() == AS_FOUND


STEPS = """
import time
from wattloop.integrations.step_hook.program_steps import ProgramSteps
for _ in range(680):  # 7 s, and more where the saver is slower, too
    time.sleep(0.01)
    ProgramSteps.shared().step()
"""


@pytest.fixture
def cards(folder):
    """Two stub NVIDIA cards behind the real nvidia-ml-py, busy."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    # readable by other users, unlike pytest's own folders
    with tempfile.TemporaryDirectory(prefix="wattloop-stub-") as place:
        try:
            stub = StubNvml(Path(place), gpus=2)
        except NoCompiler as reason:
            pytest.skip(str(reason))
        with stub:
            for index in (0, 1):
                stub.constant(index, 650.0)
            yield stub


def on_cards(cards, **more):
    nvidia = {"WATTLOOP_VIRTUAL_GPUS": "0", "WATTLOOP_METERS": "nvidia"}
    return {**cards.environment, **nvidia, **more}


def changes(cards):
    return [cards.gpu(index).segment_count for index in (0, 1)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may set the cards")
def test_nvidia_cards_are_restored(folder, cards):
    """Promise: limit and clocks are restored through NVML as on virtual cards."""
    before = [cards.settings(index) for index in (0, 1)]
    count = changes(cards)
    done, data = saved_run(folder, STEPS, **on_cards(cards))
    assert data["saving"]["state"] == "applied", (data["saving"], done.stderr)
    assert [cards.settings(index) for index in (0, 1)] == before
    assert all(a < b for a, b in zip(count, changes(cards), strict=True))


@pytest.mark.parametrize("options", [[], ["--observe"]])
def test_nvidia_cards_of_root(folder, cards, options):
    """Promise: no setter is called without permission, nor with `--observe`."""
    count = changes(cards)
    uid = "0" if options else "1234"
    done, data = saved_run(folder, STEPS, *options, **on_cards(cards, SAVED_RUNS_UID=uid))
    assert data["saving"]["state"] == "observed"
    assert data["saving"]["expected_pct"] is not None
    assert options or "lets only root set it" in done.stderr
    assert changes(cards) == count


@pytest.mark.skipif(os.geteuid() != 0, reason="starting a process of another user needs root")
def test_a_card_that_another_user_works_on(folder, cards):
    """Promise: the card is not slowed, and the summary names the other user's process."""
    count = changes(cards)
    with subprocess.Popen(["sleep", "600"], user=65534) as other:
        try:
            cards.gpu(1).process_pids[0] = other.pid
            _, data = saved_run(folder, STEPS, **on_cards(cards))
        finally:
            other.kill()
    assert data["saving"]["state"] == "left alone"
    assert f"gpu:1 is also used by process {other.pid} (sleep 600)" in data["saving"]["reason"]
    assert changes(cards) == count


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may set the cards")
def test_a_card_of_mig_instances(folder, cards):
    """Promise: neither a card that is split by MIG nor the whole cards next to it are set."""
    count = changes(cards)
    cards.gpu(0).mig_mode = 1.0
    _, data = saved_run(folder, STEPS, **on_cards(cards))
    assert data["saving"]["state"] == "left alone"
    assert "gpu:0 is split by MIG" in data["saving"]["reason"]
    assert changes(cards) == count


@pytest.mark.skipif(os.geteuid() != 0, reason="a control daemon of another user needs root")
def test_through_the_control_daemon(folder, cards):
    """Promise: a user without permission saves within the operator's rules, and levers are
    restored.
    """
    from tests.control.daemon.conftest import made_rig, tidied

    rig = made_rig(Path(tempfile.mkdtemp(prefix="wattloop-daemon-")))
    rig.extra |= on_cards(cards)
    rig.write_rules(
        "socket: {{path: {folder}/c.sock, mode: 0666}}\nlog: {folder}/c.jsonl\n"
        "rules:\n  - uids: [{uid}]\n    levers: {{'gpu:*/power_limit': 40% to 80%}}\n"
    )
    before = [cards.settings(index) for index in (0, 1)]
    try:
        rig.start()
        variables = {"SAVED_RUNS_UID": "1234", "WATTLOOP_CONTROL_SOCKET": str(rig.socket)}
        _, data = saved_run(folder, STEPS, **on_cards(cards, **variables))
        saving = SavingResult.from_dict(data["saving"])
        assert saving.state is SavingState.APPLIED, saving
        caps = {p.setting.cap_w for p in saving.periods} - {None}
        assert caps <= {cap / 1.0 for cap in range(280, 561)}
        assert {record["lever"] for record in rig.log("set")} == {
            "gpu:0/power_limit",
            "gpu:1/power_limit",
        }
        wait_until(lambda: [cards.settings(index) for index in (0, 1)] == before)
    finally:
        tidied(rig)


def test_ctrl_z(folder):
    """Promise: while the program is stopped the levers are restored, and then set again."""
    started = start(folder, TRAINING + "train(600)")
    try:
        wait_until(lambda: limits() != AS_FOUND)
        started.send_signal(signal.SIGTSTP)
        wait_until(lambda: is_stopped(started.pid))
        assert limits() == AS_FOUND
        started.send_signal(signal.SIGCONT)
        wait_until(lambda: limits() != AS_FOUND)
    finally:
        started.terminate()
        started.communicate(timeout=300)
    assert limits() == AS_FOUND


def test_ctrl_c(folder):
    """Promise: in a terminal ctrl-C ends the program as without `--save`, and levers are
    restored.
    """
    program = TRAINING.replace("shared().step()", "shared().step(); look()") + (
        "def look():\n"
        "    global found\n"
        "    if found and was_set(): found = print('was set', flush=True)\n"
        "train(600)"
    )
    words = command(folder, program)
    shown = in_terminal(words, environment(folder), folder, 100, interrupt_after="was set")
    assert shown.code == 130
    assert limits() == AS_FOUND
    assert "wattloop: sav" in shown.text


def ranks(folder, rank, **more):
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29511",
        "CUDA_VISIBLE_DEVICES": str(rank),
        "XDG_RUNTIME_DIR": str(folder),
        **more,
    }


@pytest.mark.parametrize("killed", [False, True])
def test_runs_of_one_job_follow_the_first(folder, killed):
    """Promise: one run decides, the others set the same, and restore when it finishes or
    crashes.
    """
    program = TRAINING + "open('pid', 'w').write(str(os.getpid()))\n"
    program += "train(0, until=lambda: os.path.exists('end'))"
    leader = start(folder, program, **ranks(folder, 0, WATTLOOP_GUARDIAN="1"))
    other = folder / "other"
    other.mkdir()
    variables = environment(folder) | ranks(folder, 1)
    follower = subprocess.Popen(
        command(other, program), env=variables, cwd=other, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: limits()[:2] != AS_FOUND[:2])
        wait_until(lambda: limits()[2:] != AS_FOUND[2:])
        if killed:
            leader.kill()
            os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
        (folder / "end").touch()
        leader.communicate(timeout=300)
        wait_until(lambda: limits() == AS_FOUND)
        assert follower.poll() is None
    finally:
        follower.terminate()
        _, said = follower.communicate(timeout=300)
    data = json.loads((other / "run.json").read_text())["saving"]
    assert data["state"] == "applied"
    assert "of its job decided" in said
    assert not list((folder / "saver" / "jobs").glob("*.json")) or killed


def test_a_follower_that_may_not_set_its_gpu(folder):
    """Promise: the leader restores and says which run refused."""
    shared_gpus(2)[1].inject(Fault.SET_FORBIDDEN)
    end, jobs = folder / "end", folder / "saver" / "jobs"
    program = TRAINING + f"train(0, until=lambda: os.path.exists({str(end)!r}))"
    leader = start(folder, program, **ranks(folder, 0))
    other = folder / "other"
    other.mkdir()
    follower = subprocess.Popen(
        command(other, program),
        env=environment(folder) | ranks(folder, 1),
        cwd=other,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: list(jobs.glob("*.refused")) and not list(jobs.glob("*.json")))
    end.touch()
    _, said = leader.communicate(timeout=300)
    assert follower.wait(300) == 0
    assert "gpu:1/power_limit cannot be set" in said
    assert limits() == AS_FOUND


def test_a_lease_that_is_not_renewed(tmp_path):
    """Promise: a dead leader's file is never followed, and a live one's only until its lease
    ends.
    """
    path = tmp_path / "jobs" / "job.json"
    JobLeader(path, "dead").set(Setting(300.0, None))
    follower = JobFollower(path)
    assert follower.poll(0.0) is None
    leader = JobLeader(path, "living")
    leader.set(Setting(400.0, None))
    assert follower.poll(1.0) == Setting(400.0, None)
    path.write_text("{half")
    assert follower.poll(2.0) == Setting(400.0, None)
    assert follower.poll(1.0 + LEASE_S + 0.1) is None
    leader.set(Setting(None, 900.0))
    assert follower.poll(30.0) == Setting(None, 900.0)
    leader.set(None)
    assert follower.poll(31.0) is None
    follower.refuse("no permission")
    with pytest.raises(LeverError, match="no permission"):
        leader.set(Setting(400.0, None))
    leader.close()
    assert follower.poll(32.0) is None


def test_a_refusal_is_seen_without_a_change_of_the_leader(tmp_path):
    """Promise: a leader that does not change its setting learns of a refusal at its next
    heartbeat.
    """
    path = tmp_path / "jobs" / "job.json"
    leader = JobLeader(path, "leader")
    leader.set(Setting(400.0, None))
    assert leader.beat(0.0) == ""
    JobFollower(path).refuse("no permission on node 2")
    assert leader.beat(BEAT_S / 2) == "", "no look at a shared folder more often than it writes"
    assert leader.beat(BEAT_S) == "no permission on node 2"


@pytest.mark.parametrize(
    ("words", "rank"),
    [
        ("torchrun --nnodes 2 --node-rank 1 --rdzv-id 7 train.py", 1),
        ("torchrun --nnodes=2 --node_rank=0 train.py", 0),
        ("torchrun --nnodes 1 --node-rank 0 train.py", None),
        ("torchrun --nproc-per-node 2 train.py", None),
        ("python train.py --nnodes x --node-rank y", None),
    ],
)
def test_nodes_of_torchrun(words, rank):
    """Promise: one run per node is one job."""
    job = _torchrun_nodes(words.split())
    assert (None if job is None else job.rank) == rank


def test_two_ranks_of_a_launcher(folder):
    """Promise: real torch programs, started by a shell as ranks, are followed and restored."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (folder / "rank.py").write_text(
        TRAINING.replace("ProgramSteps.shared().step()", "model_step()")
        + "import torch\nmodel = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "def model_step():\n    model(torch.ones(2, 4)).sum().backward(); optimizer.step()\n"
        "train(2, until=was_set)\n"
    )
    program = (
        "#!/bin/sh\n"
        f"LOCAL_RANK=0 {sys.executable} rank.py & LOCAL_RANK=1 exec {sys.executable} rank.py\n"
    )
    done, data = saved_run(folder, program, "--follow")
    assert done.returncode == 0, done.stderr
    assert data["step_totals"]["processes"] == 2
    assert data["saving"]["state"] == "applied", data["saving"]
    assert limits() == AS_FOUND


# -- parts ---------------------------------------------------------------------------------


class Writer(step_file.StepFileWriter):
    """A rank that steps at given times."""

    def __init__(self, folder: Path, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        super().__init__(str(folder))

    def write(self, *times_s: float) -> None:
        for time_s in times_s:
            self.add(step_file.STEP, time_s, time_s, 0.0, 0.0, 0.0, 1.0)
        self.flush(everything=True)


def test_the_slowest_rank_counts(tmp_path, monkeypatch):
    """Promise: a step has ended when every rank has finished it."""
    now_s = 0.0
    live = LiveSteps(tmp_path, lambda: now_s)
    first, second = (Writer(tmp_path, rank, monkeypatch) for rank in (0, 1))
    first.write(1.0, 2.0)
    second.write(1.5)
    assert [event.at_s for event in live.poll()] == [1.5]
    second.write(2.25, 3.5)
    assert [event.at_s for event in live.poll()] == [2.25]
    first.write(3.0)
    assert live.poll() == [(3.5, True)]


def test_a_rank_that_stops_stepping_does_not_block_the_others(tmp_path, monkeypatch):
    """Promise: after a moment, steps of the other ranks count again."""
    now = [0.0]
    live = LiveSteps(tmp_path, lambda: now[0])
    first, second = (Writer(tmp_path, rank, monkeypatch) for rank in (0, 1))
    first.write(1.0)
    second.write(1.0)
    assert len(live.poll()) == 1
    first.write(*(2.0 + i for i in range(30)))
    assert live.poll() == []
    now[0] = 40.0
    assert len(live.poll()) == 30


def test_the_next_process_of_a_rank_takes_over(tmp_path, monkeypatch):
    """Promise: the second stage of a script is followed when the first is silent."""
    now = [0.0]
    live = LiveSteps(tmp_path, lambda: now[0])
    first = Writer(tmp_path, 0, monkeypatch)
    first.write(1.0)
    assert len(live.poll()) == 1
    second = Writer(tmp_path, 0, monkeypatch)
    now[0] = 50.0
    second.write(*(10.0 + i for i in range(30)))
    assert [event.at_s for event in live.poll()] == [10.0 + i for i in range(30)]


def test_evaluations_interrupt(tmp_path, monkeypatch):
    """Promise: evaluation, checkpoint and compilation are reported as interruptions, in order."""
    live = LiveSteps(tmp_path)
    rank = Writer(tmp_path, 0, monkeypatch)
    rank.add(step_file.STEP, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0)
    rank.add(step_file.EVALUATION, 1.5, 4.0)
    rank.write(5.0)
    assert live.poll() == [(1.0, True), (1.5, False), (5.0, True)]


def test_a_program_is_recognised(tmp_path, monkeypatch):
    """Promise: seeds, names and the interpreter's path do not identify a program; arguments and
    GPUs do.
    """
    monkeypatch.chdir(tmp_path)
    script = Path("train.py")
    script.write_text("train()")
    models = ("H200", "H200")

    def key(*words, gpus=models):
        return ProgramKey.of([*words], gpus)

    first = key("python", "train.py", "--seed", "1", "--batch", "8", "--output-dir=a")
    assert first == key("/usr/bin/python", "./train.py", "--batch", "8", "--seed=2")
    assert first != key("python", "train.py", "--batch", "16")
    assert first != key("python", "train.py", "--batch", "8", gpus=("H200",))
    learned = LearnedSetting(Setting(450.0, None), 1_200.0, 0.1)
    write_learned(tmp_path / "saver", first, learned)
    assert read_learned(tmp_path / "saver", first) == learned
    script.write_text("train(); print('changed')")
    changed = key("python", "train.py", "--batch", "8")
    assert changed.by_content != first.by_content
    assert read_learned(tmp_path / "saver", changed) == learned
    other = key("python", "other.py", "--batch", "8")
    assert read_learned(tmp_path / "saver", other) is None


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 1}', '{"version": 1, "learned": {"a": 1}}']
)
def test_a_damaged_file_of_settings(tmp_path, text):
    """Promise: it is ignored."""
    key = ProgramKey("a", "b")
    (tmp_path / "a.json").write_text(text)
    assert read_learned(tmp_path, key) is None


def test_options_that_do_not_fit(folder):
    """Promise: the message names option, value and remedy, and the program is not started."""
    for words, expected in (
        (["--max-slowdown", "fast"], "--max-slowdown: 'fast' is not a share"),
        (["--max-slowdown", "5"], "--max-slowdown 5: give a share from 0 to 100%, such as 5%"),
        (["--metric", "power"], "--metric power: use one of energy, eds, edp"),
        (["--no-steps"], "leave out --no-steps"),
    ):
        started = start(folder, "open('started', 'w')", *words)
        _, said = started.communicate(timeout=300)
        assert started.returncode == 2
        assert expected in " ".join(said.replace("│", " ").split())
    assert not (folder / "started").exists()
