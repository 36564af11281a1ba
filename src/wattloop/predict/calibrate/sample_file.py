"""File of a collection: JSON lines; a kill loses at most one case."""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from wattloop.core.errors import ConfigError


class SampleFile:
    """Appender of records, each written atomically.

    Args:
        path: created, or continued.
        resume: keep existing records; without it an existing file is refused.

    Attributes:
        done: keys of finished cases.
        gpu: GPU of its records; None while it is empty.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.done: set[str] = set()
        self.gpu: str | None = None
        if path.suffix == ".gz":
            raise ConfigError(
                f"{path}: lines cannot be added to a compressed file; name one that ends in .jsonl"
            )
        if path.exists() and path.stat().st_size:
            if not resume:
                raise ConfigError(
                    f"{path}: is there already; add --resume to go on with it, or name another file"
                )
            self._go_on()
        try:
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; name another file with -o") from None

    def _go_on(self) -> None:
        for row in records(self.path):  # refuses another file before a byte is changed
            if row["record"] == "machine":
                self.gpu = str(row.get("gpu"))
            elif "case" in row and not _may_work_now(row):
                self.done.add(str(row["case"]))
        _drop_torn_line(self.path)

    def write(self, record: Mapping[str, object]) -> None:
        """Write one line, on disk when this returns."""
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Return all records of a file, compressed or not; an incomplete last line is left out.

    Raises:
        ConfigError: a line in between is not a record.
    """
    text = _text(path)
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError:
            if number == len(lines) and _is_torn(text):
                return
            raise ConfigError(
                f"{path}:{number}: not a JSON record; this is not a file of 'wattloop calibrate "
                "collect', or it is damaged: collect again"
            ) from None
        if not isinstance(record, dict) or "record" not in record:
            raise ConfigError(f"{path}:{number}: no field 'record'; is this a calibration file?")
        yield record


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(
            f"{path}: cannot be read ({reason}); name a file of 'wattloop calibrate collect'"
        ) from None


def _may_work_now(row: Mapping[str, Any]) -> bool:
    """Return whether a failed case may work now: a missing package may have been installed."""
    return str(row.get("error")).startswith(("ModuleNotFoundError", "ImportError"))


def _is_torn(text: str) -> bool:
    """Return whether it ends within a record, which a kill leaves."""
    begin = '{"record":'
    last = text[text.rfind("\n") + 1 :]
    return bool(last) and begin.startswith(last[: len(begin)])


def _drop_torn_line(path: Path) -> None:
    """Remove the incomplete last line of a killed collection."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        path.write_bytes(data[: data.rfind(b"\n") + 1])
