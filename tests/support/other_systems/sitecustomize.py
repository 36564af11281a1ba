"""Take Linux's interfaces away from an interpreter, as macOS and Windows lack them.

Put this folder first on PYTHONPATH and name the system in WATTLOOP_TEST_PLATFORM (`win32` or
`darwin`). The standard library is loaded first: it chose its own parts for Linux.
"""

import _ctypes
import asyncio  # noqa: F401 - loaded before the interfaces go
import concurrent.futures  # noqa: F401
import ctypes.util
import getpass  # noqa: F401
import http.server  # noqa: F401
import importlib
import importlib.abc
import importlib.util
import logging.handlers  # noqa: F401
import multiprocessing.connection
import multiprocessing.pool  # noqa: F401
import os
import pathlib  # noqa: F401
import platform
import select
import shutil  # noqa: F401
import signal
import socket
import sqlite3  # noqa: F401
import ssl  # noqa: F401
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
import time
import types
import urllib.request  # noqa: F401
import uuid  # noqa: F401

PLATFORM = os.environ.get("WATTLOOP_TEST_PLATFORM", "")
LINUX_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline")
LINUX_NAMES = {
    os: (
        *("fork", "forkpty", "register_at_fork", "posix_spawn", "posix_spawnp", "waitid", "wait3"),
        *("wait4", "WNOHANG", "WUNTRACED", "WCONTINUED", "WIFSTOPPED", "WIFSIGNALED", "WTERMSIG"),
        *("WIFEXITED", "WEXITSTATUS", "getuid", "geteuid", "getgid", "getegid", "getgroups"),
        *("getresuid", "setuid", "setgid", "setsid", "getsid", "killpg", "getpgid", "getpgrp"),
        *("setpgid", "tcgetpgrp", "tcsetpgrp", "uname", "sysconf", "sysconf_names", "getloadavg"),
        *("sched_getaffinity", "sched_setaffinity", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK"),
        *("O_DIRECTORY", "O_SYNC", "O_DSYNC", "fchmod", "chown", "fchown", "lchown", "statvfs"),
        *("fstatvfs", "mkfifo", "mknod", "pread", "pwrite", "preadv", "pwritev", "sendfile"),
        *("posix_fallocate", "posix_fadvise", "fdatasync", "pipe2", "nice", "getpriority"),
        *("setpriority", "pidfd_open", "memfd_create", "eventfd", "RTLD_LAZY", "RTLD_NOW", "sync"),
        *("POSIX_SPAWN_DUP2", "POSIX_SPAWN_OPEN", "POSIX_SPAWN_CLOSE", "P_PID", "P_PIDFD"),
        *("WEXITED", "WNOWAIT", "getxattr", "setxattr", "openpty", "ctermid", "fchdir", "chroot"),
    ),
    signal: (
        *("SIGKILL", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGTSTP", "SIGCONT"),
        *("SIGSTOP", "SIGTTIN", "SIGTTOU", "SIGPIPE", "SIGALRM", "SIGWINCH", "SIGXFSZ", "SIGXCPU"),
        *("pthread_sigmask", "sigwait", "sigwaitinfo", "sigtimedwait", "sigpending", "setitimer"),
        *("getitimer", "alarm", "pause", "siginterrupt", "pthread_kill", "SIG_BLOCK"),
        *("SIG_UNBLOCK", "SIG_SETMASK", "SIGRTMIN", "SIGRTMAX", "SIGURG", "SIGIO"),
    ),
    time: ("clock_gettime", "clock_gettime_ns", "clock_settime", "clock_getres", "tzset",
           "CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW", "CLOCK_REALTIME",
           "CLOCK_PROCESS_CPUTIME_ID", "CLOCK_THREAD_CPUTIME_ID", "pthread_getcpuclockid"),
    socket: ("AF_UNIX", "AF_NETLINK", "AF_PACKET", "SO_PEERCRED", "SO_REUSEPORT", "sethostname"),
    select: ("epoll", "poll"),
}  # fmt: skip
NOT_ON_MACOS = {
    os: (
        *("posix_fallocate", "posix_fadvise", "fdatasync", "pipe2", "sched_getaffinity"),
        *("sched_setaffinity", "pidfd_open", "memfd_create", "eventfd", "getxattr", "setxattr"),
        *("P_PIDFD", "O_DIRECT", "getresuid", "waitid"),
    ),
    signal: ("sigwaitinfo", "sigtimedwait", "SIGRTMIN", "SIGRTMAX", "pidfd_send_signal", "SIGPWR"),
    time: ("CLOCK_BOOTTIME", "pthread_getcpuclockid"),
    socket: ("AF_NETLINK", "AF_PACKET", "SO_PEERCRED"),
    select: ("epoll",),
}


class _Missing(importlib.abc.MetaPathFinder):
    """An import hook that refuses modules that the system lacks."""

    def find_spec(self, name, path=None, target=None):
        if name in LINUX_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _is_linux_tree(path: object) -> bool:
    text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
    if text.startswith("/dev/shm/pytest-of-"):  # the folder of a test, see tests/conftest.py
        return False
    return text.startswith(("/proc/", "/sys/", "/dev/shm")) or text in ("/proc", "/sys")


def _refuse_linux_trees(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir", "os.mkdir") and _is_linux_tree(arguments[0]):
        raise FileNotFoundError(2, "No such file or directory", str(arguments[0]))


def _blind(call):
    def wrapper(path, *args, **options):
        if _is_linux_tree(path):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return call(path, *args, **options)

    return wrapper


def _msvcrt() -> types.ModuleType:
    """Provide Windows' locks of bytes, made of POSIX ones of open files."""
    import errno
    import fcntl

    def locking(descriptor: int, mode: int, count: int) -> None:
        begin = os.lseek(descriptor, 0, os.SEEK_CUR)
        assert (begin, count) == (2**40, 1)  # beyond the content, which others may read
        try:
            fcntl.flock(descriptor, fcntl.LOCK_UN if mode == 0 else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(errno.EACCES, "Permission denied") from None

    module = types.ModuleType("msvcrt")
    module.locking, module.LK_UNLCK, module.LK_NBLCK = locking, 0, 2
    return module


def _load_library(name: str, flags: int = 0) -> int:
    raise FileNotFoundError(f"Could not find module '{name}' (or one of its dependencies).")


if PLATFORM:
    for name in os.environ.get("WATTLOOP_TEST_PRELOADED", "").split():
        if importlib.util.find_spec(name):  # packages that choose their parts by the system, too
            importlib.import_module(name)
    if PLATFORM == "win32":
        sys.modules["msvcrt"] = _msvcrt()
        _ctypes.LoadLibrary = ctypes.WinDLL = _load_library
    for module, names in (LINUX_NAMES if PLATFORM == "win32" else NOT_ON_MACOS).items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    if PLATFORM == "win32":
        for name in LINUX_MODULES:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, _Missing())
    os.stat, os.lstat, os.access = map(_blind, (os.stat, os.lstat, os.access))
    sys.addaudithook(_refuse_linux_trees)
    system = {"win32": "Windows", "darwin": "Darwin"}[PLATFORM]
    platform.system = lambda: system
    platform.machine = lambda: {"win32": "AMD64", "darwin": "arm64"}[PLATFORM]
    platform.release = lambda: {"win32": "11", "darwin": "24.1.0"}[PLATFORM]
    sys.platform = PLATFORM
