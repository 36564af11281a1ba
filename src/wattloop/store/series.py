"""Which series a run recorded: every domain and every signal of every meter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattloop.core.errors import StoreError
from wattloop.core.records import SLOW_SENSOR_S

__all__ = ["SIGNALS_FROM", "Series", "find_series", "power_series", "series_of"]

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


def power_series(feeds: Sequence[Mapping[str, Any]]) -> dict[str, Series]:
    """Domain -> the series that shows its power, chosen as `measure` chooses its sources.

    The first meter that offers a domain was used; another one was not even read (an estimate next
    to RAPL). A gauge that gives a slow counter of the same provenance its shape is drawn instead
    of it: it needs no difference.
    """
    found: dict[str, tuple[Series, Mapping[str, Any]]] = {}
    for series in series_of(feeds):
        if series.kind == "signal":
            continue
        domain = feeds[series.feed]["domains"][series.column]
        present = found.get(series.name)
        if present is None or (
            series.kind == "gauge"
            and present[0].kind == "counter"
            and float(present[1].get("update_period_s") or 0.0) >= SLOW_SENSOR_S
            and domain.get("provenance") == present[1].get("provenance")
        ):
            found[series.name] = (series, domain)
    return {name: series for name, (series, _) in found.items()}


def find_series(feeds: Sequence[Mapping[str, Any]], name: str) -> Series:
    """The series called `name`."""
    known = series_of(feeds)
    for series in known:
        if series.name == name:
            return series
    names = ", ".join(series.name for series in known) or "none at all"
    raise StoreError(f"this run has no samples of {name!r}; it has {names}")
