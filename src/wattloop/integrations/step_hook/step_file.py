"""Step file: the steps and pauses of one process, written by its hook, read by `wattloop run`.

The first line is a JSON object (process number, rank). Records of seven doubles follow, so that a
reader can ignore one that is half written. Times are seconds of the monotonic clock, which all
processes of a machine share.
"""

from __future__ import annotations

import json
import math
import os
import stat
import sys
import time
from array import array
from typing import Any

CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
UNTRUSTED = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | CLOSE_ON_EXEC
WIDTH = 7
RECORD_B = 8 * WIDTH
STEP, EVALUATION, CHECKPOINT, COMPILE, LOSS, TOKENS, EPOCH, TRAINER_STEP = (
    float(i) for i in range(1, 9)
)
FLUSH_EVERY_S = 0.0005
"""A write takes some microseconds; a killed program loses at most the steps of this time."""
LARGEST_FILE_B = 512 << 20
"""A program with thousands of steps a second for weeks: later steps are left out."""
READ_AT_ONCE_B = 8 << 20
RANKS = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PMI_LOCAL_RANK",
    "SLURM_LOCALID",
)
"""Variables of launchers: the rank of a process on its node."""


def _read_at(file: int, size: int, position: int) -> bytes:
    os.lseek(file, position, os.SEEK_SET)  # Windows has no `pread`
    return os.read(file, size)


class StepFileWriter:
    """Appends records.

    Raises:
        OSError: the folder is gone, or the disk is full.
    """

    def __init__(self, folder: str) -> None:
        self._buffer = array("d")
        self._flushed_s = 0.0
        path = os.path.join(folder, f"{os.getpid()}-{time.monotonic_ns()}.steps")  # noqa: PTH118
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL | CLOSE_ON_EXEC
        self._file = os.open(path, flags, 0o600)
        self._inode = os.fstat(self._file).st_ino
        header = {"pid": os.getpid(), "local_rank": _local_rank()}
        os.write(self._file, json.dumps(header).encode() + b"\n")

    def add(self, kind: float, *values: float) -> None:
        self._buffer.append(kind)
        self._buffer.extend(values)
        self._buffer.extend((math.nan,) * (WIDTH - 1 - len(values)))

    def flush(self, *, everything: bool = False) -> None:
        now_s = time.monotonic()
        if not self._buffer or not (everything or now_s - self._flushed_s >= FLUSH_EVERY_S):
            return
        self._flushed_s = now_s
        status = os.fstat(self._file)
        if status.st_ino != self._inode:
            raise OSError("the program closed the descriptor of the step file")
        if status.st_size > LARGEST_FILE_B:
            raise OSError(f"more than {LARGEST_FILE_B >> 20} MiB of steps")
        data = self._buffer.tobytes()
        self._buffer = array("d")
        if os.write(self._file, data) != len(data):
            raise OSError("the disk is full")


class StepFile:
    """Reader of a step file that may still grow."""

    def __init__(self, file: int, header: dict[str, Any], begin: int) -> None:
        self.header = header
        self._file = file
        self._position = begin

    @classmethod
    def open(cls, path: str) -> StepFile | None:
        """Open the file; None when it is not a file, or its first line not complete or valid."""
        file = os.open(path, os.O_RDONLY | UNTRUSTED)
        line, header = b"", None
        try:
            if stat.S_ISREG(os.fstat(file).st_mode):
                line, newline, _ = _read_at(file, 4_096, 0).partition(b"\n")
                header = json.loads(line) if newline else None
        except (OSError, ValueError):
            header = None
        if not isinstance(header, dict):
            os.close(file)
            return None
        return cls(file, header, len(line) + 1)

    def read(self) -> list[tuple[float, ...]]:
        """Return complete records that were added since the last call."""
        data = _read_at(self._file, READ_AT_ONCE_B, self._position)
        whole_b = len(data) // RECORD_B * RECORD_B
        self._position += whole_b
        values = array("d", data[:whole_b])
        return [tuple(values[i : i + WIDTH]) for i in range(0, len(values), WIDTH)]

    def close(self) -> None:
        os.close(self._file)


def _local_rank() -> int | None:
    """Return the rank by the launcher's variables, else by torch.distributed."""
    for name in RANKS:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return None
