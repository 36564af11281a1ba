"""Promises of `process`: a process group that ends as a whole, whatever happens to the runner."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from wattloop.core import process
from wattloop.core.errors import CommandError
from wattloop.core.process import ProcessGroup
from wattloop.trials.runner import run_group

ENVIRONMENT = dict(os.environ)


def gone(pid: int) -> bool:
    """Return true if a process has ended within a while."""
    limit_s = time.monotonic() + 300
    while time.monotonic() < limit_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_exit_codes_and_signals_are_the_programs_own(tmp_path: Path) -> None:
    """Exit codes are those of a shell, and signals are the signal's number."""
    assert run_group(["sh", "-c", "exit 7"], ENVIRONMENT).exit_code == 7
    killed = run_group(["sh", "-c", "kill -9 $$"], ENVIRONMENT)
    assert (killed.exit_code, killed.signal, killed.timed_out) == (137, 9, False)


def test_group_is_ended_while_its_number_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the program is reaped, another group may have its number."""
    kill, ours = os.killpg, []

    def watched(group: int, number: int) -> None:
        ours.append(Path(f"/proc/{group}").exists())
        kill(group, number)

    monkeypatch.setattr(os, "killpg", watched)
    assert run_group(["true"], ENVIRONMENT).exit_code == 0
    assert ours == [True]


def test_what_it_prints_goes_to_the_file_and_it_has_no_input(tmp_path: Path) -> None:
    """A program that asks for input reads the end of file instead of waiting for ever."""
    output = tmp_path / "out"
    ended = run_group(["sh", "-c", "cat; echo out; echo err >&2"], ENVIRONMENT, output=output)
    assert ended.exit_code == 0
    assert output.read_text() == "out\nerr\n"


def test_a_program_that_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a program that ignores SIGTERM, and the processes that it started."""
    wait, child = ProcessGroup.wait, tmp_path / "child"

    def wait_once_it_runs(group: ProcessGroup, timeout_s: float | None = None) -> bool:
        while not (child.exists() and child.read_text().strip()):
            time.sleep(0.01)
        return wait(group, timeout_s)

    monkeypatch.setattr(ProcessGroup, "wait", wait_once_it_runs)
    script = f"trap '' TERM; sleep 60 & echo $! > {tmp_path}/child; wait; sleep 60"
    ended = run_group(["sh", "-c", script], ENVIRONMENT, timeout_s=0.3, grace_s=0.2)
    assert ended.timed_out
    assert ended.signal == signal.SIGKILL
    assert ended.lasted_s >= 0.3
    assert gone(int(child.read_text()))


def test_background_processes_are_ended(tmp_path: Path) -> None:
    """Otherwise it would draw power during the following trials."""
    script = f"sleep 60 & echo $! > {tmp_path}/child"
    assert run_group(["sh", "-c", script], ENVIRONMENT).exit_code == 0
    assert gone(int((tmp_path / "child").read_text()))


def test_a_kernel_without_process_handles_is_asked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels before 5.3 have no pidfd_open, and trials run there too."""

    def refused(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused)
    assert run_group(["sh", "-c", "exit 3"], ENVIRONMENT, timeout_s=10).exit_code == 3
    assert run_group(["sleep", "60"], ENVIRONMENT, timeout_s=0.05).timed_out


def test_interrupting_the_runner_ends_the_program(tmp_path: Path) -> None:
    """Ctrl-C reaches only the runner; the group must not outlive it."""
    script = (
        "import os, sys\n"
        "from wattloop.trials.runner import run_group\n"
        "run_group(['sh', '-c', f'echo $$ > {sys.argv[1]}; sleep 60'], dict(os.environ))\n"
    )
    noted = tmp_path / "pid"
    ours = subprocess.Popen([sys.executable, "-c", script, str(noted)], stderr=subprocess.DEVNULL)
    while not (noted.exists() and noted.read_text().strip()):
        time.sleep(0.02)
    ours.send_signal(signal.SIGINT)
    assert ours.wait(120) != 0
    assert gone(int(noted.read_text()))


def test_interrupt_while_the_program_starts_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes when the program runs but its number has not been returned."""
    launch, started = process.launch, []

    def launch_late(*arguments: Any, **options: Any) -> int:
        started.append(launch(*arguments, **options))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(process, "launch", launch_late)
    # a library that an earlier test has loaded may have installed a handler
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_group(["sleep", "60"], ENVIRONMENT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert gone(started[0])


def test_a_missing_program_is_reported() -> None:
    """Message and code are those of a shell."""
    with pytest.raises(CommandError, match="command not found"):
        run_group(["no-such-program"], ENVIRONMENT)
