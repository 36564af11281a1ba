"""Grid providers: carbon intensity of now, the past and the next day, and day-ahead prices.

The setting `carbon_provider` names one as `NAME:ZONE`. Nothing is asked without it.

| name | zone | intensity | forecast | token |
|---|---|---|---|---|
| `electricity-maps` | `DE`, `US-CAL-CISO` | average, life cycle | yes | API token |
| `watttime` | `CAISO_NORTH` | marginal | yes | `user:password` |
| `uk` | none, or a region 1 to 17 | average, operation | yes | none |
| `entsoe` | `FR`, an EIC code | average, life cycle | no, but prices | security token |

Average intensity is the emission of all generation by its energy. Marginal intensity is that of the
plants that would serve one more kilowatt-hour. The two differ by a factor of two or more, so every
answer says which one it is. Tokens come from `WATTLOOP_CARBON_TOKEN` or the file
`carbon-token` in the configuration folder, and appear in no message, file or setting.
"""

import json
import os
import re
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any, ClassVar, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from wattloop.accounting.carbon import (
    MAX_G_PER_KWH,
    TIMEOUT_S,
    IntensityPoint,
    mean_intensity,
    shown_url,
)
from wattloop.core.errors import ConfigError, GridUnavailable
from wattloop.core.files import atomic_write_json, cache_folder, config_folder, read_secret

T = TypeVar("T")
HOUR_S, DAY_S = 3_600.0, 86_400.0
MAX_REPLY_BYTES = 8_000_000
TOKEN_VARIABLE = "WATTLOOP_CARBON_TOKEN"
GRAMS_PER_POUND = 453.59237
KEEP_S = 14 * DAY_S
"""Age from which points leave the cache."""
FRESH_S = 900.0
"""Age up to which a forecast, or the newest hour, is not asked for again."""


class GridBasis(StrEnum):
    """Kind of an intensity."""

    AVERAGE = "average"
    MARGINAL = "marginal"


class GridSeries(NamedTuple):
    """Intensities over time with their basis and source."""

    points: tuple[IntensityPoint, ...]
    basis: GridBasis
    source: str


class StartAdvice(NamedTuple):
    """The best time to start a job, and its mean intensity against that of starting now."""

    start_wall_s: float
    g_co2e_per_kwh: float
    now_g_co2e_per_kwh: float

    @property
    def saving(self) -> float:
        """Share of the emissions that waiting saves."""
        now = self.now_g_co2e_per_kwh
        return 1 - self.g_co2e_per_kwh / now if now > 0 else 0.0


