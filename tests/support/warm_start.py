"""Programs that import Wattloop, forked from one that has imported its modules.

A new interpreter that imports the command line and the store takes half a second of processor
time before it does anything, a fork some milliseconds. The forked process has its own environment,
folder, arguments, streams and exit code, as if it had been started fresh.

Run as a program this is the process that the others are forked from.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PRELOADED = ("wattloop.cli.main", "wattloop.store.runs", "typer.rich_utils", "rich.table", "yaml")
"""What most commands import, in addition to the modules of all verbs."""

AT_START = (
    "PYTHON",
    "LC_",
    "LANG",
    "LD_",
    "OMP_",
    "_TYPER",
    "TERMINAL_",
    "FORCE_",
    "PY_COLORS",
    "GITHUB_",
)
"""Beginnings of variables that are read when an interpreter starts or a module is imported."""


class Started:
    """A process that was forked on request: its id, and its end."""

    def __init__(self, command: Sequence[str], connection: socket.socket) -> None:
        self.args = command
        self._connection = connection
        self.pid = int(connection.recv(64))
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code, negative after a signal.

        Raises:
            subprocess.TimeoutExpired: it has not ended by then.
        """
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self.returncode = int(self._connection.recv(64))
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    streams: Sequence[int],
    terminal: bool = False,
) -> "Started | subprocess.Popen[bytes]":
    """Start a command; one of Python, `-m MODULE`, `-c CODE` or a file, is forked.

    Args:
        command: the arguments, the first of which is the interpreter of this process.
        env: the whole environment.
        cwd: the folder in which it starts.
        streams: file descriptors of its standard input, output and error.
        terminal: whether standard input is the controlling terminal of a session of its own.
    """
    python = command[0] == sys.executable and (
        command[1] in ("-m", "-c") or command[1].endswith(".py")
    )
    if not python or _at_start(env) != _at_start(os.environ):
        return subprocess.Popen(
            command,
            env=dict(env),
            cwd=cwd,
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            start_new_session=terminal,
            preexec_fn=_take_terminal if terminal else None,  # noqa: PLW1509 - one system call
        )
    request = {"words": list(command[1:]), "env": dict(env), "cwd": str(cwd), "terminal": terminal}
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(_server())
    socket.send_fds(connection, [json.dumps(request).encode()], streams)
    return Started(command, connection)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    text: bool = True,
    merged: bool = False,
    timeout: float = 300.0,
) -> "subprocess.CompletedProcess[Any]":
    """Run a command to its end, with its output captured; see `start`.

    Args:
        command: the arguments, the first of which is the interpreter of this process.
        env: the whole environment.
        cwd: the folder in which it starts.
        text: whether output is returned as text instead of bytes.
        merged: whether standard error goes into standard output.
        timeout: seconds after which it is killed.

    Raises:
        subprocess.TimeoutExpired: it ran longer.
    """
    end_s = time.monotonic() + timeout
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    with Path(os.devnull).open() as nothing:
        streams = [nothing.fileno(), out_end, out_end if merged else err_end]
        started = start(command, env=env, cwd=cwd, streams=streams)
    os.close(out_end)
    os.close(err_end)
    try:
        output = _read_all([out, err], end_s)
        code = started.wait(max(0.0, end_s - time.monotonic()))
    except (TimeoutError, subprocess.TimeoutExpired):
        started.kill()
        raise subprocess.TimeoutExpired(started.args, timeout) from None
    finally:
        os.close(out)
        os.close(err)
    shown = [part.decode() for part in output] if text else output
    return subprocess.CompletedProcess(started.args, code, shown[0], None if merged else shown[1])


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(AT_START) and name != "PYTHONPATH"
    }


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_all(pipes: Sequence[int], end_s: float) -> list[bytes]:
    """Read every pipe until all its writers have closed it."""
    parts: dict[int, list[bytes]] = {pipe: [] for pipe in pipes}
    left = set(pipes)
    while left:
        ready = select.select(left, [], [], max(0.0, end_s - time.monotonic()))[0]
        if not ready:
            raise TimeoutError
        for pipe in ready:
            part = os.read(pipe, 1 << 16)
            parts[pipe].append(part)
            if not part:
                left.remove(pipe)
    return [b"".join(parts[pipe]) for pipe in pipes]


@cache
def _server() -> str:
    """Start the process that others are forked from; it ends with this one. Return its socket."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WATTLOOP", "XDG", "SLURM"))}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.support.warm_start"],
        env={**kept, "PYTHONPATH": path},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    _SERVERS.append(started)  # its standard input stays open
    assert started.stdout is not None
    return f"\0wattloop-warm-{started.stdout.readline().strip()}"


_SERVERS: list["subprocess.Popen[str]"] = []


def _serve() -> dict[str, Any]:
    """Fork a process for each request. Return in that process, with the request."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(b"\0wattloop-warm-%d" % os.getpid())  # of Linux: not in the file system
    listener.listen()
    from wattloop.cli.app import VERBS

    for name in (*PRELOADED, *(f"wattloop.cli.commands.{module}" for module, _ in VERBS.values())):
        importlib.import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, (
        "a fork has only one of several threads"
    )
    gc.collect()
    gc.freeze()
    os.write(1, b"%d\n" % os.getpid())
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready in select.select([0, listener.fileno(), *running], [], [])[0]:
            if ready == 0:
                sys.exit()
            if ready in running:
                pid, connection = running.pop(ready)
                os.close(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with connection, contextlib.suppress(OSError):
                    connection.send(str(code).encode())
                continue
            connection, _ = listener.accept()
            message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            pid = os.fork()
            if pid == 0:
                for each in (listener, connection, *(other for _, other in running.values())):
                    each.detach()
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                os.closerange(3, 4096)
                request: dict[str, Any] = json.loads(message)
                return request
            for stream in streams:
                os.close(stream)
            connection.send(str(pid).encode())
            running[os.pidfd_open(pid)] = pid, connection


def _become(request: dict[str, Any], path: Sequence[str]) -> None:
    """Make this process that of the request; `path` is where an interpreter finds packages."""
    if request["terminal"]:
        os.setsid()
        _take_terminal()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [request["cwd"], *dict.fromkeys([*filter(None, own), *path])]
    importlib.invalidate_caches()
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", 0, closefd=False), write_through=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def _execute(first: str, *rest: str) -> None:
    """Run the arguments that follow `python`."""
    if first == "-m":
        sys.argv[:] = rest
        sys.modules.pop(rest[0], None)  # as in a new interpreter, it is not yet imported
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        sys.path[0] = ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv[:] = [first, *rest]
        sys.path[0] = str(Path(first).resolve().parent)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    installed = [place for place in sys.path[1:] if place not in (str(ROOT), str(ROOT / "src"))]
    asked = _serve()
    _become(asked, [*installed, str(ROOT / "src")])
    try:
        _execute(*asked["words"])
        exit_code: Any = 0
    except SystemExit as end:
        exit_code = end.code
    if not isinstance(exit_code, int | None):
        sys.exit(exit_code)
    # As an interpreter ends, but nothing is freed: that would copy every page of the modules.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((exit_code or 0) & 0xFF)
