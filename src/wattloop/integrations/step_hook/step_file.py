"""Step file: the steps and pauses of one process, written by its hook, read by `wattloop run`.

The first line is a JSON object (process number, ranks). Records of seven doubles follow,
so that a reader can ignore one that is half written. Times are seconds of the monotonic clock,
which all processes of a machine share.
"""

from __future__ import annotations

import json
import math
import os
import time
from array import array
from dataclasses import dataclass
from typing import Any, BinaryIO

WIDTH = 7
STEP, EVALUATION, CHECKPOINT, COMPILE, LOSS, TOKENS, EPOCH = (float(i) for i in range(1, 8))
FLUSH_EVERY_S = 0.25
LARGEST_FILE_B = 512 << 20
"""A program with thousands of steps a second for weeks: later steps are left out."""


class StepFileWriter:
    """Appends records; never raises into the program, and gives up when it cannot write."""

    def __init__(self, folder: str) -> None:
        self._buffer = array("d")
        self._flushed_s = time.monotonic()
        self._size_b = 0
        path = os.path.join(folder, f"{os.getpid()}-{time.monotonic_ns()}.steps")  # noqa: PTH118
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL | os.O_CLOEXEC
        self._file: int | None = os.open(path, flags, 0o600)
        header = {
            "pid": os.getpid(),
            "rank": _number(os.environ.get("RANK")),
            "local_rank": _number(os.environ.get("LOCAL_RANK")),
        }
        os.write(self._file, json.dumps(header).encode() + b"\n")

    def add(self, kind: float, *values: float) -> None:
        if self._file is None:
            return
        self._buffer.append(kind)
        self._buffer.extend(values)
        self._buffer.extend((math.nan,) * (WIDTH - 1 - len(values)))
        if time.monotonic() - self._flushed_s >= FLUSH_EVERY_S:
            self.flush()

    def flush(self) -> None:
        if self._file is None or not self._buffer:
            return
        self._flushed_s = time.monotonic()
        data = self._buffer.tobytes()
        self._buffer = array("d")
        self._size_b += len(data)
        try:
            whole = os.write(self._file, data) == len(data)
        except OSError:  # a full disk; the folder was removed
            whole = False
        if not whole or self._size_b > LARGEST_FILE_B:
            os.close(self._file)
            self._file = None


@dataclass(slots=True)
class StepFile:
    """Reader of a step file that may still grow."""

    file: BinaryIO
    header: dict[str, Any]

    @classmethod
    def open(cls, path: str) -> StepFile | None:
        """Open the file; None when its first line is not complete or not valid."""
        file = open(path, "rb")  # noqa: PTH123, SIM115 - stays open while the program runs
        line = file.readline(4_096)
        try:
            header = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            header = None
        if not isinstance(header, dict):
            file.close()
            return None
        return cls(file, header)

    def read(self) -> list[tuple[float, ...]]:
        """Return complete records that were added since the last call."""
        begin = self.file.tell()
        data = self.file.read()
        size_b = WIDTH * 8
        whole_b = len(data) // size_b * size_b
        self.file.seek(begin + whole_b)
        values = array("d", data[:whole_b])
        return [tuple(values[i : i + WIDTH]) for i in range(0, len(values), WIDTH)]


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
