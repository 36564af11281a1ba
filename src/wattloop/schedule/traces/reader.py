"""Reader of trace files, in chunks so that ten million rows fit into memory."""

import csv
import fnmatch
import gzip
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.units import format_duration
from wattloop.schedule.traces.formats import (
    TraceFormat,
    TraceLayout,
    csv_rows,
    detect_layout,
    parse_column,
    tres_type,
    unit_parser,
)
from wattloop.schedule.traces.trace import Coded, Trace

MOST_GPUS, MOST_S, MOST = 1e6, 1e10, 1e15
MOST_NAMED = 1_000_000
"""Most jobs whose names are kept: more names would use most of the memory."""
OPTIONAL = ("steps", "batch", "deadline", "priority")
WORDS = ("user", "model", "gpu_type")
Floats = NDArray[np.float64]
_Rows = tuple[list[list[str]], int, bool]
"""Rows, line number of the first one, and True if each has one line."""


@dataclass(slots=True)
class TraceColumns:
    """Rows read so far.

    Attributes:
        columns: field -> arrays, one per chunk.
        words: field -> word -> its code.
        left_out: reason -> number of rows.
        rounded_up: jobs that asked for parts of a GPU.
    """

    columns: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    words: dict[str, dict[str, int]] = field(default_factory=dict)
    names: list[str] | None = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    rounded_up: int = 0


