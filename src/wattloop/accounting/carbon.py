"""Carbon emissions of an energy: the carbon intensity that applies to a run, and the product."""

import csv
import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from wattloop.core.errors import ConfigError, GridUnavailable
from wattloop.core.files import user_path
from wattloop.core.records import Gap
from wattloop.core.settings import Settings
from wattloop.core.units import kwh_from_joules
from wattloop.hardware.carbon import annual_intensity, guess_country

# A live provider of carbon intensity, asked once by URL at the end of a run.
#
# The reply is a JSON object with `g_co2e_per_kwh`, or with `carbonIntensity` as Electricity Maps
# has it; `zone` is shown when present.

TIMEOUT_S = 2.0
MAX_REPLY_BYTES = 1_000_000
MAX_G_PER_KWH = 5_000.0
FIELDS = ("g_co2e_per_kwh", "carbonIntensity")


class LiveIntensity(NamedTuple):
    """Reply of the provider."""

    g_co2e_per_kwh: float
    zone: str


def fetch_live(url: str, timeout_s: float = TIMEOUT_S) -> LiveIntensity | Gap:
    """Request `url`; return a `Gap` with the reason without a usable answer within `timeout_s`.

    The request runs in a thread of its own, since the timeout of a socket bounds neither the
    look-up of a name nor a reply that trickles in.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        return Gap(f"{shown_url(url)}: only http and https are asked")
    answers: list[LiveIntensity | Gap] = []
    thread = threading.Thread(
        target=lambda: answers.append(_asked(url, timeout_s)), name="wattloop-carbon", daemon=True
    )
    thread.start()
    thread.join(timeout_s)
    return answers[0] if answers else Gap(f"{shown_url(url)}: no answer within {timeout_s:g} s")


def shown_url(url: str) -> str:
    """Return host and path only: user, password and query may hold a secret."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
    except ValueError:
        return "carbon_url"


def _asked(url: str, timeout_s: float) -> LiveIntensity | Gap:
    import urllib.request  # takes 15 ms, only for users of a live provider
    from http.client import HTTPException

    # urllib takes `user:password@host` for a host and port, and says so in its error.
    address, authorization = _without_login(url)
    headers = {"Accept": "application/json", **authorization}
    try:
        request = urllib.request.Request(address)
        request.unredirected_hdrs.update(headers)  # a login is for this host only
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            body = reply.read(MAX_REPLY_BYTES)
    except (OSError, ValueError, HTTPException) as problem:
        return Gap(f"{shown_url(url)}: {getattr(problem, 'reason', '') or problem}")
    return _understood(body, shown_url(url))


def _without_login(url: str) -> tuple[str, dict[str, str]]:
    """The URL without user and password, and the header that carries them instead."""
    parts = urlsplit(url)
    login, separator, host = parts.netloc.rpartition("@")
    if not separator:
        return url, {}
    from base64 import b64encode

    user, _, password = (unquote(part) for part in login.partition(":"))
    token = b64encode(f"{user}:{password}".encode()).decode()
    return parts._replace(netloc=host).geturl(), {"Authorization": f"Basic {token}"}


def _understood(body: bytes, where: str) -> LiveIntensity | Gap:
    try:
        data: Any = json.loads(body)
    except (ValueError, RecursionError):
        return Gap(f"{where}: the reply is not JSON")
    if isinstance(data, dict):
        for field in FIELDS:
            value = data.get(field)
            if isinstance(value, int | float) and not isinstance(value, bool):
                if 0 <= value <= MAX_G_PER_KWH:
                    return LiveIntensity(float(value), str(data.get("zone") or ""))
                shown = str(value)[:20]
                return Gap(f"{where}: {field} {shown} is not within 0 and {MAX_G_PER_KWH:g}")
    return Gap(f"{where}: the reply has no number {' or '.join(FIELDS)}")


# The user's own carbon intensities by time, from a CSV file.
#
# Columns `time` and `g_co2e_per_kwh`, and `zone` where the file holds several. A time is ISO 8601
# (UTC unless it says otherwise) or seconds since 1970. A value holds until the next one.

