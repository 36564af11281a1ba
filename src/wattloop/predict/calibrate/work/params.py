"""Parameters of a case, read with their types."""

from collections.abc import Mapping
from typing import Any

__all__ = ["Params"]


class Params:
    """A typed look at a case's plain values."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values: Mapping[str, Any] = values

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number."""
        return int(self._values[name] if default is None else self._values.get(name, default))

    def text(self, name: str, default: str | None = None) -> str:
        """A word."""
        return str(self._values[name] if default is None else self._values.get(name, default))

    def flag(self, name: str) -> bool:
        """True or False; absent is False."""
        return bool(self._values.get(name, False))

    def numbers(self, name: str) -> list[int]:
        """Whole numbers."""
        return [int(value) for value in self._values[name]]
