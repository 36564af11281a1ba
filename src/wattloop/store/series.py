"""Which series a run recorded: every domain and every signal of every meter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattloop.core.errors import StoreError

__all__ = ["SIGNALS_FROM", "Series", "find_series", "series_of"]

SIGNALS_FROM = 1_000
"""Feed N + 1000 of a journal holds the signals of feed N."""


@dataclass(frozen=True, slots=True)
class Series:
    """One domain or signal of one meter, as a run recorded it."""

    feed: int
    column: int
    name: str
    kind: str
    """`counter` (joules), `gauge` (watts) or `signal`."""
    unit: str
    meter: str
    wrap_j: float | None = None


def series_of(feeds: Sequence[Mapping[str, Any]]) -> list[Series]:
    """All series that a run's feeds describe."""
    found = []
    for feed, description in enumerate(feeds):
        meter = str(description.get("meter", ""))
        for column, domain in enumerate(description.get("domains", ())):
            kind = str(domain["kind"])
            unit = "J" if kind == "counter" else "W"
            found.append(
                Series(feed, column, domain["name"], kind, unit, meter, domain.get("wrap_j"))
            )
        for column, signal in enumerate(description.get("signals", ())):
            found.append(
                Series(feed + SIGNALS_FROM, column, signal["name"], "signal", signal["unit"], meter)
            )
    return found


def find_series(feeds: Sequence[Mapping[str, Any]], name: str) -> Series:
    """The series called `name`."""
    known = series_of(feeds)
    for series in known:
        if series.name == name:
            return series
    names = ", ".join(series.name for series in known) or "none at all"
    raise StoreError(f"this run has no samples of {name!r}; it has {names}")
