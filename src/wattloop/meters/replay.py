"""Replay of a recorded file of readings, on the clock.

One line per reading: `time_s,domain,kind,value` as CSV, or the same fields as JSON lines.
`value`
is joules (counter) or watts (gauge) as the sensor gave them; an empty one is a recorded gap.
"""

import csv
import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TextIO

from wattloop.core.clock import Clock
from wattloop.core.errors import ConfigError, MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Provenance, Scope
from wattloop.meters.base import Context, Meter, Reading

COLUMNS = ("time_s", "domain", "kind", "value")


def detect(context: Context) -> Sequence["Replay"]:
    """The file named by `replay_file`."""
    path = context.settings.replay_file
    if not path:
        raise MeterUnavailable("replay", "no recording named", "set WATTLOOP_REPLAY=FILE.csv")
    return [Replay(Path(path), context.clock)]


def record_header(file: TextIO) -> None:
    """Write the first line of a recording."""
    file.write(",".join(COLUMNS) + "\n")


def record(
    file: TextIO, time_s: float, domains: Sequence[Domain], readings: Sequence[Reading]
) -> None:
    """Write one reading per domain, in the form that `Replay` plays."""
    writer = csv.writer(file, lineterminator="\n")
    for domain, reading in zip(domains, readings, strict=True):
        value = "" if isinstance(reading, Gap) else repr(float(reading))
        writer.writerow((repr(float(time_s)), domain.name, domain.kind.value, value))


class Replay(Meter):
    """Plays a recording once, from its first read on; each value holds until the next."""

    name: ClassVar[str] = "replay"

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._tracks = _load(path)
        self._first_s = min(track.times_s[0] for track in self._tracks)
        self._last_s = max(track.times_s[-1] for track in self._tracks)
        names = {track.name for track in self._tracks}
        self._domains = tuple(track.domain(path.name, names) for track in self._tracks)
        self._began_s: float | None = None
        self._closed = False

    def read(self) -> Sequence[Reading]:
        if self._closed:
            return [Gap("the meter is closed")] * len(self._tracks)
        now_s = self._clock.now_s()
        if self._began_s is None:
            self._began_s = now_s
        at_s = self._first_s + now_s - self._began_s
        if at_s > self._last_s:
            return [Gap("recording ended", lost=True)] * len(self._tracks)
        return [track.at(at_s) for track in self._tracks]

    def close(self) -> None:
        self._closed = True


class _Track:
    """The recorded values of one domain."""

    def __init__(self, name: str, kind: DomainKind) -> None:
        self.name = name
        self.kind = kind
        self.times_s: list[float] = []
        self.values: list[float | None] = []

    def at(self, time_s: float) -> Reading:
        index = bisect_right(self.times_s, time_s) - 1
        if index < 0:
            return Gap(f"recording of {self.name} has not begun")
        value = self.values[index]
        return Gap("recorded gap") if value is None else value

    def domain(self, file_name: str, names: set[str]) -> Domain:
        head, _, leaf = self.name.rpartition("/")
        container = f"{head}/package"
        steps = sorted(b - a for a, b in zip(self.times_s, self.times_s[1:], strict=False))
        period_s = steps[len(steps) // 2] if steps else 0.0
        return Domain(
            name=self.name,
            kind=self.kind,
            scope=_scope(self.name),
            source=f"recording {file_name}",
            provenance=Provenance.REPLAYED,
            inside=container if head and leaf != "package" and container in names else None,
            update_period_s=max(period_s, 1e-3),
            read_cost_s=2e-6,
        )


def _load(path: Path) -> list[_Track]:
    tracks: dict[str, _Track] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for line, row in _rows(path, file):
                time_s, name, kind, value = _fields(row, f"{path}:{line}")
                track = tracks.setdefault(name, _Track(name, kind))
                if track.kind is not kind:
                    raise ConfigError(f"{path}:{line}: {name} is both counter and gauge")
                if track.times_s and time_s < track.times_s[-1]:
                    raise ConfigError(f"{path}:{line}: time {time_s:g} s lies before the last one")
                track.times_s.append(time_s)
                track.values.append(value)
    except OSError as error:
        raise ConfigError(f"replay_file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"replay_file {path} is not text in UTF-8") from None
    if not tracks:
        raise ConfigError(f"replay_file {path} holds no readings")
    return list(tracks.values())


def _rows(path: Path, file: TextIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and fields of each reading, from either form."""
    first = file.readline()
    file.seek(0)
    if first.lstrip().startswith("{"):
        import json

        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if not isinstance(row, dict):
                    raise ConfigError(f"{path}:{number}: not a JSON object")
                yield number, row
        return
    reader = csv.DictReader(file)
    missing = [c for c in COLUMNS if c not in (reader.fieldnames or ())]
    if missing and not (missing == ["time_s"] and "t_s" in (reader.fieldnames or ())):
        raise ConfigError(f"{path}:1: column {missing[0]} is missing; needs {','.join(COLUMNS)}")
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise ConfigError(f"{path}:{reader.line_num}: {error}") from None


def _fields(row: dict[str, Any], where: str) -> tuple[float, str, DomainKind, float | None]:
    name = row.get("domain")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: domain is missing")
    try:
        kind = DomainKind(row.get("kind") or "")
    except ValueError:
        raise ConfigError(f"{where}: kind is '{row.get('kind')}'; use counter or gauge") from None
    value = row.get("value")
    time_s = _finite(row.get("time_s", row.get("t_s")), f"{where}: time_s")
    return time_s, name, kind, None if value in (None, "") else _finite(value, f"{where}: value")


def _finite(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{where} is '{value}', not a number") from None
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(f"{where} is '{str(value)[:40]}', not a finite number")
    return number


def _scope(name: str) -> Scope:
    head = re.split(r"[:/]", name, maxsplit=1)[0]
    if head == "psys":
        return Scope.NODE
    return Scope(head) if head in {scope.value for scope in Scope} else Scope.OTHER
