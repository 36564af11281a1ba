"""Rows of a trace as columns of numbers; unusable rows are counted by reason."""

import fnmatch
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.schedule.traces.detection import Layout, numbers, parser_of, tres_type

MOST_GPUS, MOST_S, MOST = 1e6, 1e10, 1e15


MOST_NAMED = 1_000_000


"""Most jobs whose names are kept: more names would use most of the memory."""


OPTIONAL = ("steps", "batch", "deadline", "priority")


WORDS = ("user", "model", "gpu_type")


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Chunk of rows with its position in the file."""

    rows: Sequence[Sequence[str]]
    first_line: int
    one_line_each: bool


@dataclass(slots=True)
class Gathered:
    """Rows read so far.

    Attributes:
        columns: field -> arrays, one per chunk.
        words: field -> word -> its code.
        names: names of jobs; None once they are too many.
        left_out: reason -> number of rows.
        rows: number of rows read.
        rounded_up: jobs that asked for parts of a GPU.
    """

    columns: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    words: dict[str, dict[str, int]] = field(default_factory=dict)
    names: list[str] | None = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    rounded_up: int = 0


def gather(found: Gathered, chunk: Chunk, layout: Layout, place: str, refuse: bool) -> None:
    """Add the usable rows of a chunk.

    Raises:
        ConfigError: an unusable row, with `refuse`; the message has line, column and value.
    """
    _Chunk(found, chunk, layout, place, refuse).gather()


class _Chunk:
    def __init__(
        self, found: Gathered, chunk: Chunk, layout: Layout, place: str, refuse: bool
    ) -> None:
        self.found, self.layout, self.place, self.refuse = found, layout, place, refuse
        self.chunk, self.form, self.at = chunk, layout.form, layout.positions
        width = len(layout.header)
        self.lines: Sequence[int] | None = None
        self.rows = chunk.rows
        if set(map(len, chunk.rows)) != {width}:
            self.lines = [n for n, row in enumerate(chunk.rows) if len(row) == width]
            self._odd(width)
            self.rows = [chunk.rows[n] for n in self.lines]
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
        parse = parser_of(self.form.unit(name))
        values, wrong = numbers(cells, parse, self.form.empty.get(name), needed=needed)
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
            raise ConfigError(
                f"{self._where(row)}: column {column}:{shown} {why}. Correct it, or have such rows "
                "left out and counted (jobs.trace.unusable=leave_out)"
            )
        self._leave_out(rows, f"{column} that {why}")

    def _odd(self, width: int) -> None:
        """Handle rows of another length; blank lines are ignored."""
        odd = [n for n, row in enumerate(self.chunk.rows) if len(row) not in (0, width)]
        self.found.rows += len(odd)
        if odd and self.refuse:
            count = len(self.chunk.rows[odd[0]])
            raise ConfigError(
                f"{self._line(odd[0])}: {count} values for {width} columns. Correct it, or have "
                "such rows left out and counted (jobs.trace.unusable=leave_out)"
            )
        if odd:
            self.found.left_out["another number of values"] += len(odd)

    def _where(self, row: int) -> str:
        return self._line(row if self.lines is None else self.lines[row])

    def _line(self, row: int) -> str:
        line = self.chunk.first_line + row
        # a quoted line break shifts all following line numbers
        return f"{self.place}:{line}" if self.chunk.one_line_each else f"{self.place}, row {line}"
