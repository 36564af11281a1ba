"""Taking hold of a journal that nobody else holds: neither its writer nor another folder."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

__all__ = ["Refusal", "held"]

BIRTH_S = 60.0
"""A journal younger than this may still be without header or lock."""


class Refusal(StrEnum):
    """Why a journal cannot be had."""

    HELD = "held by somebody"
    GONE = "gone"


@contextmanager
def held(path: Path) -> Iterator[Refusal | None]:
    """Holds the journal's lock inside the block; yields why not, if it cannot be had."""
    descriptor, refusal = _opened(path)
    try:
        yield refusal if descriptor is None else _lock(descriptor, path)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _opened(path: Path) -> tuple[int | None, Refusal]:
    try:
        # its writer locks it before the first byte: an empty one may be a moment old
        if path.stat().st_size == 0 and _age_s(path) < BIRTH_S:
            return None, Refusal.HELD
        return os.open(path, os.O_RDWR | os.O_CLOEXEC), Refusal.HELD
    except FileNotFoundError:
        return None, Refusal.GONE
    except OSError:
        return None, Refusal.HELD


def _lock(descriptor: int, path: Path) -> Refusal | None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return Refusal.HELD
    except OSError:  # a file system without locks: a writer appends at least once a second
        if _age_s(path) < BIRTH_S:
            return Refusal.HELD
    try:
        same = os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        same = False
    return None if same else Refusal.GONE  # somebody folded it while we came


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime
