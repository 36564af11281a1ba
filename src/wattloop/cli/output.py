"""Output of the CLI: messages on standard error, data and fitted tables on standard output."""

import json
import math
import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.results import Missing, WindowResult
from wattloop.core.text import escaped
from wattloop.core.units import format_energy, format_power, short_energy

if TYPE_CHECKING:
    from wattloop.core.table import Table


# Layout of a table on a terminal that may be too narrow for it.
#
# Texts are folded between words first. What still does not fit continues in a further block below,
# under the first column again, so that a number is never cut in two.
GAP = 2
"""Between two columns."""
COMFORTABLE = 12
"""A text is folded to this width before another column is left out."""
LONGEST_WORD = 24
"""What is longer is cut rather than that it takes the place of others; identifiers are shorter."""
Line = Sequence[str]


def shown_width(text: str) -> int:
    """Return the terminal columns of a text: two for a CJK character, none for an accent."""
    if text.isascii():
        return len(text)
    return sum(map(_letter_width, text))


def column_widths(lines: Sequence[Line]) -> list[int]:
    return [max(map(shown_width, column)) for column in zip(*lines, strict=True)]


def padded_line(cells: Line, widths: Sequence[int]) -> str:
    """Format the cells of one line, aligned by column."""
    pairs = zip(cells, widths, strict=True)
    padded = (cell + " " * (width - shown_width(cell)) for cell, width in pairs)
    return (" " * GAP).join(padded).rstrip()


def fits_folded(lines: Sequence[Line], room: int) -> bool:
    """Return True when folding long texts is enough to fit the table."""
    pairs = zip(column_widths(lines), _longest(lines, _quantities_and_words), strict=True)
    return _fits([min(width, max(least, COMFORTABLE)) for width, least in pairs], room)


def folded_blocks(lines: Sequence[Line], room: int) -> Iterator[list[list[str]]]:
    """Split the table into blocks that fit into `room`, each as printed lines of every row.

    Every block begins with the first column, which is what people copy and never cut.
    """
    for columns in _blocks(lines, room):
        part = [[line[n] for n in columns] for line in lines]
        widths = _fitted_widths(part, room)
        yield [_folded_row(row, widths) for row in part]


def _blocks(lines: Sequence[Line], room: int) -> list[list[int]]:
    """Return the column numbers of each block."""
    first = column_widths(lines)[0]
    least = [min(width, max(1, room - first - GAP)) for width in _longest(lines, str.split)]
    blocks, used = [[0]], first
    for number in range(1, len(least)):
        if used + GAP + least[number] > room and len(blocks[-1]) > 1:
            blocks.append([0])
            used = first
        blocks[-1].append(number)
        used += GAP + least[number]
    return blocks


def _fitted_widths(lines: Sequence[Line], room: int) -> list[int]:
    """Return widths that fit into `room`: wide columns shrink first, numbers last."""
    widths = column_widths(lines)
    whole, words = _longest(lines, _quantities_and_words), _longest(lines, str.split)
    for floor in (whole, words, [1] * len(widths)):
        while not _fits(widths, room):
            wide = [n for n in range(1, len(widths)) if widths[n] > floor[n]]
            if not wide:
                break
            widths[max(wide, key=lambda n: widths[n])] -= 1
    return widths


def _folded_row(row: Line, widths: Sequence[int]) -> list[str]:
    cells = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
    height = max(map(len, cells))
    filled = [cell + [""] * (height - len(cell)) for cell in cells]
    return [padded_line(line, widths) for line in zip(*filled, strict=True)]


def _folded(cell: str, width: int) -> list[str]:
    """Fold a text into lines of at most `width`, between words where possible."""
    lines = [""]
    for word in cell.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if shown_width(joined) <= width:
            lines[-1] = joined
            continue
        pieces = list(_pieces(word, width))
        lines[-1:] = [lines[-1], *pieces] if lines[-1] else pieces
    return lines


