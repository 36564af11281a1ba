"""Start a program as a shell would, or say why it cannot be started."""

import errno
import os
import shutil
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wattloop.core.errors import CommandError

__all__ = ["find_program", "launch"]

NOT_FOUND, NOT_EXECUTABLE = 127, 126
RESTORED = [getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)]
"""Python ignores these for itself; a program expects them at their defaults."""


def launch(
    command: Sequence[str],
    environment: Mapping[str, str],
    signal_mask: Iterable[int],
    *,
    setsid: bool = False,
    streams: Mapping[int, int] | None = None,
) -> int:
    """Start `command` with our streams, terminal and process group; its process number.

    Args:
        command: program and arguments.
        environment: all of its variables.
        signal_mask: signals that it finds blocked.
        setsid: whether it leads a session of its own, without our terminal, so that the whole
            group can be ended.
        streams: its descriptors that are ours, such as {1: file} for its standard output.

    Raises:
        CommandError: with the exit code a shell would give and what to do.
    """
    program = command[0]
    options: dict[str, Any] = {"setsigmask": signal_mask, "setsigdef": RESTORED}
    if setsid:
        options["setsid"] = True
    if streams:
        options["file_actions"] = [
            (os.POSIX_SPAWN_DUP2, ours, its) for its, ours in streams.items()
        ]
    try:
        return os.posix_spawnp(program, list(command), environment, **options)
    except OSError as error:
        if error.errno == errno.ENOEXEC and _looks_like_text(program):
            # A script without '#!' is handed to sh, as every shell does.
            path = shutil.which(program) or program
            shell = ["/bin/sh", path, *command[1:]]
            return os.posix_spawnp(shell[0], shell, environment, **options)
        raise _explained(program, error) from None
    except ValueError as error:
        raise CommandError(f"{program!r} cannot be started: {error}", NOT_EXECUTABLE) from None


def find_program(program: str) -> None:
    """Raise the `CommandError` of a program that plainly cannot be started, before any set-up."""
    if shutil.which(program) is None:
        number = errno.EACCES if Path(program).exists() or _on_path(program) else errno.ENOENT
        raise _explained(program, OSError(number, os.strerror(number)))


def _explained(program: str, error: OSError) -> CommandError:
    path = Path(program)
    reason = error.strerror or str(error)
    if "/" not in program and not _on_path(program):
        return CommandError(
            f"{program}: command not found; check the spelling, or give its path "
            f"(a program in this directory is ./{program})",
            NOT_FOUND,
        )
    if path.is_dir():
        return CommandError(f"{program} is a directory; name the program to run", NOT_EXECUTABLE)
    if error.errno == errno.ENOENT and not path.exists() and "/" in program:
        return CommandError(f"{program}: no such file; check the path", NOT_FOUND)
    if error.errno == errno.ENOENT:
        return CommandError(
            f"{program}: the interpreter named in its first line ('#!') or its loader does not "
            "exist; correct that line or install it",
            NOT_EXECUTABLE,
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return CommandError(
            f"{program}: not allowed to execute ({reason}); run 'chmod +x {program}', or start "
            "it through its interpreter, such as 'python'",
            NOT_EXECUTABLE,
        )
    return CommandError(f"{program} cannot be executed: {reason}", NOT_EXECUTABLE)


def _on_path(program: str) -> bool:
    """Whether any directory of PATH holds a file of that name, executable or not."""
    return shutil.which(program, mode=os.F_OK) is not None


def _looks_like_text(program: str) -> bool:
    try:
        with Path(shutil.which(program) or program).open("rb") as file:
            return b"\0" not in file.read(128)
    except OSError:
        return False