SINGLE_STEP_S = 3_600.0
"""Validity of the only value of a file: grids publish by the hour."""


class IntensityPoint(NamedTuple):
    """Carbon intensity from `wall_s` on, in grams of CO2e per kilowatt-hour."""

    wall_s: float
    g_co2e_per_kwh: float


def mean_intensity(
    series: Sequence[IntensityPoint], begin_wall_s: float, end_wall_s: float
) -> tuple[float, float] | None:
    """Return the mean intensity over a run, each interval weighted by its overlap with the run.

    Returns the mean and the share of the run that the series covers, or None when it covers
    nothing. Power is taken as constant over the run.
    """
    length_s = max(end_wall_s - begin_wall_s, 1e-9)
    end_wall_s = begin_wall_s + length_s
    weighted = covered_s = 0.0
    for point, until_s in zip(series, _ends(series), strict=True):
        shared_s = min(until_s, end_wall_s) - max(point.wall_s, begin_wall_s)
        if shared_s > 0:
            weighted += point.g_co2e_per_kwh * shared_s
            covered_s += shared_s
    if covered_s <= 0:
        return None
    return weighted / covered_s, min(1.0, covered_s / length_s)


def load_series(path: Path, zone: str = "") -> tuple[IntensityPoint, ...]:
    """Return the points of a file in order of time; those of `zone` where it has such a column.

    Raises:
        ConfigError: the file cannot be read or a line is wrong; the message names the line.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            return _parsed(csv.DictReader(lines), path, zone)
    except OSError as problem:
        raise ConfigError(
            f"carbon_file {path} cannot be read: {problem.strerror or problem}"
        ) from None
    except (UnicodeDecodeError, csv.Error) as problem:
        raise ConfigError(f"carbon_file {path} is not a CSV text file: {problem}") from None


def _parsed(rows: "csv.DictReader[str]", path: Path, zone: str) -> tuple[IntensityPoint, ...]:
    columns = rows.fieldnames or ()
    if "time" not in columns or "g_co2e_per_kwh" not in columns:
        raise ConfigError(
            f"carbon_file {path} must have the columns time,g_co2e_per_kwh; "
            f"it has {','.join(columns) or 'none'}"
        )
    points: dict[float, IntensityPoint] = {}
    zones: set[str] = set()
    for row in rows:
        if "zone" in columns:
            zones.add(row["zone"] or "")
            if (row["zone"] or "").casefold() != zone.casefold():
                continue
        where = f"carbon_file {path}:{rows.line_num}"
        wall_s = _wall_s(row["time"], where)
        if wall_s in points:
            raise ConfigError(f"{where}: a second value for {row['time']}; remove one")
        points[wall_s] = IntensityPoint(wall_s, _intensity(row["g_co2e_per_kwh"], where))
    if not points:
        hint = f" for zone '{zone}'; it has {', '.join(sorted(zones))}" if zones else ""
        raise ConfigError(f"carbon_file {path} has no values{hint}")
    return tuple(points[wall_s] for wall_s in sorted(points))


def _wall_s(text: str | None, where: str) -> float:
    text = (text or "").strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ConfigError(
                f"{where}: time {text!r} is neither ISO 8601 (2025-01-31T14:00Z) nor seconds"
            ) from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds):
        raise ConfigError(f"{where}: time {text!r} is not finite")
    return seconds


def _intensity(text: str | None, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_G_PER_KWH:
        raise ConfigError(
            f"{where}: g_co2e_per_kwh {text!r} must be a number from 0 to {MAX_G_PER_KWH:g}"
        )
    return value


def _ends(series: Sequence[IntensityPoint]) -> list[float]:
    """Return the end of each value; the last one is valid as long as the one before it."""
    starts = [point.wall_s for point in series]
    last_step_s = starts[-1] - starts[-2] if len(starts) > 1 else SINGLE_STEP_S
    return [*starts[1:], starts[-1] + last_step_s]


# Grams of CO2e of an energy: m = E x intensity.
#
# The most specific source is used: a live provider or URL, the user's series, the user's value, the
# annual value of the zone. A source that fails is named in a note and the next is used. Without any
# source the number is unknown: a world average would be wrong by a factor of ten either way.

NO_ZONE = (
    "set zone: to your country (FRA, US, Germany), or carbon: {g_per_kwh: 50} to your own value, "
    "in wattloop.yaml; or WATTLOOP_ZONE, WATTLOOP_CARBON_G_PER_KWH"
)


NEWEST_S = 6 * 3_600.0
"""Age up to which a provider's newest value stands for a run whose hour is not published yet."""
GUESS = "guess"
"""Zone of a user who asks for a guess: the country of the machine's time zone."""