def _pieces(word: str, width: int) -> Iterator[str]:
    piece, used = "", 0
    for letter in word:
        size = _letter_width(letter)
        if piece and used + size > width:
            yield piece
            piece, used = "", 0
        piece, used = piece + letter, used + size
    yield piece


def _fits(widths: Sequence[int], room: int) -> bool:
    return sum(widths) + GAP * (len(widths) - 1) <= room


def _longest(lines: Sequence[Line], split: Callable[[str], list[str]]) -> list[int]:
    """Return the longest unbreakable part of each column."""
    return [
        min(LONGEST_WORD, max(shown_width(part) for cell in column for part in ("", *split(cell))))
        for column in zip(*lines, strict=True)
    ]


def _quantities_and_words(cell: str) -> list[str]:
    """Split a text into words; a number and its unit are one."""
    quantity = cell[:1].isdigit() or cell[:1] in ("+", "-", "±")
    return [cell] if quantity else cell.split()


def _letter_width(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


PLAIN_TERMINALS = ("dumb", "unknown")
"""Values of TERM whose terminals cannot move the cursor or style: a log, Emacs' shell."""
BOLD, ITALIC = "1", "3"
OBEYED = re.compile(
    # styles, and how progress bars hide the cursor and write a line again
    r"\x1b(?!\[(?:[0-9;]*m|\?25[hl]|[012]?K|[0-9]*A))"
    "|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
"""What `TerminalText` does not pass on."""


_QUIET = [False]
WARNING = "wattloop: warning:"


def set_quiet(quiet: bool) -> None:
    """Print no messages but warnings and errors, and no progress, for `-q`."""
    _QUIET[0] = quiet


def is_quiet() -> bool:
    return _QUIET[0]


def say(message: str, *, is_error: bool = False) -> None:
    """Print a message to standard error; never fails, not even without a terminal."""
    if is_quiet() and not is_error and not message.startswith(WARNING):
        return
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(escaped(message) + "\n")
            sys.stderr.flush()


class TerminalText:
    """Text stream that escapes control characters, except styles and progress bars.

    `main` puts it around standard output and standard error: whatever a verb prints, the names,
    tags, paths and messages in it can neither move the cursor elsewhere, nor set the window's
    title, nor write to the clipboard.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @classmethod
    def around(cls, stream: TextIO) -> TextIO:
        """Wrap a stream; a closed one (None) stays None."""
        return stream if stream is None or isinstance(stream, cls) else cast(TextIO, cls(stream))

    def write(self, text: str) -> int:
        """Write the escaped text; return the length of the given one."""
        self._stream.write(OBEYED.sub(lambda found: ascii(found[0])[1:-1], text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)


def is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def check_target(target: str | None, option: str) -> None:
    """Refuse a file that cannot be written before hours are spent on its content."""
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


def write_json(data: Any, target: str | None, option: str = "--json") -> None:
    """Write `data` to a file atomically, or to standard output for `-`; None is nowhere."""
    if target is None:
        return
    text = json.dumps(_plain(data), indent=2, allow_nan=False, default=str) + "\n"
    write_text(text, target, option)


def present(
    json_file: str | None, as_data: Callable[[], Any], print_text: Callable[[], None]
) -> None:
    """Write the result as JSON if asked for; print it unless that took standard output."""
    if json_file is not None:
        write_json(as_data(), json_file)
    if json_file != "-":
        print_text()


def write_text(text: str, target: str, option: str) -> None:
    """Write a text to a file atomically, or to standard output for `-`."""
    from wattloop.store.formats.table_files import Target  # not needed before a program is started

    Target(target, option).write_text(text)


def print_rows(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str = "",
    *,
    spare: Sequence[str] = (),
) -> None:
    """Print a table to standard output: fitted to a terminal, plain columns elsewhere.

    The first column is never cut: it is what people copy. A terminal that is too narrow for the
    rest loses the columns in `spare`, the first of them first, and a line below names them; after
    that, cells are folded between words, and columns that still do not fit follow in a block below.
    """
    headers, *rows = _cells([headers, *rows])
    title = escaped(title)
    if not is_terminal(sys.stdout):
        sys.stdout.write((f"{title}\n" if title else "") + table_text(headers, rows))
        return
    room = shutil.get_terminal_size().columns
    shown, rows, left_out = _narrowed(headers, rows, spare, room)
    bold, italic = (_styled(code) for code in (BOLD, ITALIC))
    for line in textwrap.wrap(title, room, break_long_words=False, break_on_hyphens=False):
        sys.stdout.write(italic(line) + "\n")
    for head, *body in folded_blocks([tuple(shown), *rows], room):
        lines = [*map(bold, head), *(line for row in body for line in row)]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    if left_out:
        named = ", ".join(name or "remarks" for name in left_out)
        text = f"Left out for want of width: {named}."
        sys.stdout.write("".join(italic(line) + "\n" for line in textwrap.wrap(text, room)))


def print_table(table: "Table") -> None:
    print_rows(table.headers, table.texts(), table.title, spare=table.spare)


def table_text(
    headers: Sequence[str], rows: Iterable[Sequence[str]], room: int | None = None
) -> str:
    """Format aligned columns without decoration, folded into `room` columns if given."""
    lines = _cells([headers, *rows])
    if room is None:
        widths = column_widths(lines)
        return "".join(padded_line(line, widths) + "\n" for line in lines)
    blocks = folded_blocks(lines, room)
    return "".join(f"{line}\n" for block in blocks for row in block for line in row)


def terminal_room(stream: TextIO | None) -> int | None:
    """Return the columns of the terminal behind a stream; None without a terminal."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


def _cells(rows: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return rows whose cells are one line each, without control characters."""
    return [tuple(escaped(cell).replace("\n", "\\n") for cell in row) for row in rows]


def _styled(code: str) -> Callable[[str], str]:
    """Format bold or italic text; plain on a terminal without styles."""
    if os.environ.get("TERM", "").lower() in PLAIN_TERMINALS:
        return str
    return lambda line: f"\x1b[{code}m{line}\x1b[0m" if line else line


def _narrowed(
    headers: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], width: int
) -> tuple[Sequence[str], Sequence[Sequence[str]], list[str]]:
    """Drop empty columns, and as many `spare` ones as needed to fit; return those as well."""
    lines = [tuple(headers), *(tuple(row) for row in rows)]
    empty = [number for number, size in enumerate(column_widths(lines)) if not size]
    lines = [tuple(c for n, c in enumerate(line) if n not in empty) for line in lines]
    left_out: list[str] = []
    for name in spare:
        if name in lines[0] and not fits_folded(lines, width):
            gone = lines[0].index(name)
            lines = [line[:gone] + line[gone + 1 :] for line in lines]
            left_out.append(name)
    return lines[0], lines[1:], left_out


def _plain(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value


UNKNOWN = "-"
DOMAIN_HEADERS = ("domain", "energy", "±", "power", "how", "source")


def domain_rows(result: WindowResult) -> list[tuple[str, ...]]:
    """Return energy, uncertainty, mean power and provenance of each domain."""
    rows: list[tuple[str, ...]] = []
    for domain in result.domains:
        energy_j, power = domain.energy_j, UNKNOWN
        if energy_j is not None and result.duration_s > 0:
            power = format_power(energy_j / result.duration_s)
        rows.append(
            (
                domain.name if domain.in_total else f"{domain.name} (in another)",
                UNKNOWN if energy_j is None else format_energy(energy_j),
                UNKNOWN if energy_j is None else short_energy(domain.uncertainty_j, energy_j),
                power,
                domain.provenance.value,
                domain.source,
            )
        )
    return rows


def remarks(missing: Iterable[Missing], warnings: Iterable[str]) -> list[str]:
    lines = []
    for part in missing:
        remedy = f"; {part.remedy}" if part.remedy else ""
        lines.append(f"missing {part.name}: {part.reason}{remedy}")
    return lines + [f"note: {warning}" for warning in warnings]
