"""What commands print: messages on standard error, data on standard output."""

import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO, cast

from wattloop.cli.table_layout import (
    column_widths,
    fits_folded,
    folded_blocks,
    padded_line,
)
from wattloop.core.errors import ConfigError
from wattloop.core.text import escaped
from wattloop.core.user_code import user_path

__all__ = [
    "PLAIN_TERMINALS",
    "TerminalText",
    "check_target",
    "is_terminal",
    "print_table",
    "say",
    "table_text",
    "terminal_room",
    "write_json",
    "write_text",
]

PLAIN_TERMINALS = ("dumb", "unknown")
"""Values of TERM whose terminals cannot move the cursor or style: a log, Emacs' shell."""
BOLD, ITALIC = "1", "3"
OBEYED = re.compile(
    # styles, and how progress bars hide the cursor and write a line again
    r"\x1b(?!\[(?:[0-9;]*m|\?25[hl]|[012]?K|[0-9]*A))"
    "|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
"""What `TerminalText` does not pass on."""


def say(message: str) -> None:
    """A message for the person at the terminal; never fails, not even without a terminal."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(escaped(message) + "\n")
            sys.stderr.flush()


class TerminalText:
    """A text stream that shows what a terminal would obey, but for styles and progress bars.

    `main` puts it around standard output and standard error: whatever a verb prints, the names,
    tags, paths and messages in it can neither move the cursor elsewhere, nor set the window's
    title, nor write to the clipboard.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @classmethod
    def around(cls, stream: TextIO) -> TextIO:
        """The stream as one of these; a closed one (None) stays as it is."""
        return stream if stream is None or isinstance(stream, cls) else cast(TextIO, cls(stream))

    def write(self, text: str) -> int:
        """Write the text; its length as it was given."""
        self._stream.write(OBEYED.sub(lambda found: ascii(found[0])[1:-1], text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of them."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person is looking."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def check_target(target: str | None, option: str) -> None:
    """Refuse a file that cannot be written before hours are spent on what goes into it."""
    if target is None or target == "-":
        return
    path = user_path(target)
    if path.is_dir():
        raise ConfigError(f"{option} {target}: is a directory; name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {target}: no folder {path.parent}; create it first")
    allowed = path if path.exists() else path.parent
    if not os.access(allowed, os.W_OK):
        raise ConfigError(f"{option} {target}: {allowed} is not writable; choose another place")


def write_json(data: Any, target: str, option: str = "--json") -> None:
    """Write `data` to a file (whole or not at all), or to standard output for `-`."""
    text = json.dumps(_plain(data), indent=2, allow_nan=False, default=str) + "\n"
    write_text(text, target, option)


def write_text(text: str, target: str, option: str) -> None:
    """Write to a file so that a reader sees the old content or the new, or to `-`."""
    from wattloop.store.formats.target import Target  # not needed before a program is started

    Target(target, option).write_text(text)


def print_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str = "",
    *,
    spare: Sequence[str] = (),
) -> None:
    """A table on standard output: fitted to a terminal, plain columns elsewhere.

    The first column is never cut: it is what people copy. A terminal that is too narrow for the
    rest loses the columns in `spare`, the first of them first; after that, cells are folded
    between words, and columns that still do not fit follow in a block below.
    """
    headers, *rows = _cells([headers, *rows])
    title = escaped(title)
    if not is_terminal(sys.stdout):
        sys.stdout.write((f"{title}\n" if title else "") + table_text(headers, rows))
        return
    room = shutil.get_terminal_size().columns
    headers, rows = _narrowed(headers, rows, spare, room)
    bold, italic = (_styled(code) for code in (BOLD, ITALIC))
    for line in textwrap.wrap(title, room):
        sys.stdout.write(italic(line) + "\n")
    for head, *body in folded_blocks([tuple(headers), *rows], room):
        lines = [*map(bold, head), *(line for row in body for line in row)]
        sys.stdout.write("".join(f"{line}\n" for line in lines))


def table_text(
    headers: Sequence[str], rows: Iterable[Sequence[str]], room: int | None = None
) -> str:
    """Aligned columns without decoration, folded into `room` columns where that is given."""
    lines = _cells([headers, *rows])
    if room is None:
        widths = column_widths(lines)
        return "".join(padded_line(line, widths) + "\n" for line in lines)
    blocks = folded_blocks(lines, room)
    return "".join(f"{line}\n" for block in blocks for row in block for line in row)


def terminal_room(stream: TextIO | None) -> int | None:
    """Columns of the terminal behind a stream; None where there is none."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


def _cells(rows: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """Rows whose cells are one line each, without characters that a terminal obeys."""
    return [tuple(escaped(cell).replace("\n", "\\n") for cell in row) for row in rows]


def _styled(code: str) -> Callable[[str], str]:
    """A text in bold or italics, which are not colours; plain on a terminal that has neither."""
    if os.environ.get("TERM", "").lower() in PLAIN_TERMINALS:
        return str
    return lambda line: f"\x1b[{code}m{line}\x1b[0m" if line else line


def _narrowed(
    headers: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], width: int
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Without empty columns, and without as many of the `spare` ones as it takes to fit."""
    lines = [tuple(headers), *(tuple(row) for row in rows)]
    empty = [number for number, size in enumerate(column_widths(lines)) if not size]
    lines = [tuple(c for n, c in enumerate(line) if n not in empty) for line in lines]
    for name in spare:
        if name in lines[0] and not fits_folded(lines, width):
            gone = lines[0].index(name)
            lines = [line[:gone] + line[gone + 1 :] for line in lines]
    return lines[0], lines[1:]


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: what is not a number is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value
