"""The file a collection writes: JSON lines, appended as they come, so that nothing is lost."""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from wattloop.core.errors import ConfigError

__all__ = ["SampleFile", "records"]


class SampleFile:
    """Appends records, each whole and at once.

    Args:
        path: created, or gone on with.
        resume: keep what is there; without it an existing file is refused.

    Attributes:
        done: keys of the cases that the file has.
        gpu: the GPU it is of; None while it is empty.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.done: set[str] = set()
        self.gpu: str | None = None
        if path.exists() and path.stat().st_size:
            if not resume:
                raise ConfigError(
                    f"{path}: is there already; add --resume to go on with it, or name another file"
                )
            _drop_torn_line(path)
            for row in records(path):
                if row["record"] == "machine":
                    self.gpu = str(row.get("gpu"))
                elif "case" in row:
                    self.done.add(str(row["case"]))
        try:
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; name another file with -o") from None

    def write(self, record: Mapping[str, object]) -> None:
        """One line, on disk when this returns."""
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """No more records."""
        self._file.close()


def records(path: Path) -> Iterator[dict[str, Any]]:
    """All records of a file, compressed or not; a line cut off at the end is left out.

    Raises:
        ConfigError: a line in between is no record.
    """
    lines = _text(path).splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError:
            if number == len(lines):
                return
            raise ConfigError(
                f"{path}:{number}: not a JSON record; this is no file of 'wattloop calibrate "
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


def _drop_torn_line(path: Path) -> None:
    """A killed collection may leave half a line."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        path.write_bytes(data[: data.rfind(b"\n") + 1])
