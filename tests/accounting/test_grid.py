"""Promises of docs/carbon.md: four providers in their own formats, no repeated request, no token
shown.

The providers are a real HTTP server that checks the requests and answers in the shapes that their
documentation publishes.
"""

import base64
import itertools
import json
import random
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from wattloop.accounting import grid
from wattloop.accounting.carbon import (
    IntensityKind,
    IntensityPoint,
    find_intensity,
    mean_intensity,
)
from wattloop.accounting.grid import (
    GridBasis,
    best_start,
    provider_from,
    read_forecast,
    read_history,
    read_prices,
)
from wattloop.core.errors import ConfigError, GridUnavailable
from wattloop.core.settings import Settings

TOKEN = "a-secret-token-of-the-user"
HOUR = 3_600.0


def stamp(wall_s: float, layout: str = "%Y-%m-%dT%H:%M:%S.000Z") -> str:
    return time.strftime(layout, time.gmtime(wall_s))


class Grid:
    """A stand-in provider that answers with hourly intensities around now."""

    def __init__(self) -> None:
        self.now_s = float(int(time.time()) // 3_600 * 3_600)
        self.value = lambda wall_s: 300.0 + 10 * ((wall_s - self.now_s) / HOUR)
        self.requests: list[str] = []
        self.queries: list[str] = []
        self.reply: bytes | None = None
        self.status = 200
        self.moved_to = ""
        self.seen: list[dict[str, str]] = []

    def hours(self, first: int, last: int) -> list[float]:
        return [self.now_s + hour * HOUR for hour in range(first, last + 1)]

    def answer(self, path: str, query: dict[str, list[str]], headers) -> tuple[int, bytes]:  # noqa: PLR0911 - one per address
        self.requests.append(path)
        self.queries.append(str(query))
        if self.reply is not None or self.status != 200:
            return self.status, self.reply or b""
        if path.startswith("/carbon-intensity/"):
            if headers["auth-token"] != TOKEN or query.get("zone") != ["DE"]:
                return 401, b"{}"
            row = lambda s: {"zone": "DE", "carbonIntensity": self.value(s), "datetime": stamp(s)}  # noqa: E731 - a table
            what = path.rsplit("/", 1)[1]
            if what == "latest":
                return 200, json.dumps(row(self.now_s)).encode()
            first, last = (-24, -1) if what == "history" else (1, 24)
            rows = [row(s) for s in self.hours(first, last)]
            return 200, json.dumps({"zone": "DE", what: rows}).encode()
        if path == "/login":
            user = base64.b64decode(headers["Authorization"].split()[1]).decode()
            return (200, b'{"token": "session"}') if user == TOKEN else (401, b"{}")
        if path.startswith("/v3/"):
            if headers["Authorization"] != "Bearer session" or query["region"] != ["CAISO_NORTH"]:
                return 403, b"{}"
            first, last = (-2, 0) if path.endswith("historical") else (0, 24)
            rows = [{"point_time": stamp(s), "value": 1_000.0} for s in self.hours(first, last)]
            meta = {"units": "lbs_co2_per_mwh", "signal_type": "co2_moer"}
            return 200, json.dumps({"data": rows, "meta": meta}).encode()
        if path.startswith(("/intensity/", "/regional/")):
            first, last = (0, 47) if path.endswith("fw24h") or "fw24h" in path else (-6, 1)
            rows = [
                {
                    "from": stamp(self.now_s + k * 1_800, "%Y-%m-%dT%H:%MZ"),
                    "intensity": {"forecast": 200, "actual": 190 if k < 0 else None},
                }
                for k in range(first, last + 1)
            ]
            data = {"data": rows} if path.startswith("/regional") else rows
            return 200, json.dumps({"data": data}).encode()
        if path == "/api":
            if headers["SECURITY_TOKEN"] != TOKEN or "securityToken" in query:
                return 401, b"<x/>"
            return 200, self.xml(query["documentType"][0])
        return 404, b""

    def xml(self, kind: str) -> bytes:
        begin = stamp(self.now_s - 2 * HOUR, "%Y-%m-%dT%H:%MZ")
        end = stamp(self.now_s + HOUR, "%Y-%m-%dT%H:%MZ")

        def series(psr: str, field: str, values: dict[int, float]) -> str:
            points = "".join(
                f"<Point><position>{k}</position><{field}>{v}</{field}></Point>"
                for k, v in values.items()
            )
            return (
                f"<TimeSeries><MktPSRType><psrType>{psr}</psrType></MktPSRType><Period>"
                f"<timeInterval><start>{begin}</start><end>{end}</end></timeInterval>"
                f"<resolution>PT60M</resolution>{points}</Period></TimeSeries>"
            )

        if kind == "A44":
            body = series("", "price.amount", {1: 80.0, 3: -5.0})
        else:
            # half nuclear, half gas; the second hour repeats the first and is left out
            body = series("B14", "quantity", {1: 500, 3: 1_000}) + series(
                "B04", "quantity", {1: 500}
            )
        return f'<GL_MarketDocument xmlns="urn:x">{body}</GL_MarketDocument>'.encode()


@pytest.fixture
def world(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("WATTLOOP_CARBON_TOKEN", TOKEN)
    monkeypatch.setattr(grid, "TIMEOUT_S", 60.0)
    state = Grid()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            parts = urlsplit(self.path)
            if state.moved_to and not parts.path.startswith(state.moved_to):
                self.send_response(302)
                self.send_header("Location", f"{state.base}{state.moved_to}{self.path}")
                self.end_headers()
                return
            state.seen.append(dict(self.headers))
            status, body = state.answer(parts.path, parse_qs(parts.query), self.headers)
            self.send_response(status)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    state.base = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    server.server_close()


def named(world: Grid, name: str):
    return provider_from(f"{name}@{world.base}")


def test_electricity_maps_by_its_header_with_history_and_forecast(world):
    provider = named(world, "electricity-maps:DE")
    series = read_history(provider, world.now_s - 2 * HOUR, world.now_s + 60, 60.0)
    assert series.basis is GridBasis.AVERAGE
    assert series.points[-1] == IntensityPoint(world.now_s, 300.0)
    assert len(series.points) == 25
    ahead = read_forecast(provider, 60.0)
    assert ahead.points[0] == IntensityPoint(world.now_s, 300.0)
    assert ahead.points[-1] == IntensityPoint(world.now_s + 24 * HOUR, 540.0)


def test_watttime_is_marginal_and_in_grams(world):
    """1,000 lb/MWh are 453.6 g/kWh, and the source says that it is marginal."""
    series = read_forecast(named(world, "watttime:CAISO_NORTH"), 60.0)
    assert series.points[0].g_co2e_per_kwh == pytest.approx(453.59237)
    assert series.basis is GridBasis.MARGINAL
    assert series.source == "marginal intensity of CAISO_NORTH by WattTime"


@pytest.mark.parametrize("name", ["uk", "uk:13"])
def test_great_britain_needs_no_token_and_prefers_the_actual_value(world, monkeypatch, name):
    monkeypatch.delenv("WATTLOOP_CARBON_TOKEN")
    provider = named(world, name)
    history = read_history(provider, world.now_s - HOUR, world.now_s, 60.0)
    assert {p.g_co2e_per_kwh for p in history.points if p.wall_s < world.now_s} == {190.0}
    assert read_forecast(provider, 60.0).points[0].g_co2e_per_kwh == 200.0
    assert ("/regionid/13" in world.requests[0]) is (name == "uk:13")


def test_entsoe_weighs_generation_and_fills_repeated_hours(world):
    provider = named(world, "entsoe:FR")
    series = read_history(provider, world.now_s - 2 * HOUR, world.now_s, 60.0)
    # (12 + 490) / 2, twice; then 1,000 MW nuclear and 500 MW gas
    expected = [251.0, 251.0, pytest.approx((12 * 1_000 + 490 * 500) / 1_500)]
    assert [p.g_co2e_per_kwh for p in series.points] == expected
    prices = read_prices(provider, world.now_s - 2 * HOUR, world.now_s)
    assert [p.g_co2e_per_kwh for p in prices] == pytest.approx([0.08, 0.08, -0.005])
    with pytest.raises(GridUnavailable, match="no forecast"):
        read_forecast(provider, 60.0)
    with pytest.raises(ConfigError, match="unknown area"):
        read_history(named(world, "entsoe:Mars"), world.now_s - HOUR, world.now_s, 60.0)


def test_a_second_run_in_the_same_hour_asks_nothing(world):
    provider = named(world, "electricity-maps:DE")
    span = (world.now_s - 3 * HOUR, world.now_s - HOUR)
    first = read_history(provider, *span, 60.0)
    asked = len(world.requests)
    assert read_history(provider, *span, 60.0) == first
    read_forecast(provider, 60.0)
    after = len(world.requests)
    read_forecast(provider, 60.0)
    assert (asked, len(world.requests)) == (2, after)


def test_what_was_fetched_serves_while_the_provider_is_away(world):
    provider = named(world, "electricity-maps:DE")
    ahead = read_forecast(provider, 60.0)
    read_history(provider, world.now_s - 2 * HOUR, world.now_s, 60.0)
    world.status = 503
    assert read_history(provider, world.now_s - 2 * HOUR, world.now_s - HOUR, 60.0).points
    assert read_forecast(provider, 60.0) == ahead
    with pytest.raises(GridUnavailable, match="HTTP 503"):
        read_history(named(world, "uk"), world.now_s - HOUR, world.now_s, 60.0)


@pytest.mark.parametrize("name", ["electricity-maps:DE", "watttime:CAISO_NORTH", "uk", "entsoe:FR"])
@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"nonsense",
        b"[" * 50_000,
        b"[]",
        b"null",
        b'{"history": 3, "data": "x", "token": 1}',
        b'{"history": [{"datetime": "soon", "carbonIntensity": 3}], "data": [7], "token": "t"}',
        b'{"history": [{"datetime": "2026-01-01T00:00Z", "carbonIntensity": 1e9}], "data": []}',
        b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>',
        b"<x xmlns='u'><TimeSeries><Period><timeInterval><start>2026-01-01T00:00Z</start>"
        b"<end>3026-01-01T00:00Z</end></timeInterval><resolution>PT1M</resolution></Period>"
        b"</TimeSeries></x>",
        b'{"token": "t", "meta": [1], "data": []}',
        b'{"history": [{"datetime": "2026-01-01T00:00Z", "carbonIntensity": 1%s}], "token": "t", '
        b'"data": [{"from": "2026-01-01T00:00Z", "intensity": {"forecast": 1%s}, '
        b'"point_time": "2026-01-01T00:00Z", "value": 1%s}]}' % ((b"0" * 400,) * 3),
        b"x" * (grid.MAX_REPLY_BYTES + 10),
    ],
)
def test_nonsense_is_refused_with_a_reason_and_no_token(world, name, reply):
    world.reply = reply
    with pytest.raises(GridUnavailable) as refused:
        read_history(named(world, name), world.now_s - HOUR, world.now_s, 60.0)
    assert TOKEN not in str(refused.value)
    assert "no answer within" not in str(refused.value)


