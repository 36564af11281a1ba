"""Reading what another release may have written."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from wattloop.core.errors import StoreError


def known_fields(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """What a dataclass with slots has of stored data: a later version may have written more."""
    return {name: data[name] for name in kind.__slots__ if name in data}


def unreadable(key: str, error: Exception) -> StoreError:
    """What to say of a trial that has something missing, or a value that nobody knows here."""
    return StoreError(
        f"trial {key!r} cannot be understood ({type(error).__name__}: {error}); a newer Wattloop "
        "wrote it, or something else changed it: upgrade with 'pip install -U wattloop', or "
        "restore the store from a copy"
    )


@contextmanager
def without_collecting() -> Iterator[None]:
    """Nothing that is read here is garbage: looking for it takes a third of the time of reading."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