class _Chunk:
    """Rows of a chunk that are added to the columns; with `refuse`, an unusable row raises.

    Args:
        first_line: line number of the first row.
        one_line_each: no row contains a line break.
    """

    def __init__(
        self,
        found: TraceColumns,
        layout: TraceLayout,
        place: str,
        refuse: bool,
        rows: Sequence[Sequence[str]],
        first_line: int,
        one_line_each: bool,
    ) -> None:
        self.found, self.layout, self.place, self.refuse = found, layout, place, refuse
        self.form, self.at = layout.form, layout.positions
        self.first_line, self.one_line_each = first_line, one_line_each
        width = len(layout.header)
        self.lines: Sequence[int] | None = None
        self.rows = rows
        if set(map(len, rows)) != {width}:
            self.lines = [n for n, row in enumerate(rows) if len(row) == width]
            self._count_odd(rows, width)
            self.rows = [rows[n] for n in self.lines]
        found.rows += len(self.rows)
        self.keep = np.ones(len(self.rows), bool)

    def gather(self) -> None:
        self._by_pattern()
        gpus = self._gpus()
        arrival_s = self._number("arrival")
        duration_s = self._duration()
        optional = {n: self._number(n, needed=False) for n in OPTIONAL if n in self.at}
        for name in ("steps", "batch"):
            if name in optional:
                self._wrong(name, optional[name] <= 0, "is 0 or less")
        for name in ("steps", "batch", "priority"):
            if name in optional:
                self._wrong(name, np.abs(optional[name]) > MOST, f"is more than {MOST:g}")
        if "duration" not in self.at and "end" not in self.at:
            self._wrong("steps", np.isnan(optional["steps"]), "is empty")
        self._leave_out(duration_s == 0, "a duration of 0")
        kept = {
            "arrival": arrival_s,
            "gpus": np.maximum(np.ceil(gpus - 1e-9), np.sign(gpus)),
            "duration": duration_s,
        }
        self.found.rounded_up += int(np.sum(self.keep & (kept["gpus"] > gpus + 1e-9)))
        for name, values in {**kept, **optional}.items():
            self.found.columns.setdefault(name, []).append(values[self.keep])
        for name in WORDS:
            if name in self.at:
                self.found.columns.setdefault(name, []).append(self._codes(name)[self.keep])
        self._names()

    def _cells(self, name: str) -> list[str]:
        at = self.at[name]
        return [row[at] for row in self.rows]

    def _number(self, name: str, *, needed: bool = True) -> Floats:
        cells = self._cells(name)
        parse = unit_parser(self.form.unit(name))
        values, wrong = parse_column(cells, parse, self.form.empty.get(name), needed=needed)
        for why in dict.fromkeys(wrong.values()):
            rows = [row for row, each in wrong.items() if each == why]
            self._wrong(name, np.isin(np.arange(len(cells)), rows), why)
        return values

    def _gpus(self) -> Floats:
        gpus = self._number("gpus")
        if "instances" in self.at:
            gpus = gpus * self._number("instances")
        self._leave_out(gpus == 0, "no GPU")
        self._wrong("gpus", gpus < 0, "is negative")
        self._wrong("gpus", gpus > MOST_GPUS, f"is more than {MOST_GPUS:g}")
        return gpus

    def _duration(self) -> Floats:
        if "duration" in self.at:
            name, duration_s = "duration", self._number("duration")
        elif "end" in self.at:
            name, duration_s = "end", self._number("end") - self._number("start")
        else:
            return np.full(len(self.rows), np.nan)
        what = "is negative" if name == "duration" else "is before the start"
        self._wrong(name, duration_s < 0, what)
        self._wrong(name, duration_s > MOST_S, "makes more than 300 years; is the unit right?")
        return duration_s

    def _by_pattern(self) -> None:
        for name, patterns in self.form.leave_out.items():
            if name not in self.at:
                continue
            match = re.compile("|".join(map(fnmatch.translate, patterns))).fullmatch
            cells = self._cells(name)
            hits = [row for row, cell in enumerate(cells) if match(cell)]
            self.keep[hits] = False
            column = self.layout.header[self.at[name]]
            if name == "state":
                self.found.left_out.update(f"{column} {cells[row]}" for row in hits)
            elif hits:
                self.found.left_out[f"{column} like {patterns[0]}"] += len(hits)

    def _codes(self, name: str) -> NDArray[np.int32]:
        cells = self._cells(name)
        if self.form.unit(name) == "tres":
            cells = list(map(tres_type, cells))
        known = self.found.words.setdefault(name, {"": -1})
        return np.fromiter(
            (known.setdefault(cell.strip(), len(known) - 1) for cell in cells),
            np.int32,
            len(cells),
        )

    def _names(self) -> None:
        if "name" not in self.at or self.found.names is None:
            return
        cells = self._cells("name")
        self.found.names += [cells[row] for row in np.flatnonzero(self.keep).tolist()]
        if len(self.found.names) > MOST_NAMED:
            self.found.names = None

    def _leave_out(self, rows: NDArray[np.bool_], reason: str) -> None:
        hits = rows & self.keep
        if count := int(np.sum(hits)):
            self.found.left_out[reason] += count
            self.keep &= ~hits

    def _wrong(self, name: str, rows: NDArray[np.bool_], why: str) -> None:
        hits = np.flatnonzero(rows & self.keep)
        if not len(hits):
            return
        column = self.layout.header[self.at[name]]
        if self.refuse:
            row = int(hits[0])
            cell = self.rows[row][self.at[name]].strip()
            shown = f" '{cell[:40]}'" if cell else ""
            where = self._line(row if self.lines is None else self.lines[row])
            raise ConfigError(
                f"{where}: column {column}:{shown} {why}. Correct it, or have such rows "
                "left out and counted (jobs.trace.unusable=leave_out)"
            )
        self._leave_out(rows, f"{column} that {why}")

    def _count_odd(self, rows: Sequence[Sequence[str]], width: int) -> None:
        """Count or refuse rows of another length; blank lines are ignored."""
        odd = [n for n, row in enumerate(rows) if len(row) not in (0, width)]
        self.found.rows += len(odd)
        if odd and self.refuse:
            count = len(rows[odd[0]])
            raise ConfigError(
                f"{self._line(odd[0])}: {count} values for {width} columns. Correct it, or have "
                "such rows left out and counted (jobs.trace.unusable=leave_out)"
            )
        if odd:
            self.found.left_out["another number of values"] += len(odd)

    def _line(self, row: int) -> str:
        line = self.first_line + row
        # a quoted line break shifts all following line numbers
        return f"{self.place}:{line}" if self.one_line_each else f"{self.place}, row {line}"


HEADER = ("jobid", "vc", "user", "status", "submitted_time", "gpus", "duration")
FORM = TraceFormat(
    name="philly-log",
    columns={
        "name": ("jobid",),
        "user": ("user",),
        "state": ("status",),
        "arrival": ("submitted_time",),
        "gpus": ("gpus",),
        "duration": ("duration",),
    },
    units={"arrival": "date"},
    unusable="leave_out",  # the log has attempts without an end
)


def philly_log_layout() -> TraceLayout:
    return TraceLayout(FORM, ",", HEADER, False, FORM.positions(HEADER))