def test_a_refused_token_is_named_by_its_variable_only(world, monkeypatch):
    monkeypatch.setenv("WATTLOOP_CARBON_TOKEN", "wrong-and-secret")
    for name in ("electricity-maps:DE", "watttime:CAISO_NORTH", "entsoe:FR"):
        with pytest.raises(GridUnavailable, match="check WATTLOOP_CARBON_TOKEN") as refused:
            read_history(named(world, name), world.now_s - HOUR, world.now_s, 60.0)
        assert "wrong-and-secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["electricity-maps:DE", "watttime:CAISO_NORTH", "entsoe:FR"])
def test_no_url_has_a_token(world, name):
    """Promise: the logs of proxies and servers, which have URLs, never have a user's token."""
    read_history(named(world, name), world.now_s - 2 * HOUR, world.now_s, 60.0)
    assert world.requests
    assert TOKEN not in "".join(world.requests + world.queries)


@pytest.mark.parametrize("name", ["electricity-maps:DE", "entsoe:FR"])
def test_a_token_does_not_follow_a_redirection(world, name):
    """Promise: a redirection to another host does not carry the user's token."""
    world.moved_to = "/elsewhere"
    with pytest.raises(GridUnavailable):
        read_history(named(world, name), world.now_s - 2 * HOUR, world.now_s, 60.0)
    assert world.seen
    assert not [headers for headers in world.seen if TOKEN in str(headers)]


