"""Grams of CO2e of an energy: which carbon intensity holds for a run, and the product.

m = E x intensity

The most specific source wins: live provider, the user's series, the user's value, the annual
value of the zone. One that fails is named in a note and the next is taken. Without any there is
no number: a world average would be wrong by a factor of ten in both directions.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.core.records import Gap
from wattloop.core.settings import Settings
from wattloop.core.units import kwh_from_joules
from wattloop.core.user_path import user_path
from wattloop.hardware.carbon import annual_intensity

__all__ = ["Intensity", "IntensityKind", "IntensitySearch", "carbon_g", "find_intensity"]

NO_ZONE = (
    "set zone: to your country (FRA, US, Germany), or carbon: {g_per_kwh: 50} to your own value, "
    "in wattloop.yaml; or WATTLOOP_ZONE, WATTLOOP_CARBON_G_PER_KWH"
)


class IntensityKind(StrEnum):
    """Where an intensity comes from."""

    LIVE = "live"
    SERIES = "series"
    STATED = "stated"
    ANNUAL = "annual"


class Intensity(NamedTuple):
    """Grams of CO2e per kilowatt-hour, for which zone, and who says so."""

    g_co2e_per_kwh: float
    zone: str
    kind: IntensityKind
    source: str
    year: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return self._asdict()


class IntensitySearch(NamedTuple):
    """The intensity found, or None with `reason`; `notes` name sources that failed."""

    found: Intensity | None
    reason: str = ""
    notes: tuple[str, ...] = ()


def carbon_g(energy_j: float, g_co2e_per_kwh: float) -> float:
    """Grams of CO2e."""
    return kwh_from_joules(energy_j) * g_co2e_per_kwh


def find_intensity(
    settings: Settings, begin_wall_s: float | None = None, end_wall_s: float | None = None
) -> IntensitySearch:
    """The intensity for a run between two times of day. Never raises, and waits 2 s at most.

    To be called once, at the end of a run: a live provider is asked here.
    """
    failures: list[str] = []
    for tried in _sources(settings, begin_wall_s, end_wall_s):
        if isinstance(tried, Intensity):
            notes = [f"{failure}; used {tried.source} instead" for failure in failures]
            return IntensitySearch(tried, notes=tuple(notes))
        failures.append(tried.reason)
    return IntensitySearch(None, reason="; ".join(failures) or NO_ZONE, notes=())


def _sources(
    settings: Settings, begin_wall_s: float | None, end_wall_s: float | None
) -> Iterator[Intensity | Gap]:
    if settings.carbon_url:
        yield _live(settings)
    if settings.carbon_file:
        yield _series(settings, begin_wall_s, end_wall_s)
    if settings.carbon_g_per_kwh is not None:
        source = settings.sources.get("carbon_g_per_kwh", "your setting")
        yield Intensity(
            settings.carbon_g_per_kwh,
            settings.zone,
            IntensityKind.STATED,
            f"carbon_g_per_kwh ({source})",
        )
    if settings.zone:
        yield _annual(settings.zone)


def _live(settings: Settings) -> Intensity | Gap:
    from wattloop.measure.accounting.carbon_live import fetch_live, shown_url

    answer = fetch_live(settings.carbon_url)
    if isinstance(answer, Gap):
        return Gap(f"live carbon intensity failed: {answer.reason}")
    zone = answer.zone or settings.zone
    source = f"live from {shown_url(settings.carbon_url)}"
    return Intensity(answer.g_co2e_per_kwh, zone, IntensityKind.LIVE, source)


def _series(
    settings: Settings, begin_wall_s: float | None, end_wall_s: float | None
) -> Intensity | Gap:
    from wattloop.measure.accounting.carbon_series import load_series, mean_intensity

    path = user_path(settings.carbon_file)
    if begin_wall_s is None or end_wall_s is None:
        return Gap(f"carbon_file {path} needs the time of day of the run, which is not known")
    try:
        mean = mean_intensity(load_series(path, settings.zone), begin_wall_s, end_wall_s)
    except ConfigError as problem:
        return Gap(str(problem))
    if mean is None:
        return Gap(f"carbon_file {path} has no value for the time of the run")
    value, covered = mean
    source = f"{path}, weighted over the run"
    if covered < 0.999:
        source += f" (it covers {covered:.0%} of it)"
    return Intensity(value, settings.zone, IntensityKind.SERIES, source)


def _annual(zone: str) -> Intensity | Gap:
    try:
        entry = annual_intensity(zone)
    except ConfigError as problem:
        return Gap(str(problem))
    return Intensity(
        entry.g_co2e_per_kwh,
        entry.iso3,
        IntensityKind.ANNUAL,
        f"annual mean of {entry.country} ({entry.source})",
        entry.year,
    )
