"""A command in a pseudo-terminal, as a person starts it: all three streams are the terminal."""

import fcntl
import os
import re
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from select import select

from tests.support import warm_start

__all__ = ["Shown", "in_terminal"]

TIMEOUT_S = 600.0
CTRL_C = b"\x03"
ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9])")
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")


@dataclass(frozen=True, slots=True)
class Shown:
    """Output of a command to its terminal.

    Args:
        code: its exit code.
        raw: everything, with the terminal's control sequences.
    """

    code: int
    raw: str

    @property
    def text(self) -> str:
        """Without control sequences, one line per line."""
        return ESCAPE.sub("", self.raw).replace("\r\n", "\n").replace("\r", "\n")

    @property
    def redrawn(self) -> list[str]:
        """Lines that replaced the one before them in place: a bar that wraps would leave some."""
        parts = self.raw.split("\r\x1b[2K")[1:]
        return [ESCAPE.sub("", re.split("[\r\n]", part)[0]).rstrip() for part in parts]

    @property
    def has_colours(self) -> bool:
        return COLOUR.search(self.raw) is not None

    @property
    def has_escapes(self) -> bool:
        return "\x1b" in self.raw


def in_terminal(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    columns: int,
    answer: str = "",
    interrupt_after: str = "",
) -> Shown:
    """Run a command to its end; `answer` is typed once it waits for input.

    With `interrupt_after`, Ctrl-C is typed when the command has printed that text.

    Its width is that of the terminal itself: COLUMNS and LINES are not set.
    """
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    variables = {k: v for k, v in environment.items() if k not in ("COLUMNS", "LINES")}
    # Ctrl-C reaches the command only if the terminal is the controlling one of its session
    started = warm_start.start(
        command, env=variables, cwd=folder, streams=[theirs] * 3, terminal=True
    )
    os.close(theirs)
    if answer:
        os.write(ours, answer.encode())
    try:
        raw = _read_all(ours, time.monotonic() + TIMEOUT_S, interrupt_after.encode())
        code = started.wait(timeout=TIMEOUT_S)
    finally:
        started.kill()
        started.wait()
        os.close(ours)
    return Shown(code, raw)


def _read_all(terminal: int, end_s: float, interrupt_after: bytes) -> str:
    """Until every process has closed the terminal."""
    parts: list[bytes] = []
    while (left_s := end_s - time.monotonic()) > 0 and select([terminal], [], [], left_s)[0]:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux: EIO once the other side is closed
            break
        if not part:
            break
        parts.append(part)
        if interrupt_after and interrupt_after in b"".join(parts):
            os.write(terminal, CTRL_C)
            interrupt_after = b""
    return b"".join(parts).decode(errors="replace")