def test_true_is_not_an_intensity(world):
    row = {"datetime": stamp(world.now_s + HOUR), "carbonIntensity": True}
    latest = {"datetime": stamp(world.now_s), "carbonIntensity": 300}
    world.reply = json.dumps({**latest, "forecast": [row]}).encode()
    with pytest.raises(GridUnavailable, match="cannot read the entry"):
        read_forecast(named(world, "electricity-maps:DE"), 60.0)


def test_the_token_may_be_in_a_private_file(world, monkeypatch, tmp_path):
    monkeypatch.delenv("WATTLOOP_CARBON_TOKEN")
    with pytest.raises(ConfigError, match="needs a token"):
        named(world, "electricity-maps:DE")
    path = tmp_path / "config" / "wattloop" / "carbon-token"
    path.parent.mkdir(parents=True)
    path.write_text(TOKEN + "\n")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        named(world, "electricity-maps:DE")
    path.chmod(0o600)
    assert named(world, "electricity-maps:DE").token == TOKEN


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("electricitymap:DE", "use electricity-maps, watttime, uk, entsoe"),
        ("watttime", "add the zone"),
        ("uk@ftp://x", "https://"),
    ],
)
def test_a_wrong_name_says_what_would_work(world, text, says):
    with pytest.raises(ConfigError, match=says):
        provider_from(text)