def philly_log_rows(name: str, text: str) -> Iterator[list[str]]:
    """Yield one row per job: GPUs of its last attempt, and the total time of all attempts."""
    try:
        jobs = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name}: not valid JSON: {error}") from None
    for number, job in enumerate(jobs):
        try:
            attempts = job["attempts"]
            gpus = sum(len(part["gpus"]) for part in attempts[-1]["detail"]) if attempts else ""
            times_s = [_lasted_s(attempt) for attempt in attempts]
            known = [time_s for time_s in times_s if time_s is not None]
            row = [job[key] for key in HEADER[:5]]
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{name}: job {number} is not one of Philly's cluster_job_log: {error} is missing"
            ) from None
        duration = sum(known) if len(known) == len(times_s) and known else ""
        yield [*("" if cell is None else str(cell) for cell in row), str(gpus), str(duration)]


def _lasted_s(attempt: dict[str, Any]) -> float | None:
    try:
        begin, end = (datetime.fromisoformat(attempt[key]) for key in ("start_time", "end_time"))
    except (TypeError, ValueError):
        return None  # an error in the log, or still running
    return (end - begin).total_seconds()


LONGEST_S = 3e9
"""Longest plausible trace: a century; a longer one has another unit of time."""


def build_trace(name: str, found: TraceColumns, layout: TraceLayout) -> Trace:
    # popped: never two copies of all columns
    columns = {key: np.concatenate(found.columns.pop(key)) for key in list(found.columns)}
    arrival_s = columns.pop("arrival", np.empty(0))
    if not len(arrival_s):
        why = f": left out {_counted(found.left_out)}" if found.left_out else ""
        raise ConfigError(f"{name}: no job in {found.rows} rows below the names{why}")
    order = None
    late = int(np.sum(np.diff(arrival_s) < 0))
    if late:
        order = np.argsort(arrival_s, kind="stable")
        arrival_s = arrival_s[order]
        columns = {key: values[order] for key, values in columns.items()}
    first_s = float(arrival_s[0])
    arrival_s -= first_s
    if arrival_s[-1] > LONGEST_S:
        raise ConfigError(
            f"{name}: from the first arrival to the last pass {arrival_s[-1] / 31_557_600:.0f} "
            "years; is its unit right? Say which it is, such as "
            "jobs.trace.columns.arrival=COLUMN:ms"
        )
    model, batch = _model_and_batch(found, columns, layout)
    gpus = columns.pop("gpus").astype(np.int64)
    if batch is not None and layout.form.unit("batch") == "global":
        batch = batch / gpus
    samples, counted = _samples(_said(columns, "steps"), batch, gpus, layout)
    deadline_s = _said(columns, "deadline")
    names = tuple(found.names or ())
    if names and order is not None:
        names = tuple(names[row] for row in order.tolist())
    return Trace(
        source=name,
        arrival_s=arrival_s,
        gpus=gpus,
        duration_s=columns.pop("duration"),
        samples=samples,
        batch=batch,
        deadline_s=None if deadline_s is None else deadline_s - first_s,
        priority=_said(columns, "priority"),
        user=_coded(found, columns, "user"),
        model=model,
        gpu_type=_coded(found, columns, "gpu_type"),
        names=names,
        notes=(*_notes(name, found, layout, late, float(arrival_s[-1])), *counted),
    )


def _said(columns: dict[str, Floats], key: str) -> Floats | None:
    """Return a column if it has a value for any job."""
    values = columns.pop(key, None)
    return None if values is None or np.isnan(values).all() else values


def _coded(found: TraceColumns, columns: dict[str, Floats], key: str) -> Coded | None:
    if key not in columns:
        return None
    words = tuple(word for word, code in found.words[key].items() if code >= 0)
    column = Coded(words, columns.pop(key).astype(np.int32, copy=False)).used()
    return column if column.values else None


