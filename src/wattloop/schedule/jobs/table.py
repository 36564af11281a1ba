"""Job table: jobs as columns, in memory and as a CSV file."""

import csv
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.schedule.jobs.kind import JobKind, ServiceLoad


@dataclass(frozen=True)
class JobTable:
    """Jobs in order of arrival; a job's number is its row.

    Attributes:
        arrival_s: submission of each job, ascending, from the start of the simulation.
        work: samples to train on in all.
        deadline_s: deadline on the same clock as arrival; infinite without one.
        priority: higher first, in policies that use priorities.
        names: names of jobs in the source; empty without names.
        notes: assumptions where the source has no data, for people.
    """

    kinds: tuple[JobKind, ...]
    users: tuple[str, ...]
    arrival_s: NDArray[np.float64]
    kind: NDArray[np.int64]
    user: NDArray[np.int64]
    work: NDArray[np.float64]
    deadline_s: NDArray[np.float64]
    priority: NDArray[np.int64]
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        columns = (self.kind, self.user, self.work, self.deadline_s, self.priority)
        if any(len(column) != len(self.arrival_s) for column in columns):
            raise ConfigError("jobs: the columns of the table have different lengths")
        if len(self) and np.any(np.diff(self.arrival_s) < 0):
            raise ConfigError("jobs: arrivals are not in order of time")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def urgent(self) -> NDArray[np.bool_]:
        """Return True for each job with a deadline."""
        return np.isfinite(self.deadline_s)


def remove_caps(jobs: JobTable) -> JobTable:
    kinds = tuple(replace(kind, caps=(max(kind.caps),)) for kind in jobs.kinds)
    return jobs if kinds == jobs.kinds else replace(jobs, kinds=kinds)


OF_KIND = ("model", "precision", "gpus", "batches", "caps", "types", "sequence", "spread")
LATER = {
    "zero": 0, "parallel": "", "checkpointing": "none", "global_batch": None, "service": None
}  # fmt: skip
"""Fields of a kind in the last column -> their value where they are left out."""
HEADER = ("name", "arrival_s", "user", *OF_KIND, "work", "deadline_s", "priority")
NUMBERS = ("arrival_s", "work", "deadline_s", "priority")
ROWS_AT_ONCE = 50_000


def save_jobs(jobs: JobTable, place: str | Path) -> None:
    """Write one line per job; lists have spaces between their values."""
    kinds = [_words(kind) for kind in jobs.kinds]
    try:
        with user_path(str(place)).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(HEADER)
            for begin in range(0, len(jobs), ROWS_AT_ONCE):
                writer.writerows(_rows(jobs, kinds, slice(begin, begin + ROWS_AT_ONCE)))
    except OSError as error:
        raise ConfigError(f"{place}: cannot be written: {error.strerror}") from None


def is_job_table(place: str | Path) -> bool:
    """Return True if the file has the header of `save_jobs`."""
    try:
        with user_path(str(place)).open("rb") as file:
            return file.readline(1_000).strip() == ",".join(HEADER).encode()
    except OSError:
        return False


def load_jobs(place: str | Path) -> JobTable:
    """Load a table written by `save_jobs`; names of unnamed jobs are empty.

    Raises:
        ConfigError: `FILE:LINE: what is wrong`.
    """
    name = str(place)
    kinds: dict[tuple[str, ...], int] = {}
    users: dict[str, int] = {}
    names: list[str] = []
    codes: list[tuple[int, int]] = []
    numbers: dict[str, list[float]] = {each: [] for each in NUMBERS}
    made: list[JobKind] = []
    for line, row in _lines(name):
        if len(row) != len(HEADER):
            raise ConfigError(f"{name}:{line}: {len(row)} values for {len(HEADER)} columns")
        words = tuple(row[3 : 3 + len(OF_KIND)])
        if words not in kinds:
            kinds[words] = len(kinds)
            made.append(_kind(words, f"{name}:{line}"))
        codes.append((kinds[words], users.setdefault(row[2], len(users))))
        names.append(row[0])
        for column in NUMBERS:
            cell = row[HEADER.index(column)]
            numbers[column].append(_number(cell, column, f"{name}:{line}"))
    arrays = {column: np.array(values) for column, values in numbers.items()}
    kind, user = np.array(codes, np.int64).reshape(-1, 2).T
    order = np.argsort(arrays["arrival_s"], kind="stable")
    return JobTable(
        kinds=tuple(made),
        users=tuple(users),
        arrival_s=arrays["arrival_s"][order],
        kind=kind[order],
        user=user[order],
        work=arrays["work"][order],
        deadline_s=arrays["deadline_s"][order],
        priority=arrays["priority"][order].astype(np.int64),
        names=tuple(names[row] for row in order.tolist()) if any(names) else (),
        notes=(f"{name}: {len(names)} jobs with models, options and work as written there",),
    )


