"""Promises of `supervise`: the program behaves as without Wattloop, and Wattloop survives it."""

import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from wattloop.measure.command import short_name

SRC = Path(__file__).parents[2] / "src"
DRIVER = """
import os, sys
from wattloop.core.errors import CommandError
from wattloop.measure.command import Supervisor
follow = sys.argv[1] == "follow"
with Supervisor(follow=follow) as supervisor:
    try:
        outcome = supervisor.run(sys.argv[2:], os.environ)
        left = supervisor.left_running()
    except CommandError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
print(f"ended {outcome.exit_code} left {left}", file=sys.stderr)
sys.exit(outcome.exit_code)
"""


def driver(*command: str, follow: bool = False) -> list[str]:
    return [sys.executable, "-c", DRIVER, "follow" if follow else "plain", *command]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SRC)}


def supervised(
    *command: str, follow: bool = False, **options: object
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        driver(*command, follow=follow),
        env=environment(),
        capture_output=True,
        timeout=300,
        check=False,
        **options,  # type: ignore[call-overload] - passes subprocess options through
    )


@pytest.mark.parametrize("code", [0, 1, 2, 42, 255])
def test_exit_code_is_the_programs_own(code: int) -> None:
    """Every exit code arrives unchanged."""
    assert supervised("sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "INT"])
def test_death_by_signal_is_reported_as_a_shell_does(name: str) -> None:
    """A program killed by signal N gives 128 + N, and Wattloop survives the crash."""
    done = supervised("sh", "-c", f"kill -{name} $$")
    assert done.returncode == 128 + signal.Signals[f"SIG{name}"]
    assert b"ended" in done.stderr


def test_command_that_does_not_exist_gives_127() -> None:
    """The code is 127, with a remedy."""
    done = supervised("no-such-program-here")
    assert done.returncode == 127
    assert b"command not found" in done.stderr


def test_path_that_does_not_exist_gives_127(tmp_path: Path) -> None:
    """A wrong path gives 127 and is named."""
    done = supervised(str(tmp_path / "missing"))
    assert done.returncode == 127
    assert b"no such file" in done.stderr


def test_file_without_execute_permission_gives_126(tmp_path: Path) -> None:
    """The code is 126, with the chmod that helps."""
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\nexit 0\n")
    done = supervised(str(script))
    assert done.returncode == 126
    assert b"chmod +x" in done.stderr


def test_directory_as_command_gives_126(tmp_path: Path) -> None:
    """The code is 126, and the message says that it is a directory."""
    done = supervised(str(tmp_path))
    assert done.returncode == 126
    assert b"is a directory" in done.stderr


def test_missing_interpreter_gives_126(tmp_path: Path) -> None:
    """The message names the wrong '#!' line of the script."""
    script = tmp_path / "odd"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = supervised(str(script))
    assert done.returncode == 126
    assert b"interpreter" in done.stderr


def test_script_without_interpreter_line_runs_in_sh(tmp_path: Path) -> None:
    """As in a shell, a text file with execute permission is a sh script."""
    script = tmp_path / "plain"
    script.write_text("echo hello $1\nexit 7\n")
    script.chmod(0o755)
    done = supervised(str(script), "you")
    assert (done.returncode, done.stdout) == (7, b"hello you\n")


def test_piped_stdin_reaches_the_program_untouched() -> None:
    """Bytes piped in come out of cat, and Wattloop reads none of them."""
    data = bytes(range(256)) * 4_000
    assert supervised("cat", input=data).stdout == data


def test_gigabytes_of_output_do_not_pass_through_wattloop() -> None:
    """The program has the same standard output as Wattloop, so printing costs nothing."""
    script = "import os; print(os.fstat(1).st_ino, os.readlink('/proc/self/fd/1'))"
    with Path(os.devnull).open("wb") as sink:
        done = subprocess.run(
            driver("sh", "-c", "head -c 300000000 /dev/zero"),
            env=environment(),
            stdout=sink,
            stderr=subprocess.PIPE,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0
    read, write = os.pipe()
    ours = os.fstat(write).st_ino
    subprocess.run(
        driver(sys.executable, "-c", script), env=environment(), stdout=write, check=True
    )
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read().split()[0] == str(ours)


def test_extra_descriptors_are_inherited() -> None:
    """A descriptor above 2 that a shell opened for the program reaches it."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    subprocess.run(
        driver("bash", "-c", f"echo through >&{write}"),
        env=environment(),
        close_fds=False,
        check=True,
        capture_output=True,
    )
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "through\n"


def test_program_starts_with_default_signals_and_no_mask() -> None:
    """Wattloop blocks and ignores signals for itself; the program must inherit neither."""
    command = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]
    bare = subprocess.run(command, capture_output=True, check=True)
    glibc_own = 0b11 << 31  # signals 32 and 33, which posix_spawn ignores until threads start

    def masks(text: bytes) -> list[int]:
        return [int(line.split()[1], 16) & ~glibc_own for line in text.splitlines()]

    assert masks(supervised(*command).stdout) == masks(bare.stdout)


COUNTER = """
import os, signal, sys, time
seen = []
def note(number, frame):
    seen.append(number)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
               signal.SIGUSR2, signal.SIGWINCH):
    signal.signal(number, note)
os.write(1, b"ready\\n")
while not seen:
    time.sleep(0.01)
deadline = time.monotonic() + float(sys.argv[2])
while len(seen) < int(sys.argv[1]) and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(0.2)
os.write(1, (repr(seen) + "\\n").encode())
"""


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "WINCH"])
def test_signal_sent_to_wattloop_reaches_the_program_once(name: str) -> None:
    """kill(pid of Wattloop) is passed on exactly once."""
    number = signal.Signals[f"SIG{name}"]
    process = subprocess.Popen(
        driver(sys.executable, "-c", COUNTER, "1", "10"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=300)
    assert out == f"[{int(number)}]\n".encode()
    assert process.returncode == 0


def test_signal_from_the_programs_own_group_is_not_sent_back() -> None:
    """`kill 0` in the program reaches its group, with Wattloop in it, which must not return it."""
    script = "trap 'echo hit' USR1; kill -USR1 0; sleep 0.3; echo end"
    process = subprocess.Popen(
        driver("sh", "-c", script),
        env=environment(),
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, _ = process.communicate(timeout=300)
    assert out == b"hit\nend\n"
    assert process.returncode == 0


def test_ignored_hangup_stays_ignored() -> None:
    """Under nohup the program ignores SIGHUP too."""
    done = subprocess.run(
        ["nohup", *driver("sh", "-c", "kill -HUP $$; echo alive")],
        env=environment(),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == b"alive\n"


def test_killing_wattloop_leaves_the_program_running(tmp_path: Path) -> None:
    """SIGKILL to Wattloop does not harm the program."""
    mark = tmp_path / "done"
    process = subprocess.Popen(
        driver("sh", "-c", f"echo ready; sleep 0.5; touch {mark}"),
        env=environment(),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    process.wait()
    process.stdout.close()
    assert eventually(mark.exists)


def test_program_that_forks_and_exits_is_not_waited_for(tmp_path: Path) -> None:
    """By default the run ends with the command, and reports how many processes it left."""
    done = subprocess.run(
        driver("sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!; exit 3"),
        env=environment(),
        capture_output=True,
        check=False,
    )
    os.kill(int(done.stdout), signal.SIGKILL)  # it still ran
    assert done.returncode == 3
    assert b"left 1" in done.stderr


def test_follow_waits_for_a_daemon(tmp_path: Path) -> None:
    """With `follow` the run ends when the double-forked daemon does; the code is the command's."""
    mark = tmp_path / "done"
    daemon = f"setsid sh -c 'sleep 0.5; touch {mark}' >/dev/null 2>&1 & exit 3"
    done = supervised("sh", "-c", f"({daemon}); exit 3", follow=True)
    assert done.returncode == 3
    assert mark.exists()
    assert b"left 0" in done.stderr


def test_follow_ends_when_asked_to() -> None:
    """A second request to stop, after the command has ended, stops only the waiting."""
    process = subprocess.Popen(
        driver(
            "sh",
            "-c",
            "setsid sleep 600 >/dev/null 2>&1 & echo $$ $!; exec >&-; exit 5",
            follow=True,
        ),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    command, left = map(int, process.stdout.readline().split())
    assert eventually(lambda: not Path(f"/proc/{command}").exists())  # it has ended, and we know
    process.terminate()
    assert process.wait(timeout=300) == 5
    os.kill(left, signal.SIGKILL)
    assert process.stderr is not None
    assert b"left 1" in process.stderr.read()
    process.stdout.close()
    process.stderr.close()


def test_orphaned_processes_do_not_pile_up() -> None:
    """Orphaned processes that end while the program runs are collected."""
    script = (
        "for i in 1 2 3 4 5; do (sh -c 'exit 0' &) ; done; sleep 2.4; "
        "grep -c '^State:.Z' /proc/[0-9]*/status 2>/dev/null | grep -c ':1$'; "
        "cat /proc/$PPID/task/$PPID/children"
    )
    lines = supervised("sh", "-c", script).stdout.decode().splitlines()
    assert len(lines[-1].split()) == 1


def test_stop_before_the_start_means_no_start() -> None:
    """After ctrl-C during the setup of the meters the program is not started."""
    code = DRIVER.replace("    try:", "    os.kill(os.getpid(), 2)\n    try:", 1)
    done = subprocess.run(
        [sys.executable, "-c", code, "plain", "echo", "started"],
        env=environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 130
    assert done.stdout == b""


# ---- on a real terminal


@contextmanager
def terminal(command: list[str]) -> Iterator["Terminal"]:
    """Start `command` in a new session whose terminal is a pty that the test types into."""
    pid, master = pty.fork()
    if pid == 0:
        os.environ["PYTHONPATH"] = str(SRC)
        os.environ["PS1"] = "$ "
        os.execvp(command[0], command)
    session = Terminal(pid, master)
    try:
        yield session
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.close(master)


class Terminal:
    def __init__(self, pid: int, master: int) -> None:
        self.pid = pid
        self.master = master
        self.text = ""

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def expect(self, wanted: str, timeout_s: float = 120.0) -> str:
        """Read until `wanted` appears after the text that was expected before."""
        deadline_s = time.monotonic() + timeout_s
        while wanted not in self.text:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"no {wanted!r} in {self.text!r}"
            if select.select([self.master], [], [], left_s)[0]:
                try:
                    self.text += os.read(self.master, 65536).decode(errors="replace")
                except OSError:
                    break
        assert wanted in self.text, f"no {wanted!r} in {self.text!r}"
        before, _, self.text = self.text.partition(wanted)
        return before

    def answers(self, wanted: str, to: str, within_s: float = 0.2) -> bool:
        """Type `to`, and return true if `wanted` has appeared or appears soon."""
        self.type(to)
        while wanted not in self.text and select.select([self.master], [], [], within_s)[0]:
            self.text += os.read(self.master, 65536).decode(errors="replace")
        _, found, rest = self.text.partition(wanted)
        self.text = rest if found else self.text
        return bool(found)

    def exit_code(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_program_gets_the_terminal() -> None:
    """Programs that need a terminal find one on all three streams, and can read from it."""
    script = "import os; print([os.isatty(fd) for fd in (0, 1, 2)]); print('got', input())"
    with terminal(driver(sys.executable, "-c", script)) as session:
        session.expect("[True, True, True]")
        session.type("typed\n")
        session.expect("got typed")
        assert session.exit_code() == 0


def test_ctrl_c_reaches_the_program_once() -> None:
    """ctrl-C from the terminal arrives exactly once, and Wattloop survives it."""
    with terminal(driver(sys.executable, "-c", COUNTER, "2", "1")) as session:
        session.expect("ready")
        session.type("\x03")
        session.expect("[2]")
        session.expect("ended 0")
        assert session.exit_code() == 0


def test_ctrl_c_ends_a_program_that_does_not_catch_it() -> None:
    """ctrl-C on a plain program gives 130."""
    with terminal(driver("sh", "-c", "echo ready $$; sleep 600")) as session:
        session.expect("ready ")
        shell = session.expect("\r")
        # a shell between two commands survives ctrl-C; let it come to `sleep`
        assert eventually(lambda: "sleep" in names_of_children(int(shell)))
        session.type("\x03")
        session.expect("ended 130")
        assert session.exit_code() == 130


def test_ctrl_z_and_fg_work_from_a_shell(tmp_path: Path) -> None:
    """ctrl-Z stops the job for the shell, fg continues it, and the program ends normally."""
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\necho read''y\nread line\necho \"got:$line\"\nexit 9\n")
    script.chmod(0o755)
    with terminal(["bash", "--norc", "--noprofile", "-i"]) as session:
        session.expect("$ ")
        session.type(" ".join(quoted(driver(str(script)))) + "\n")
        session.expect("ready")
        session.type("\x1a")
        session.expect("Stopped")
        session.type("echo shell''alive\n")
        session.expect("shellalive")
        session.type("fg\n")
        time.sleep(0.3)
        session.type("words\n")
        session.expect("got:words")
        session.expect("ended 9")
        session.type("echo code=$?\n")
        session.expect("code=9")


def test_background_job_that_reads_the_terminal_stops_and_resumes(tmp_path: Path) -> None:
    """The kernel stops a background job that wants input, as without Wattloop."""
    script = tmp_path / "job.sh"
    script.write_text('#!/bin/sh\nread line\necho "got:$line"\n')
    script.chmod(0o755)
    with terminal(["bash", "--norc", "--noprofile", "-i"]) as session:
        session.expect("$ ")
        session.type(" ".join(quoted(driver(str(script)))) + " &\n")
        # bash tells of a stopped job before its next prompt
        assert eventually(lambda: session.answers("Stopped", to="\n"))
        session.type("fg\n")
        time.sleep(0.3)
        session.type("words\n")
        session.expect("got:words")
        session.expect("ended 0")


def test_program_stopped_alone_does_not_stop_wattloop(tmp_path: Path) -> None:
    """After SIGSTOP to the program alone (a batch system pausing it) Wattloop still measures."""
    process = subprocess.Popen(
        driver("sh", "-c", f"echo $$; until [ -e {tmp_path}/end ]; do sleep 0.02; done; exit 4"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    program = int(process.stdout.readline())
    os.kill(program, signal.SIGSTOP)
    time.sleep(0.3)
    state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    os.kill(program, signal.SIGCONT)
    (tmp_path / "end").touch()
    assert process.wait(timeout=300) == 4
    assert state not in "Tt"
    process.stdout.close()


def quoted(words: list[str]) -> list[str]:
    return [shlex.quote(word) for word in words]


def names_of_children(pid: int) -> list[str]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [Path(f"/proc/{child}/comm").read_text().strip() for child in children]


def eventually(condition: Callable[[], bool], timeout_s: float = 120.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/python src/train.py --config other.py", "python train.py"),
        ("python -u train.py", "python train.py"),
        ("python -m trainer.main --lr 1", "python -m trainer.main"),
        ("torchrun --nproc-per-node 2 train.py", "torchrun train.py"),
        ("accelerate launch train.py", "accelerate launch train.py"),
        ("sh -c true", "sh"),
    ],
)
def test_a_run_is_named_after_its_program(command: str, name: str) -> None:
    """Launchers and options do not hide what was trained."""
    assert short_name(command.split()) == name