class IntensityKind(StrEnum):
    """Kind of source of an intensity."""

    LIVE = "live"
    SERIES = "series"
    STATED = "stated"
    ANNUAL = "annual"


class Intensity(NamedTuple):
    """Grams of CO2e per kilowatt-hour, with zone and source."""

    g_co2e_per_kwh: float
    zone: str
    kind: IntensityKind
    source: str
    year: int | None = None


class IntensitySearch(NamedTuple):
    """The intensity found, or None with `reason`; `notes` name sources that failed."""

    found: Intensity | None
    reason: str = ""
    notes: tuple[str, ...] = ()


def carbon_g(energy_j: float, g_co2e_per_kwh: float) -> float:
    return kwh_from_joules(energy_j) * g_co2e_per_kwh


def find_intensity(
    settings: Settings, begin_wall_s: float | None = None, end_wall_s: float | None = None
) -> IntensitySearch:
    """Find the intensity for a run between two wall-clock times. Never raises, and waits 2 s at
    most.

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
    if settings.carbon_provider:
        yield _provided(settings, begin_wall_s, end_wall_s)
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


def _provided(
    settings: Settings, begin_wall_s: float | None, end_wall_s: float | None
) -> Intensity | Gap:
    from wattloop.accounting.grid import provider_from, read_history

    now_s = time.time()
    begin_s = now_s if begin_wall_s is None else begin_wall_s
    end_s = now_s if end_wall_s is None else end_wall_s
    try:
        provider = provider_from(settings.carbon_provider)
        series = read_history(provider, begin_s, end_s)
    except (ConfigError, GridUnavailable) as problem:
        return Gap(f"live carbon intensity failed: {problem}")
    mean = mean_intensity(series.points, begin_s, end_s)
    if mean is None:
        # Providers publish an hour after it ended: a run of now gets the newest value.
        newest = series.points[-1]
        if not 0 <= begin_s - newest.wall_s <= NEWEST_S:
            return Gap(f"live carbon intensity failed: {series.source} ends before the run")
        mean = (newest.g_co2e_per_kwh, 0.0)
    value, covered = mean
    note = "" if covered > 0.999 else f" (published for {covered:.0%} of the run)"
    return Intensity(value, provider.zone, IntensityKind.LIVE, f"{series.source}{note}")


def _live(settings: Settings) -> Intensity | Gap:
    answer = fetch_live(settings.carbon_url)
    if isinstance(answer, Gap):
        return Gap(f"live carbon intensity failed: {answer.reason}")
    zone = answer.zone or settings.zone
    source = f"live from {shown_url(settings.carbon_url)}"
    return Intensity(answer.g_co2e_per_kwh, zone, IntensityKind.LIVE, source)


def _series(
    settings: Settings, begin_wall_s: float | None, end_wall_s: float | None
) -> Intensity | Gap:

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
    guessed = ""
    try:
        if zone == GUESS:
            zone, guessed = guess_country()
        entry = annual_intensity(zone)
    except ConfigError as problem:
        return Gap(str(problem))
    return Intensity(
        entry.g_co2e_per_kwh,
        entry.iso3,
        IntensityKind.ANNUAL,
        f"annual mean of {entry.country} ({entry.source}){guessed}",
        entry.year,
    )
