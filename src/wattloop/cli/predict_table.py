"""How a sweep or comparison of predictions looks."""

import re
from collections.abc import Sequence

import typer

from wattloop.cli.output import print_table, say
from wattloop.cli.predict_view import all_notes, rate_text
from wattloop.cli.result_view import UNKNOWN, short_energy
from wattloop.core.units import (
    format_bytes,
    format_duration,
    format_energy,
    format_mass,
    format_power,
)
from wattloop.predict.comparison import Axis, Point, best_points, unsure_gpus
from wattloop.predict.forecast import Forecast
from wattloop.predict.prediction import Interval
from wattloop.predict.run_total import RunTotal

__all__ = ["print_points"]

UNITS = {"cap": " W", "clock": " MHz"}


def print_points(points: Sequence[Point], axes: Sequence[Axis]) -> None:
    """A row per point, and which is best."""
    rows = [
        (*_settings(point, axes), *_cells(point.forecast), *_run_cells(point.forecast.run))
        for point in points
    ]
    headers = (
        *(axis.name for axis in axes),
        "step",
        "± step",
        "throughput",
        "power per GPU",
        "GPU energy per step",
        "per sample",
        "± energy",
        "memory",
        "fits",
        "regime",
        "constants",
        *_run_headers(points[0].forecast.run),
    )
    first = points[0].forecast
    kind = "training" if first.workload.training else "inference"
    title = f"{first.workload.name}, {kind}, predicted by {first.estimator}; energy of the GPUs"
    print_table(
        headers,
        rows,
        title=title,
        spare=("GPU energy per step", "constants", "memory", "± step", "± energy"),
    )
    _print_best(points)
    _print_remarks(points)


def _settings(point: Point, axes: Sequence[Axis]) -> tuple[str, ...]:
    return tuple(
        point.forecast.placement.gpu.name
        if axis.name == "gpu"
        else f"{point.setting[axis.name]:g}{UNITS[axis.name]}"
        if axis.name in UNITS
        else str(point.setting[axis.name])
        for axis in axes
    )


def _cells(forecast: Forecast) -> tuple[str, ...]:
    predicted = forecast.prediction
    memory = forecast.memory
    fits = "yes" if memory.fits else f"no, {format_bytes(memory.short_bytes)} short"
    return (
        format_duration(predicted.step_s),
        _spread(predicted.step_interval, predicted.step_s),
        rate_text(forecast),
        format_power(predicted.power_w),
        short_energy(predicted.energy_j),
        short_energy(forecast.energy_j_per_sample),
        _spread(predicted.energy_interval, predicted.energy_j),
        format_bytes(memory.needed_bytes),
        fits,
        predicted.regime.value,
        "calibrated" if forecast.is_calibrated else "spec-only",
    )


def _run_headers(run: RunTotal | None) -> tuple[str, ...]:
    if run is None:
        return ()
    cost = () if run.cost is None else (f"run cost ({run.currency})",)
    carbon = () if run.carbon_g is None else ("run CO2e",)
    return ("run time", f"run energy ({run.scope})", *cost, *carbon)


def _run_cells(run: RunTotal | None) -> tuple[str, ...]:
    if run is None:
        return ()
    cost = () if run.cost is None else (f"{run.cost.value:,.2f}",)
    carbon = () if run.carbon_g is None else (format_mass(run.carbon_g.value),)
    time, energy = format_duration(run.time_s.value), format_energy(run.energy_j.value)
    return (time, energy, *cost, *carbon)


def _spread(interval: Interval | None, value: float) -> str:
    """Half of the 90% interval in percent of the value."""
    return UNKNOWN if interval is None else f"{(interval.high - interval.low) / 2 / value:.0%}"


def _print_best(points: Sequence[Point]) -> None:
    best = best_points(points)
    if not best:
        typer.echo("none of them fits into memory")
        return
    for why, point in best.items():
        typer.echo(f"{why}: {point.label}")
    others = unsure_gpus(points)
    if others:
        own = best["least energy per sample"].forecast.placement.gpu.name
        say(
            f"note: energy intervals of {own} and {', '.join(others)} overlap: which of them needs "
            "least is not sure"
        )


def _print_remarks(points: Sequence[Point]) -> None:
    varied = {str(name) for name in points[0].setting}
    notes: dict[str, str] = {}
    for note in (note for point in points for note in all_notes(point.forecast)):
        if note.partition(":")[0] not in varied:
            notes.setdefault(re.sub(r"\d+", "", note), note)  # not once more for every size
    for note in notes.values():
        say(f"note: {note}")
    for warning in dict.fromkeys(w for p in points for w in p.forecast.all_warnings):
        if not warning.startswith("memory:"):  # the table says so
            say(f"warning: {warning}")
