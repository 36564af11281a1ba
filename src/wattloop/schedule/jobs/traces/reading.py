"""Traces from files: in pieces, so that ten million rows fit into memory."""

import csv
import gzip
import io
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from wattloop.core.errors import ConfigError
from wattloop.core.user_code import user_path
from wattloop.schedule.jobs.traces.detection import Layout, detected, rows_of
from wattloop.schedule.jobs.traces.gathering import trace_of
from wattloop.schedule.jobs.traces.philly_log import philly_log_layout, philly_log_rows
from wattloop.schedule.jobs.traces.rows import Chunk, Gathered, gather
from wattloop.schedule.jobs.traces.trace import Trace

__all__ = ["read_trace"]

ROWS_AT_ONCE = 20_000
LONGEST_LINE = 1 << 20


def read_trace(
    place: str | Path,
    form: str = "",
    columns: Mapping[str, str] | None = None,
    unusable: str = "",
    progress: Callable[[float], None] | None = None,
) -> Trace:
    """The jobs of a trace, in order of arrival.

    Args:
        place: a CSV file, or one packed with gzip; or Philly's own JSON.
        form: name of its format, or a YAML file with a mapping; empty to tell by the columns.
        columns: field -> column, or `column:unit`, where they are named otherwise.
        unusable: `refuse` or `leave_out` rows with wrong values; empty for the format's habit.
        progress: is told which share of the file has been read.

    Raises:
        ConfigError: what is wrong, with file, line and column.
    """
    name = str(place)
    if unusable not in ("", "refuse", "leave_out"):
        raise ConfigError(f"unusable: must be refuse or leave_out, not {unusable!r}")
    try:
        with user_path(name).open("rb") as raw:
            size = max(1, user_path(name).stat().st_size)
            text = _text(name, raw)
            first = text.readline(LONGEST_LINE)
            if not first.strip():
                raise ConfigError(f"{name}: empty; the first line holds the names of the columns")
            if first.lstrip().startswith("["):
                if form or columns:
                    raise ConfigError(f"{name}: is JSON, as Philly's log; leave its format out")
                layout = philly_log_layout()
                chunks = _json_chunks(name, first + text.read())
            else:
                layout = detected(name, first, form, columns)
                chunks = _chunks(name, first, text, layout)
            refuse = (unusable or layout.form.unusable) == "refuse"
            found = Gathered()
            for chunk in chunks:
                gather(found, chunk, layout, name, refuse)
                if progress is not None:
                    progress(min(1.0, raw.tell() / size))
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "it ends too early"
        raise ConfigError(f"{name}: cannot be read: {reason}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name}: cannot be read: not text in UTF-8") from None
    return trace_of(name, found, layout)


def _text(name: str, raw: IO[bytes]) -> io.TextIOWrapper:
    begin = raw.read(4096)
    raw.seek(0)
    if begin[:2] == b"\x1f\x8b":
        packed = gzip.GzipFile(fileobj=raw)
        return io.TextIOWrapper(packed, encoding="utf-8-sig", newline="")
    if b"\0" in begin:
        raise ConfigError(f"{name}: cannot be read: not text, but a binary file")
    return io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")


def _json_chunks(name: str, text: str) -> Iterator[Chunk]:
    rows = list(philly_log_rows(name, text))
    for begin in range(0, len(rows), ROWS_AT_ONCE):
        yield Chunk(rows[begin : begin + ROWS_AT_ONCE], begin, False)


def _chunks(name: str, first: str, text: io.TextIOWrapper, layout: Layout) -> Iterator[Chunk]:
    lines: Iterator[str] = text if layout.named else itertools.chain([first], text)
    reader = rows_of(lines, layout.separator)
    before = 1 if layout.named else 0
    while True:
        begin = reader.line_num
        try:
            rows = list(itertools.islice(reader, ROWS_AT_ONCE))
        except csv.Error as error:
            line = before + reader.line_num
            raise ConfigError(f"{name}:{line}: not a CSV file: {error}") from None
        if not rows:
            return
        one_each = reader.line_num - begin == len(rows)
        yield Chunk(rows, before + begin + 1, one_each)