def best_start(
    points: Sequence[IntensityPoint], lasts_s: float, now_s: float, within_s: float
) -> StartAdvice:
    """Return the start within `within_s` that has the least mean intensity over `lasts_s`.

    The mean is piecewise linear in the start, so its minimum lies where the job begins or ends at
    the edge of an interval. Only starts whose whole job is covered count; of equal ones the first.

    Raises:
        GridUnavailable: the series does not cover a job that starts now.
    """
    edges = [point.wall_s for point in points]
    starts = {now_s, *edges, *(edge - lasts_s for edge in edges)}
    best: tuple[float, float] | None = None
    now_mean = 0.0
    for start_s in sorted(s for s in starts if now_s <= s <= now_s + within_s):
        # Only points near the job: a driver asks for hundreds of jobs. Two tell how long one lasts.
        first, last = bisect_right(edges, start_s) - 2, bisect_left(edges, start_s + lasts_s)
        found = mean_intensity(points[max(first, 0) : last + 1], start_s, start_s + lasts_s)
        if found is None or found[1] < 0.999:
            continue
        mean = found[0]
        if start_s == now_s:
            now_mean = mean
        if best is None or mean < best[1] * (1 - 1e-9):
            best = (start_s, mean)
    if best is None or not any(edge <= now_s for edge in edges):
        hours = (edges[-1] - now_s) / HOUR_S if edges else 0.0
        raise GridUnavailable(
            f"the forecast covers {max(hours, 0):.0f} h, the job lasts {lasts_s / HOUR_S:.3g} h; "
            "give a shorter --lasts"
        )
    return StartAdvice(best[0], best[1], now_mean)


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider of one zone. Subclasses know one API each.

    Attributes:
        zone: what the provider calls the grid.
        base: address of the API; another one serves behind a proxy.
        token: secret of the user, empty where none is needed.
    """

    zone: str
    base: str
    token: str = ""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    BASE: ClassVar[str] = ""
    basis: ClassVar[GridBasis] = GridBasis.AVERAGE
    needs_token: ClassVar[bool] = True

    def fetch_history(self, begin_s: float, end_s: float) -> Iterable[IntensityPoint]:
        """Ask for the intensities of a time that has passed."""
        raise GridUnavailable(f"{self.title} has no history of intensities")

    def fetch_forecast(self) -> Iterable[IntensityPoint]:
        """Ask for the intensities of the next day."""
        raise GridUnavailable(
            f"{self.title} publishes no forecast of carbon intensity; electricity-maps, watttime "
            "and uk do"
        )

    def fetch_prices(self, begin_s: float, end_s: float) -> Iterable[IntensityPoint]:
        """Ask for day-ahead prices in EUR per kWh."""
        raise GridUnavailable(f"{self.title} publishes no prices; entsoe does")

    def _get(
        self, path: str, query: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> bytes:
        import urllib.request  # takes 15 ms, only for users of a provider
        from http.client import HTTPException

        address = f"{self.base}{path}" + (f"?{urlencode(query)}" if query else "")
        where = shown_url(f"{self.base}{path}")
        request = urllib.request.Request(address)
        request.unredirected_hdrs.update(headers or {})  # a token is for this host only
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S * 5) as reply:
                body: bytes = reply.read(MAX_REPLY_BYTES + 1)
        except (OSError, ValueError, HTTPException) as problem:
            reason = str(getattr(problem, "reason", "") or type(problem).__name__)
            status = getattr(problem, "code", None)
            hint = f"; check {TOKEN_VARIABLE}" if status in (401, 403) and self.needs_token else ""
            code = f"HTTP {status} " if status else ""
            raise GridUnavailable(f"{where}: {code}{self._hidden(reason)}{hint}") from None
        if len(body) > MAX_REPLY_BYTES:
            raise GridUnavailable(f"{where}: the reply is larger than {MAX_REPLY_BYTES:,} bytes")
        return body

    def _get_json(
        self, path: str, query: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Any:
        body = self._get(path, query, {"Accept": "application/json", **(headers or {})})
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise GridUnavailable(f"{shown_url(self.base + path)}: the reply is not JSON") from None

    def _hidden(self, text: str) -> str:
        return text.replace(self.token, "***") if self.token else text

    def _points(
        self, rows: Any, read: Callable[[Any], tuple[str, Any]], factor: float = 1.0
    ) -> list[IntensityPoint]:
        """Return the points of rows from outside; one that makes no sense refuses the reply."""
        if not isinstance(rows, list):
            raise GridUnavailable(f"{self.title}: the reply has no list of intensities")
        points = []
        for row in rows:
            try:
                moment, value = read(row)
                if value is None:  # published as unknown
                    continue
                if isinstance(value, bool):
                    raise TypeError
                points.append(IntensityPoint(_wall_s(moment), float(value) * factor))
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                raise GridUnavailable(
                    f"{self.title}: cannot read the entry {str(row)[:80]!r}"
                ) from None
        return points


class ElectricityMaps(Provider):
    """Electricity Maps, API v3: average life-cycle intensity, flow-traced."""

    name = "electricity-maps"
    title = "Electricity Maps"
    BASE = "https://api.electricitymaps.com/v3"

    def fetch_history(self, begin_s: float, end_s: float) -> Iterable[IntensityPoint]:
        # `history` has the last 24 hours in every plan; older ranges need a paid one.
        if begin_s > time.time() - 23 * HOUR_S:
            rows = self._ask("history", {}).get("history")
            latest = self._ask("latest", {})
            return [*self._read(rows), *self._read([latest])]
        span = {"start": _iso(begin_s - HOUR_S), "end": _iso(end_s)}
        return self._read(self._ask("past-range", span).get("data"))

    def fetch_forecast(self) -> Iterable[IntensityPoint]:
        rows = self._ask("forecast", {}).get("forecast")
        return [*self._read([self._ask("latest", {})]), *self._read(rows)]

    def _ask(self, what: str, more: Mapping[str, Any]) -> dict[str, Any]:
        data = self._get_json(
            f"/carbon-intensity/{what}", {"zone": self.zone, **more}, {"auth-token": self.token}
        )
        if not isinstance(data, dict):
            raise GridUnavailable(f"{self.title}: the reply is not an object")
        return data

    def _read(self, rows: Any) -> list[IntensityPoint]:
        return self._points(rows, lambda row: (row["datetime"], row["carbonIntensity"]))


class WattTime(Provider):
    """WattTime, API v3: marginal operating emission rate."""

    name = "watttime"
    title = "WattTime"
    basis = GridBasis.MARGINAL
    BASE = "https://api.watttime.org"

    def fetch_history(self, begin_s: float, end_s: float) -> Iterable[IntensityPoint]:
        return self._ask("historical", {"start": _iso(begin_s - HOUR_S), "end": _iso(end_s)})

    def fetch_forecast(self) -> Iterable[IntensityPoint]:
        return self._ask("forecast", {"horizon_hours": 24})

    def _ask(self, what: str, more: Mapping[str, Any]) -> Iterable[IntensityPoint]:
        from base64 import b64encode

        login = b64encode(self.token.encode()).decode()
        session = self._get_json("/login", {}, {"Authorization": f"Basic {login}"})
        bearer = str(session.get("token") or "") if isinstance(session, dict) else ""
        if not bearer or not bearer.isprintable():
            raise GridUnavailable(f"{self.title}: the login has no token")
        data = self._get_json(
            f"/v3/{what}",
            {"region": self.zone, "signal_type": "co2_moer", **more},
            {"Authorization": f"Bearer {bearer}"},
        )
        data = data if isinstance(data, dict) else {}
        meta = data.get("meta") or {}
        units = meta.get("units", "lbs_co2_per_mwh") if isinstance(meta, dict) else meta
        if units != "lbs_co2_per_mwh":
            raise GridUnavailable(f"{self.title}: unknown unit {str(units)[:40]!r}")
        return self._points(
            data.get("data"),
            lambda row: (row["point_time"], row["value"]),
            GRAMS_PER_POUND / 1_000,  # pounds per MWh -> grams per kWh
        )


class CarbonIntensityUk(Provider):
    """Carbon Intensity API of Great Britain: average of operation, per half-hour."""

    name = "uk"
    title = "Carbon Intensity API (GB)"
    needs_token = False
    BASE = "https://api.carbonintensity.org.uk"

    def fetch_history(self, begin_s: float, end_s: float) -> Iterable[IntensityPoint]:
        return self._ask(f"{_minute(begin_s - 1_800)}/{_minute(end_s + 1_800)}")

    def fetch_forecast(self) -> Iterable[IntensityPoint]:
        return self._ask(f"{_minute(time.time() - 1_800)}/fw24h")

    def _ask(self, span: str) -> Iterable[IntensityPoint]:
        region = f"/regionid/{self.zone}" if self.zone else ""
        path = f"/regional/intensity/{span}{region}" if region else f"/intensity/{span}"
        data = self._get_json(path, {})
        rows = data.get("data") if isinstance(data, dict) else None
        if isinstance(rows, dict):  # a region wraps its rows once more
            rows = rows.get("data")
        return self._points(rows, _uk_row)


def _uk_row(row: Any) -> tuple[str, Any]:
    value = row["intensity"].get("actual")
    return row["from"], row["intensity"]["forecast"] if value is None else value


class Entsoe(Provider):
    """ENTSO-E Transparency Platform: generation by type x life-cycle factors; day-ahead prices."""

    name = "entsoe"
    title = "ENTSO-E"
    BASE = "https://web-api.tp.entsoe.eu"
    AREAS: ClassVar[dict[str, str]] = {
        "AT": "10YAT-APG------L",
        "BE": "10YBE----------2",
        "CH": "10YCH-SWISSGRIDZ",
        "CZ": "10YCZ-CEPS-----N",
        "DE_LU": "10Y1001A1001A82H",
        "DK1": "10YDK-1--------W",
        "ES": "10YES-REE------0",
        "FI": "10YFI-1--------U",
        "FR": "10YFR-RTE------C",
        "NL": "10YNL----------L",
        "PL": "10YPL-AREA-----S",
        "PT": "10YPT-REN------W",
        "SE3": "10Y1001A1001A46L",
    }
    FACTORS: ClassVar[
        dict[str, float]
    ] = {  # g/kWh, medians of IPCC AR5 WG3 annex III table A.III.2
        **dict.fromkeys(("B02", "B03", "B05", "B07", "B08"), 820.0),  # lignite, coal, peat
        "B04": 490.0,  # gas
        "B06": 720.0,  # oil: assumed, between gas and coal
        "B01": 230.0,  # biomass
        "B09": 38.0,  # geothermal
        **dict.fromkeys(("B11", "B12", "B13"), 24.0),  # hydro, marine
        "B14": 12.0,  # nuclear
        "B15": 38.0,  # other renewable: assumed, as geothermal
        "B16": 48.0,  # solar
        "B17": 490.0,  # waste: assumed, as gas
        "B18": 12.0,  # wind offshore
        "B19": 11.0,  # wind onshore
        "B20": 490.0,  # other: assumed, as gas
    }

    def fetch_history(self, begin_s: float, end_s: float) -> Iterable[IntensityPoint]:
        area = self._area()
        query = {"documentType": "A75", "processType": "A16", "in_Domain": area}
        energy: dict[float, float] = {}
        grams: dict[float, float] = {}
        for kind, rows in self._ask(query, begin_s, end_s, "quantity"):
            factor = self.FACTORS.get(kind)
            if factor is None:  # B10, pumped storage, is charged from the same grid
                continue
            for wall_s, power in rows:
                energy[wall_s] = energy.get(wall_s, 0.0) + power
                grams[wall_s] = grams.get(wall_s, 0.0) + power * factor
        return [IntensityPoint(s, grams[s] / energy[s]) for s in sorted(energy) if energy[s] > 0]

    def fetch_prices(self, begin_s: float, end_s: float) -> Iterable[IntensityPoint]:
        area = self._area()
        query = {"documentType": "A44", "in_Domain": area, "out_Domain": area}
        series = self._ask(query, begin_s, end_s, "price.amount")
        return [IntensityPoint(s, price / 1_000) for _, rows in series for s, price in rows]

    def _area(self) -> str:
        area = self.AREAS.get(self.zone, self.zone)
        if not re.fullmatch(r"[0-9A-Z-]{16}", area):
            raise ConfigError(
                f"carbon_provider entsoe:{self.zone}: unknown area; use {', '.join(self.AREAS)} or "
                "an EIC code of 16 characters"
            )
        return area

    def _ask(
        self, query: Mapping[str, str], begin_s: float, end_s: float, field: str
    ) -> list[tuple[str, list[tuple[float, float]]]]:
        """Return (type of plant, (time, value) rows) per series of the XML document."""
        span = {"periodStart": _compact(begin_s - HOUR_S), "periodEnd": _compact(end_s + HOUR_S)}
        # The header instead of the parameter `securityToken`: URLs end in the logs of proxies.
        body = self._get("/api", {**query, **span}, {"SECURITY_TOKEN": self.token})
        if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
            raise GridUnavailable(f"{self.title}: the reply is not a plain XML document")
        from xml.etree import ElementTree

        try:
            root = ElementTree.fromstring(body)
            return [_entsoe_series(s, field) for s in root.iterfind("{*}TimeSeries")]
        except (ElementTree.ParseError, ValueError, TypeError, AttributeError):
            raise GridUnavailable(f"{self.title}: cannot read the reply") from None


def _entsoe_series(series: Any, field: str) -> tuple[str, list[tuple[float, float]]]:
    kind = series.findtext("{*}MktPSRType/{*}psrType") or ""
    if series.find("{*}outBiddingZone_Domain.mRID") is not None:
        return "consumption", []  # what storage takes from the grid
    rows = []
    for period in series.iterfind("{*}Period"):
        begin_s = _wall_s(period.findtext("{*}timeInterval/{*}start"))
        end_s = _wall_s(period.findtext("{*}timeInterval/{*}end"))
        minutes = int(period.findtext("{*}resolution")[2:-1])
        if not 1 <= minutes <= 1_440 or not 0 < end_s - begin_s <= 400 * DAY_S:
            raise ValueError(minutes)
        given = {
            int(point.findtext("{*}position")): float(point.findtext(f"{{*}}{field}"))
            for point in period.iterfind("{*}Point")
        }
        value = None
        for position in range(1, round((end_s - begin_s) / (60 * minutes)) + 1):
            value = given.get(position, value)  # curve type A03 leaves repeated values out
            if value is not None:
                rows.append((begin_s + (position - 1) * 60 * minutes, value))
    return kind, rows


PROVIDERS: dict[str, type[Provider]] = {
    kind.name: kind for kind in (ElectricityMaps, WattTime, CarbonIntensityUk, Entsoe)
}


def provider_from(text: str, environment: Mapping[str, str] | None = None) -> Provider:
    """Return the provider that `NAME:ZONE` or `NAME:ZONE@URL` names, with the user's token.

    Raises:
        ConfigError: unknown name, no zone, no token.
    """
    named, _, base = text.partition("@")
    name, _, zone = named.partition(":")
    kind = PROVIDERS.get(name)
    if kind is None:
        raise ConfigError(
            f"carbon_provider {name!r}: unknown; use {', '.join(PROVIDERS)}, such as "
            "electricity-maps:DE"
        )
    if base and not re.match(r"https?://", base):
        raise ConfigError(f"carbon_provider {named}@...: the address must begin with https://")
    if not zone and kind is not CarbonIntensityUk:
        raise ConfigError(f"carbon_provider {name}: add the zone, such as {name}:DE")
    token = _token(environment) if kind.needs_token else ""
    if kind.needs_token and not token:
        raise ConfigError(
            f"carbon_provider {name} needs a token: set {TOKEN_VARIABLE}, or write it to "
            f"{config_folder(environment) / 'carbon-token'} (chmod 600)"
        )
    return kind(quote(zone, safe="-_"), base.rstrip("/") or kind.BASE, token)


def _token(environment: Mapping[str, str] | None) -> str:
    values = os.environ if environment is None else environment
    if values.get(TOKEN_VARIABLE):
        return values[TOKEN_VARIABLE].strip()
    path = config_folder(environment) / "carbon-token"
    return read_secret(str(path), "carbon token") if path.exists() else ""


def read_history(
    provider: Provider, begin_s: float, end_s: float, timeout_s: float = TIMEOUT_S
) -> GridSeries:
    """Return the intensities of a run, from the cache or the provider.

    Points once fetched are kept for two weeks: a second run in the same hour asks nothing.

    Raises:
        GridUnavailable: neither has any.
    """
    cached = _CacheFile(provider, "history")
    points, asked_s = cached.read()
    end_s = max(end_s, begin_s + 1)
    fresh = time.time() - asked_s < FRESH_S
    found = mean_intensity(points, begin_s, end_s) if points else None
    if found is None or (found[1] < 0.999 and not fresh):
        try:
            news = _within(timeout_s, lambda: list(provider.fetch_history(begin_s, end_s)))
            points = cached.merge(points, _sensible(news, provider))
        except GridUnavailable:
            if found is None:
                raise
    return _series(provider, points)


def read_forecast(provider: Provider, timeout_s: float = TIMEOUT_S * 5) -> GridSeries:
    """Return the forecast for the next day, at most 15 minutes old.

    Raises:
        GridUnavailable: the provider has none, or does not answer and no forecast is cached.
    """
    cached = _CacheFile(provider, "forecast")
    points, asked_s = cached.read()
    if not points or time.time() - asked_s > FRESH_S:
        try:
            news = _within(timeout_s, lambda: list(provider.fetch_forecast()))
            points = cached.merge((), _sensible(news, provider))
        except GridUnavailable:
            if not points or points[-1].wall_s < time.time():
                raise
    return _series(provider, points)


def read_prices(provider: Provider, begin_s: float, end_s: float) -> tuple[IntensityPoint, ...]:
    """Return day-ahead prices in EUR per kWh; they may be negative."""
    points = _within(TIMEOUT_S * 5, lambda: list(provider.fetch_prices(begin_s, end_s)))
    return tuple(dict(sorted((p.wall_s, p) for p in points)).values())


def _series(provider: Provider, points: Sequence[IntensityPoint]) -> GridSeries:
    zone = f" of {provider.zone}" if provider.zone else ""
    source = f"{provider.basis} intensity{zone} by {provider.title}"
    return GridSeries(tuple(points), provider.basis, source)


def _sensible(points: Iterable[IntensityPoint], provider: Provider) -> list[IntensityPoint]:
    kept = {p.wall_s: p for p in points}
    for point in kept.values():
        if not 0 <= point.g_co2e_per_kwh <= MAX_G_PER_KWH:
            raise GridUnavailable(
                f"{provider.title}: {point.g_co2e_per_kwh:g} g/kWh is not within 0 and "
                f"{MAX_G_PER_KWH:g}"
            )
    if not kept:
        raise GridUnavailable(f"{provider.title}: no intensities for zone {provider.zone!r}")
    return [kept[s] for s in sorted(kept)]


class _CacheFile:
    """Points of one provider and zone in the user's cache folder; a damaged file is forgotten."""

    def __init__(self, provider: Provider, what: str) -> None:
        other = provider.base != PROVIDERS[provider.name].BASE
        base = f"-{sha256(provider.base.encode()).hexdigest()[:8]}" if other else ""
        zone = re.sub(r"\W", "_", provider.zone) or "all"
        self._path = cache_folder("grid") / f"{provider.name}-{zone}{base}-{what}.json"

    def read(self) -> tuple[tuple[IntensityPoint, ...], float]:
        """Return the points in order of time, and when the provider was last asked."""
        try:
            data = json.loads(self._path.read_text("utf-8"))
            points = sorted(IntensityPoint(float(s), float(g)) for s, g in data["points"])
            return tuple(points), float(data["asked_wall_s"])
        except (OSError, ValueError, KeyError, TypeError):
            return (), 0.0

    def merge(
        self, old: Sequence[IntensityPoint], new: Sequence[IntensityPoint]
    ) -> tuple[IntensityPoint, ...]:
        """Add new points, drop those older than two weeks before the newest, and write them."""
        merged = {p.wall_s: p for p in (*old, *new)}
        horizon_s = max(merged) - KEEP_S
        points = tuple(merged[s] for s in sorted(merged) if s >= horizon_s)
        with suppress(OSError):  # without a writable cache the provider is asked again
            self._path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_json(
                self._path, {"asked_wall_s": time.time(), "points": [list(p) for p in points]}
            )
        return points


def _within(timeout_s: float, call: Callable[[], T]) -> T:
    """Return the result of `call`, in a thread of its own: a socket's timeout bounds neither the
    look-up of a name nor a reply that trickles in.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(call())
        except (GridUnavailable, ConfigError) as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="wattloop-grid", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if answers:
        return answers[0]
    if errors:
        raise errors[0]
    raise GridUnavailable(f"no answer within {timeout_s:g} s")


def _wall_s(text: str | None) -> float:
    moment = datetime.fromisoformat(str(text))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _iso(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _minute(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _compact(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y%m%d%H00")