def _rows(jobs: JobTable, kinds: list[tuple[str, ...]], part: slice) -> Iterator[list[object]]:
    names = jobs.names[part] or itertools.repeat("")
    columns = zip(
        names,
        jobs.arrival_s[part].tolist(),
        jobs.user[part].tolist(),
        jobs.kind[part].tolist(),
        jobs.work[part].tolist(),
        jobs.deadline_s[part].tolist(),
        jobs.priority[part].tolist(),
        strict=False,  # the iterator of empty names is infinite
    )
    for name, arrival_s, user, kind, work, deadline_s, priority in columns:
        due = "" if math.isinf(deadline_s) else deadline_s
        yield [name, arrival_s, jobs.users[user], *kinds[kind], work, due, priority]


def _words(kind: JobKind) -> tuple[str, ...]:
    lists = (kind.gpus, kind.batches, kind.caps, kind.types)
    sequence = "" if kind.sequence is None else str(kind.sequence)
    joined = (" ".join(map(str, values)) for values in lists)
    # These came later: words after yes or no, so that older files stay readable.
    later: list[str] = ["yes" if kind.may_spread else "no"]
    for name, unset in LATER.items():
        value = getattr(kind, name)
        if value != unset:
            text = "/".join(map(str, value)) if name == "service" else value
            later.append(f"{name}={text}")
    return (kind.model, kind.precision, *joined, sequence, " ".join(later))


def _later(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, _, text in (word.partition("=") for word in words):
        if name not in LATER:
            raise ValueError(f"'{name}' is not one of {', '.join(LATER)}")
        found[name] = text if isinstance(LATER[name], str) else text and _loaded(name, text)
    return found


def _loaded(name: str, text: str) -> Any:
    if name != "service":
        return int(text)
    rate, prompt, output, weights, tp, token_s = text.split("/")
    return ServiceLoad(float(rate), int(prompt), int(output), weights, int(tp), float(token_s))


def _kind(words: tuple[str, ...], where: str) -> JobKind:
    model, precision, gpus, batches, caps, types, sequence, spread = words
    try:
        return JobKind(
            model=model,
            precision=precision,
            gpus=tuple(map(int, gpus.split())),
            batches=tuple(map(int, batches.split())),
            caps=tuple(map(float, caps.split())),
            types=tuple(types.split()),
            sequence=int(sequence) if sequence else None,
            may_spread=spread.partition(" ")[0] == "yes",
            **_later(spread.split()[1:]),
        )
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; lists have spaces between their values") from None


def _number(cell: str, column: str, where: str) -> float:
    if column == "deadline_s" and not cell:
        return math.inf
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (column == "work" and value <= 0):
        what = "a number above 0" if column == "work" else "a number"
        raise ConfigError(f"{where}: column {column}: '{cell}' is not {what}")
    return value


def _lines(name: str) -> Iterator[tuple[int, list[str]]]:
    try:
        with user_path(name).open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            if tuple(next(reader, ())) != HEADER:
                raise ConfigError(f"{name}:1: the columns are not {', '.join(HEADER)}")
            for row in reader:
                if row:
                    yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{name}: cannot be read: {reason}") from None
