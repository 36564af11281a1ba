"""Metrics parsed from the output and the files of a program, line by line."""

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
PAIR = re.compile(rf"(?<![\w./-])([A-Za-z_][\w./-]*)\s*[=:]\s*({NUMBER})(?![\w.])(\s?%)?", re.I)
EPOCH = re.compile(r"\bepochs?\b\s*[:=#]?\s*\[?\s*(\d+(?:\.\d+)?)", re.I)
MOST_NAMES = 100
EVENT, WAITS = "wattloop", "wattloop.waits"


class MetricReport(NamedTuple):
    """Metrics of one line, or an event of a program that uses `current_trial()`."""

    metrics: dict[str, float]
    epoch: float | None = None
    event: str = ""
    """`begins`, `counts` (it marks the ends of its epochs), `epoch` (has ended), `steps`, `paused`.
    """
    waits: bool = False
    """True when the program waits for a reply."""


class MetricLines:
    """Parser of `accuracy=0.93`, `epoch 3 accuracy: 0.93`, a JSON object, or a row of CSV.

    `Epoch 3/10` on a line of its own holds for the lines that follow. Of the parts of a line that
    carriage returns overwrite, as progress bars do, only the last counts.

    Args:
        wanted: the quality metric; `accuracy 0.93` without a sign is understood for it
            alone.
    """

    def __init__(self, wanted: str) -> None:
        self._wanted = re.compile(rf"(?<![\w./-]){re.escape(wanted)}\s+({NUMBER})(?![\w.])", re.I)
        self._name = wanted
        self._epoch: float | None = None
        self._columns: list[str] | None = None

    def parse(self, line: str) -> MetricReport | None:
        line = line.rstrip("\r\n").rpartition("\r")[2].strip()
        if not line:
            return None
        if line.startswith("{"):
            found = _json(line)
            if found is not None:
                return _of_mapping(found)
        metrics = {
            name: float(text) / (100.0 if percent else 1.0)
            for name, text, percent in PAIR.findall(line)[:MOST_NAMES]
        }
        epoch = self._epoch_of(line, metrics)
        bare = self._wanted.search(line) if self._name else None
        if bare is not None and self._name not in metrics:
            metrics[self._name] = float(bare.group(1))
        metrics.pop("step", None)
        if not metrics and epoch is None:
            return None
        return MetricReport(metrics, self._epoch if epoch is None else epoch)

    def row(self, line: str) -> MetricReport | None:
        """Parse a line of a file: JSON, or CSV with the header of its first line."""
        if line.lstrip().startswith("{"):
            found = _json(line)
            return None if found is None else _of_mapping(found)
        cells = next(csv.reader([line]), [])
        if not cells:
            return None
        if self._columns is None:
            if any(_is_number(cell) for cell in cells):  # no header: lines as in the output
                return self.parse(line)
            if len(cells) > 1 or not PAIR.search(line):
                self._columns = [cell.strip() for cell in cells]
                return None
            return self.parse(line)
        if [cell.strip() for cell in cells] == self._columns:  # the file was written again
            return None
        values = dict(zip(self._columns, cells, strict=False))
        return _of_mapping({k: float(v) for k, v in values.items() if _is_number(v)})

    def _epoch_of(self, line: str, metrics: dict[str, float]) -> float | None:
        """Return the epoch that a line names; alone on its line, it applies to later lines."""
        own = metrics.pop("epoch", None)
        match = EPOCH.search(line)
        if own is None and match is not None:
            own = float(match.group(1))
        if own is not None and not metrics:
            self._epoch = own
        return own


class LineReader:
    """Whole lines that were appended to a file since the last call.

    A file that has become shorter was written again, and is read from its beginning.

    Args:
        skip: whether to ignore lines that already exist.
    """

    def __init__(self, path: Path, *, skip: bool = False) -> None:
        self._path = path
        self._at = 0
        self._rest = b""
        if skip:
            try:
                self._at = path.stat().st_size
            except OSError:
                self._at = 0

    def lines(self, *, last: bool = False) -> Iterator[str]:
        """Return new lines; with `last` also an unterminated one."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._at:
                    self._at, self._rest = 0, b""
                file.seek(self._at)
                added = file.read()
        except OSError:
            added = b""
        self._at += len(added)
        *whole, self._rest = (self._rest + added).split(b"\n")
        if last and self._rest:
            whole, self._rest = [*whole, self._rest], b""
        for line in whole:
            yield line.decode(errors="replace")


def _of_mapping(data: Mapping[str, Any]) -> MetricReport:
    metrics = {
        str(name): float(value)
        for name, value in data.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    epoch = metrics.pop("epoch", None)
    return MetricReport(metrics, epoch, str(data.get(EVENT, "")), bool(data.get(WAITS)))


def _json(line: str) -> Mapping[str, Any] | None:
    try:
        data = json.loads(line)
    except ValueError:
        return None
    return data if isinstance(data, Mapping) else None


def _is_number(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) or text.strip().lower().lstrip("+-") in ("nan", "inf", "infinity")


class MetricStream:
    """Reports of a program since the last call.

    Args:
        reports: the file that `current_trial()` writes.
        metrics_file: that the program writes of its own.
    """

    def __init__(self, wanted: str, reports: Path, output: Path, metrics_file: Path | None) -> None:
        self._sources = [
            (LineReader(reports), MetricLines(wanted), True),
            (LineReader(output, skip=True), MetricLines(wanted), False),
        ]
        if metrics_file is not None:
            reader = LineReader(metrics_file, skip=True)
            self._sources.append((reader, MetricLines(wanted), True))
        self._unread: Iterator[MetricReport] = iter(())
        self.cooperates = False
        """True when it reports through `current_trial()`; its output is then not parsed."""

    def new_reports(self, *, last: bool) -> Iterator[MetricReport]:
        """Yield reports in order; those not consumed now come first at the next call."""
        yield from self._unread
        found: list[MetricReport] = []
        for reader, lines, is_file in self._sources:
            for line in reader.lines(last=last):
                report = lines.row(line) if is_file else lines.parse(line)
                if report is not None and (is_file or not self.cooperates):
                    found.append(report)
                    self.cooperates = self.cooperates or bool(report.event)
        self._unread = iter(found)
        yield from self._unread