def test_a_run_gets_the_intensity_of_its_hours(world):
    settings = Settings(carbon_provider=f"electricity-maps:DE@{world.base}")
    begin_s = world.now_s - 2 * HOUR
    found = find_intensity(settings, begin_s, begin_s + 2 * HOUR).found
    assert found.kind is IntensityKind.LIVE
    assert found.g_co2e_per_kwh == pytest.approx((280 + 290) / 2)
    assert found.source == "average intensity of DE by Electricity Maps"


def test_without_the_provider_the_next_source_serves_and_says_so(world):
    world.status = 500
    settings = Settings(carbon_provider=f"uk@{world.base}", zone="FRA")
    search = find_intensity(settings, world.now_s, world.now_s + 10)
    assert search.found.kind is IntensityKind.ANNUAL
    assert "HTTP 500" in search.notes[0]


def test_the_best_start_is_where_the_mean_is_least():
    values = [300, 300, 100, 200, 50, 300, 300]
    points = [IntensityPoint(hour * HOUR, v) for hour, v in enumerate(values)]
    advice = best_start(points, 2 * HOUR, 0.0, 24 * HOUR)
    assert (advice.start_wall_s, advice.g_co2e_per_kwh) == (3 * HOUR, 125.0)
    assert advice.now_g_co2e_per_kwh == 300.0
    # half an hour fits into the best hour, from its begin
    assert best_start(points, HOUR / 2, 0.0, 24 * HOUR).start_wall_s == 4 * HOUR
    # a job that may wait for an hour only
    assert best_start(points, HOUR, 0.0, HOUR).start_wall_s == 0.0
    with pytest.raises(GridUnavailable, match="shorter --lasts"):
        best_start(points, 9 * HOUR, 0.0, 24 * HOUR)


@pytest.mark.parametrize("lasts_s", [60.0, 5_000.0, 30_000.0])
@pytest.mark.parametrize("now_s", [0.0, 100.0, 50_000.0, 85_000.0])
def test_no_start_of_a_long_series_is_better_than_the_advised_one(lasts_s, now_s):
    """Of all starts within the time that the series covers, each 100 s."""
    dice = random.Random(1)
    steps_s = [dice.choice((300.0, 900.0)) for _ in range(250)]
    points = [
        IntensityPoint(begin_s, dice.uniform(50, 500))
        for begin_s in itertools.accumulate(steps_s, initial=0.0)
    ]
    advice = best_start(points, lasts_s, now_s, 40_000.0)
    assert now_s <= advice.start_wall_s <= now_s + 40_000
    means = [
        found[0]
        for start_s in np.arange(now_s, now_s + 40_000, 100.0)
        if (found := mean_intensity(points, start_s, start_s + lasts_s)) and found[1] > 0.999
    ]
    assert advice.g_co2e_per_kwh <= min(means) * (1 + 1e-9)
    assert advice.now_g_co2e_per_kwh == pytest.approx(means[0])


def test_the_country_is_guessed_only_when_asked_and_said(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Paris")
    assert find_intensity(Settings()).found is None
    search = find_intensity(Settings(zone="guess"))
    if search.found is None:  # a system without its list of time zones
        assert "names no country" in search.reason
    else:
        assert search.found.zone == "FRA"
        assert "guessed from the time zone Europe/Paris" in search.found.source
    monkeypatch.setenv("TZ", "UTC")
    assert "names no country" in find_intensity(Settings(zone="guess")).reason
