"""The file a collection writes: JSON lines, appended as they come, so that nothing is lost."""

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from wattloop.core.errors import ConfigError

__all__ = ["SampleFile", "records"]


class SampleFile:
    """Appends records, each whole and at once.

    Args:
        path: created, or continued where it holds a collection of the same machine.
        resume: keep what is there; without it an existing file is refused.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.done: set[str] = set()
        if path.exists() and path.stat().st_size:
            if not resume:
                raise ConfigError(
                    f"{path}: is there already; add --resume to go on with it, or name another file"
                )
            _drop_torn_line(path)
            self.done = {str(row["case"]) for row in records(path) if "case" in row}
        self._file: TextIO = path.open("a", encoding="utf-8")

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
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    lines = text.splitlines()
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


def _drop_torn_line(path: Path) -> None:
    """A killed collection may leave half a line."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        path.write_bytes(data[: data.rfind(b"\n") + 1])
