import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import warm_start

PROGRAM = """
import atexit, os, sys, threading
import wattloop
atexit.register(print, "at exit")
print(__name__, sys.argv, os.getcwd(), sys.path, os.environ["OWN"], sys.stdin.read())
print("to standard error", file=sys.stderr)
def later():
    threading.main_thread().join()
    print("from a thread")
threading.Thread(target=later).start()
END
"""


@pytest.mark.parametrize(
    "end", ["sys.exit(3)", "sys.exit('why')", "1 / 0", "os.kill(os.getpid(), 9)", ""]
)
@pytest.mark.parametrize("way", ["-c", "a file"])
def test_a_forked_program_is_as_one_that_was_started(tmp_path: Path, way: str, end: str) -> None:
    """Promise: arguments, folder, path, environment, streams, threads and end are the same."""
    text = PROGRAM.replace("END", end)
    (tmp_path / "own.py").write_text(text)
    command = [sys.executable, *(("-c", text) if way == "-c" else ("own.py",)), "a", "b c"]
    environment = {**os.environ, "OWN": "value", "PYTHONPATH": str(warm_start.ROOT / "src")}
    started = subprocess.run(
        command,
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    forked = warm_start.run(command, env=environment, cwd=tmp_path)
    assert forked.returncode == started.returncode
    assert forked.stdout.replace(str(tmp_path), "") == started.stdout.replace(str(tmp_path), "")
    assert forked.stderr.splitlines()[:1] == started.stderr.splitlines()[:1]
    assert forked.stderr.splitlines()[-1:] == started.stderr.splitlines()[-1:]


def test_a_process_past_its_time_limit_is_killed(tmp_path: Path) -> None:
    """Promise: the process is killed, as by `subprocess.run` after its time limit."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(subprocess.TimeoutExpired):
        warm_start.run(command, env=os.environ, cwd=tmp_path, timeout=0.2)


def test_what_is_read_at_the_start_of_an_interpreter_holds(tmp_path: Path) -> None:
    """Promise: a program with other variables for the interpreter's start is not forked."""
    command = [sys.executable, "-c", "import sys; print(sys.flags.utf8_mode)"]
    done = warm_start.run(command, env={**os.environ, "PYTHONUTF8": "1"}, cwd=tmp_path)
    assert done.stdout == "1\n"