def _model_and_batch(
    found: TraceColumns, columns: dict[str, Floats], layout: TraceLayout
) -> tuple[Coded | None, Floats | None]:
    """Split `LM (batch size 10)` into model and batch, if the format defines it."""
    model, batch = _coded(found, columns, "model"), _said(columns, "batch")
    if model is None or not layout.form.model_batch:
        return model, batch
    matches = [re.fullmatch(layout.form.model_batch, word) for word in model.values]
    words = [m.group(1) if m else w for m, w in zip(matches, model.values, strict=True)]
    sizes = np.array([*(float(m.group(2)) if m else np.nan for m in matches), np.nan])
    distinct = tuple(dict.fromkeys(words))
    codes = np.array([*(distinct.index(word) for word in words), -1], np.int32)
    return Coded(distinct, codes[model.codes]), sizes[model.codes] if batch is None else batch


def _samples(
    steps: Floats | None, batch: Floats | None, gpus: NDArray[np.int64], layout: TraceLayout
) -> tuple[Floats | None, tuple[str, ...]]:
    if steps is None:
        return None, ()
    known = np.full(len(steps), np.nan) if batch is None else batch
    workers = gpus if layout.form.unit("steps") == "global" else 1
    single = int(np.sum(np.isnan(known)))
    note = f"{single} jobs without a batch: a step counts as one sample" if single else ""
    samples = steps * np.where(np.isnan(known), 1.0, known * workers)
    return samples, (note,) if note else ()


def _notes(
    name: str, found: TraceColumns, layout: TraceLayout, late: int, span_s: float
) -> tuple[str, ...]:
    jobs = found.rows - found.left_out.total()
    notes = [
        f"{name}: {jobs} jobs of {found.rows} rows over {format_duration(span_s)}, read as "
        f"{layout.form.name}"
    ]
    if found.left_out:
        notes.append(f"left out: {_counted(found.left_out)}")
    if late:
        notes.append(f"sorted by arrival; rows that came after later ones: {late}")
    if found.rounded_up:
        notes.append(f"{found.rounded_up} jobs asked for parts of a GPU, rounded up to whole ones")
    if found.names is None:
        notes.append("names of jobs are not kept: there are more than a million")
    return tuple(notes)


def _counted(reasons: Counter[str]) -> str:
    return ", ".join(f"{count} with {reason}" for reason, count in reasons.most_common())


ROWS_AT_ONCE = 20_000
LONGEST_LINE = 1 << 20


def read_trace(
    place: str | Path,
    form: str = "",
    columns: Mapping[str, str] | None = None,
    unusable: str = "",
    progress: Callable[[float], None] | None = None,
) -> Trace:
    """Read the jobs of a trace, in order of arrival.

    Args:
        place: CSV file, also compressed with gzip; or Philly's own JSON.
        form: name of its format, or a YAML file with a mapping; empty to detect it.
        columns: field -> column, or `column:unit`, for other column names.
        unusable: `refuse` or `leave_out` rows with wrong values; empty for the format's default.
        progress: called with the share of the file that has been read.

    Raises:
        ConfigError: invalid file; the message has file, line and column.
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
                layout = detect_layout(name, first, form, columns)
                chunks = _chunks(name, first, text, layout)
            refuse = (unusable or layout.form.unusable) == "refuse"
            found = TraceColumns()
            for chunk in chunks:
                _Chunk(found, layout, name, refuse, *chunk).gather()
                if progress is not None:
                    progress(min(1.0, raw.tell() / size))
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "it ends too early"
        raise ConfigError(f"{name}: cannot be read: {reason}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name}: cannot be read: not text in UTF-8") from None
    return build_trace(name, found, layout)


def _text(name: str, raw: IO[bytes]) -> io.TextIOWrapper:
    begin = raw.read(4096)
    raw.seek(0)
    if begin[:2] == b"\x1f\x8b":
        packed = gzip.GzipFile(fileobj=raw)
        return io.TextIOWrapper(packed, encoding="utf-8-sig", newline="")
    if b"\0" in begin:
        raise ConfigError(f"{name}: cannot be read: not text, but a binary file")
    return io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")


def _json_chunks(name: str, text: str) -> Iterator[_Rows]:
    rows = list(philly_log_rows(name, text))
    for begin in range(0, len(rows), ROWS_AT_ONCE):
        yield rows[begin : begin + ROWS_AT_ONCE], begin, False


def _chunks(name: str, first: str, text: io.TextIOWrapper, layout: TraceLayout) -> Iterator[_Rows]:
    lines: Iterator[str] = text if layout.named else itertools.chain([first], text)
    reader = csv_rows(lines, layout.separator)
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
        yield rows, before + begin + 1, one_each
