"""`wattloop carbon`: carbon intensity of the grid now and tomorrow, and when to start a job."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from wattloop.accounting.carbon import IntensityPoint, find_intensity
from wattloop.accounting.grid import (
    DAY_S,
    GridSeries,
    Provider,
    StartAdvice,
    best_start,
    provider_from,
    read_forecast,
    read_history,
    read_prices,
)
from wattloop.cli.app import Verb
from wattloop.cli.options import Config, JsonFile, file_option, option, option_amount, settings_of
from wattloop.cli.output import check_target, print_rows, say, write_json, write_text
from wattloop.core.errors import ConfigError, GridUnavailable
from wattloop.core.settings import Settings
from wattloop.core.table import records_csv
from wattloop.core.units import Dimension, format_duration

app = Verb()
NO_PROVIDER = (
    "name a provider: WATTLOOP_CARBON_PROVIDER=electricity-maps:DE (or watttime:CAISO_NORTH, uk, "
    "entsoe:FR), or carbon: {provider: ...} in wattloop.yaml; docs/carbon.md has all"
)
MARGINAL = "marginal intensity: what one more kilowatt-hour causes; not comparable with averages"
NEGLIGIBLE = 0.01


@app.command(
    "carbon",
    example="wattloop carbon --lasts 2h --within 24h",
    epilog="In a script: sbatch --begin=$(wattloop carbon --lasts 2h --within 24h --begin) job.sh",
)
def carbon(
    *,
    provider: str | None = option(
        "--provider NAME:ZONE", "Such as electricity-maps:DE or uk (default: the setting)."
    ),
    lasts: str = option("--lasts TIME", "How long the job runs.", "1h"),
    within: str = option("--within TIME", "How late it may start.", "24h"),
    begin: bool = option("--begin", "Print only the best start, for sbatch --begin."),
    past: str | None = option("--past TIME", "Instead of the forecast, the last 7d or 24h."),
    prices: bool = option("--prices", "Day-ahead prices (entsoe) instead of intensities."),
    output: str | None = file_option(
        "--output -o FILE", "Write a CSV for 'carbon: {file: ...}' and for simulate."
    ),
    json_file: JsonFile = None,
    config: Config = None,
) -> None:
    """Show the carbon intensity of the grid for the next day, and the best time to start a job.

    Asks the provider that you name; nothing is asked without one.
    """
    settings = settings_of(config)
    name = provider or settings.carbon_provider
    lasts_s, within_s = seconds_of(lasts, "--lasts"), seconds_of(within, "--within")
    check_target(output, "--output")
    if not name:
        _without_provider(settings, json_file)
        return
    grid = provider_from(name)
    now_s = time.time()
    if prices:
        begin_s = now_s if past is None else now_s - seconds_of(past, "--past")
        points: Sequence[IntensityPoint] = read_prices(grid, begin_s, now_s + DAY_S)
        _show_series(points, "EUR/kWh", "price_per_kwh", output, json_file)
        return
    if past is not None:
        history = read_history(grid, now_s - seconds_of(past, "--past"), now_s, timeout_s=30.0)
        say(f"wattloop: {history.source}")
        _show_series(history.points, "g/kWh", "g_co2e_per_kwh", output, json_file)
        return
    series = read_forecast(grid)
    advice = best_start(series.points, lasts_s, now_s, within_s)
    if begin:
        print(_local(advice.start_wall_s))  # noqa: T201 - for a shell
        return
    if json_file is not None:
        write_json(_as_json(series, advice, grid), json_file)
        return
    say(f"wattloop: {series.source}" + (f" ({MARGINAL})" if series.basis == "marginal" else ""))
    ahead = [p for p in series.points if p.wall_s >= now_s - 3_600]
    _show_series(ahead, "g/kWh", "g_co2e_per_kwh", output, None)
    say(f"wattloop: {format_advice(advice, lasts_s)}")


def format_advice(advice: StartAdvice, lasts_s: float) -> str:
    """Format the best start of a job against starting now."""
    lasted = format_duration(lasts_s)
    if advice.saving < NEGLIGIBLE:
        return f"start now: no later start of a job of {lasted} saves 1% of its carbon"
    return (
        f"start at {_local(advice.start_wall_s)}: {advice.g_co2e_per_kwh:.0f} instead of "
        f"{advice.now_g_co2e_per_kwh:.0f} g/kWh over {lasted}, {advice.saving:.0%} less carbon"
    )


def wait_until_green(settings: Settings, delay: str, lasts: str) -> None:
    """Wait for the start with the least carbon. Without a forecast, say so and start now."""
    within_s, lasts_s = seconds_of(delay, "--when-green"), seconds_of(lasts, "--lasts")
    if not settings.carbon_provider:
        raise ConfigError(f"--when-green needs a forecast; {NO_PROVIDER}")
    grid = provider_from(settings.carbon_provider)
    try:
        series = read_forecast(grid)
        advice = best_start(series.points, lasts_s, time.time(), within_s)
    except GridUnavailable as problem:
        say(f"wattloop: warning: no forecast, starting now: {problem}")
        return
    say(f"wattloop: {format_advice(advice, lasts_s)} ({series.source})")
    while advice.saving >= NEGLIGIBLE and (left_s := advice.start_wall_s - time.time()) > 0:
        time.sleep(min(left_s, 60.0))  # in pieces: a suspended machine wakes up late


def seconds_of(text: str, name: str) -> float:
    """Parse a duration of an option such as `2h`."""
    value = option_amount(text, name, Dimension.TIME, "a time such as 2h or 90min")
    if not 0 < value <= 400 * DAY_S:
        raise ConfigError(f"{name} {text}: give a time above 0, such as 2h")
    return value


def _without_provider(settings: Settings, json_file: str | None) -> None:
    found = find_intensity(settings).found
    if found is None:
        raise ConfigError(f"no zone and no provider are set; {NO_PROVIDER}")
    if json_file is not None:
        write_json({"g_co2e_per_kwh": found.g_co2e_per_kwh, "source": found.source}, json_file)
        return
    print_rows(
        ("zone", "intensity", "source"),
        [(found.zone or "-", f"{found.g_co2e_per_kwh:.0f} g/kWh", found.source)],
    )
    say(f"wattloop: for hours and forecasts {NO_PROVIDER}")


def _show_series(
    points: Sequence[IntensityPoint],
    unit: str,
    column: str,
    output: str | None,
    json_file: str | None,
) -> None:
    points = _hourly(points)
    rows = [{"time": _utc(p.wall_s), column: round(p.g_co2e_per_kwh, 5)} for p in points]
    if output is not None:
        write_text(records_csv(rows, "time", column), output, "--output")
    if json_file is not None:
        write_json(rows, json_file)
    elif output is None:
        highest = max((p.g_co2e_per_kwh for p in points), default=1.0)
        lines = [
            (_local(p.wall_s), _number(p.g_co2e_per_kwh), _bar(p.g_co2e_per_kwh / (highest or 1.0)))
            for p in points
        ]
        print_rows(("from", unit, ""), lines)


def _hourly(points: Sequence[IntensityPoint]) -> list[IntensityPoint]:
    """Return means of whole hours: `simulate` reads hourly files, and people as many lines."""
    hours: dict[int, list[float]] = {}
    for point in points:
        hours.setdefault(int(point.wall_s // 3_600), []).append(point.g_co2e_per_kwh)
    return [IntensityPoint(hour * 3_600.0, fmean(values)) for hour, values in hours.items()]


def _bar(share: float) -> str:
    return "#" * max(0, round(24 * share))


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.4f}"


def _as_json(series: GridSeries, advice: StartAdvice, provider: Provider) -> dict[str, Any]:
    return {
        "provider": provider.name,
        "zone": provider.zone,
        "basis": str(series.basis),
        "source": series.source,
        "points": [{"time": _utc(p.wall_s), "g_co2e_per_kwh": p[1]} for p in series.points],
        "best_start": _utc(advice.start_wall_s),
        "best_g_co2e_per_kwh": advice.g_co2e_per_kwh,
        "now_g_co2e_per_kwh": advice.now_g_co2e_per_kwh,
        "saving": advice.saving,
    }


def _utc(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _local(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s).strftime("%Y-%m-%dT%H:%M")
