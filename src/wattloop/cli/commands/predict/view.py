"""Terminal output of predictions: one, or a table of many."""

import re
from collections.abc import Callable, Sequence

import typer

from wattloop.cli.output import UNKNOWN, print_rows, print_table, say
from wattloop.core.files import user_path
from wattloop.core.units import (
    format_bytes,
    format_duration,
    format_energy,
    format_mass,
    format_money,
    format_power,
    format_share,
    short_energy,
)
from wattloop.predict.comparison import Axis, ComparisonPoint, best_points, unsure_gpus
from wattloop.predict.forecast import Forecast
from wattloop.predict.prediction import Interval
from wattloop.predict.run_total import JobOnGpu, PredictedAmount, RunTotal, interval_text, job_table

SMALL_SHARE = 0.01
"""Terms below it are not listed: they are noise to a reader."""


def print_forecast(forecast: Forecast, *, top: int) -> None:
    predicted = forecast.prediction
    gpu_memory = format_bytes(forecast.memory.available_bytes)
    kind = "training step" if forecast.workload.training else "forward pass"
    rows = [
        (kind, format_duration(predicted.step_s), _range(predicted.step_interval, format_duration)),
        ("throughput", rate_text(forecast), _throughput_range(forecast)),
        (
            "power per GPU",
            format_power(predicted.power_w),
            _range(predicted.power_interval, format_power),
        ),
        (
            "GPU energy per step",
            format_energy(predicted.energy_j),
            _range(predicted.energy_interval, format_energy),
        ),
        (
            "memory per GPU",
            format_bytes(forecast.memory.needed_bytes),
            f"fits into {gpu_memory}" if forecast.fits else f"does not fit into {gpu_memory}",
        ),
    ]
    if forecast.compile_s is not None:
        low, high = (format_duration(share * forecast.compile_s) for share in (0.5, 2))
        rows.append(("compiling, once", format_duration(forecast.compile_s), f"{low} to {high}"))
    if forecast.node is not None:
        node = forecast.node
        rows.append(
            ("node power", format_power(node.power_w), _range(node.power_interval, format_power))
        )
    print_rows(("", "predicted", "90% interval"), rows, title=title_of(forecast))
    if forecast.run is not None:
        typer.echo()
        print_run(forecast.run)
    typer.echo(f"\n{predicted.regime.value}: {_regime(forecast)}")
    _print_terms(forecast)
    _print_operations(forecast, top)
    for note in all_notes(forecast):
        say(f"note: {note}")
    for warning in forecast.all_warnings:
        say(f"warning: {warning}")


def print_run(run: RunTotal) -> None:
    whose = "GPU energy" if run.scope == "gpu" else "node energy"
    rows = [
        ("time", *_amount(run.time_s, format_duration)),
        (whose, *_amount(run.energy_j, format_energy)),
    ]
    if run.pue != 1:
        rows.append((f"with the room, PUE {run.pue:g}", *_amount(run.facility_j, format_energy)))
    if run.cost is not None:
        name = "cost" if run.gpu_cost is None else "electricity"
        rows.append(
            (name, *_amount(run.cost, lambda value: f"{format_money(value)} {run.currency}"))
        )
    if run.gpu_cost is not None:
        text = _amount(run.gpu_cost, lambda value: f"{format_money(value)} {run.currency}")
        rows.append(("hours of the GPUs", *text))
        if run.cost is not None and run.money is not None:
            rows.append(("cost, both", f"{format_money(run.money)} {run.currency}", ""))
    if run.carbon_g is not None:
        rows.append(
            ("carbon", *_amount(run.carbon_g, lambda mass_g: f"{format_mass(mass_g)} CO2e"))
        )
    title = f"A run of {run.steps:,} step{'s' * (run.steps != 1)}"
    print_rows(("", "predicted", "90% interval"), rows, title=title)


def print_jobs(found: Sequence[JobOnGpu]) -> None:
    """Print a measured run next to what it would be on each other GPU."""
    for number, one in enumerate(found):
        if number:
            typer.echo()
        print_table(job_table(one))
    for note in dict.fromkeys(note for one in found for note in (one.source, *one.notes)):
        say(f"note: {note}")


def all_notes(forecast: Forecast) -> list[str]:
    """Return the assumptions about model, node and run."""
    notes = [*forecast.notes]
    if forecast.node is not None:
        notes += [f"node: {assumed}" for assumed in forecast.node.assumptions]
    run = forecast.run
    if run is not None:
        notes += run.notes
        notes += [f"carbon intensity: {run.intensity.source}"] if run.intensity else []
        named = "no cost" if run.gpu_cost is None else "no cost of electricity"
        notes += [f"{named}: {run.cost_reason}"] if run.cost_reason else []
        notes += [f"no carbon: {run.carbon_reason}"] if run.carbon_reason else []
    return notes


def title_of(forecast: Forecast) -> str:
    work, place = forecast.workload, forecast.placement
    how = [f"batch {work.batch}"]
    if work.accumulate > 1:
        how.append(f"x {work.accumulate} passes")
    how.append(work.precision)
    how.append(work.optimizer if work.training else "inference")
    if work.compile_mode:
        how.append(f"compiled ({work.compile_mode})")
    setting = ""
    if place.cap_w is not None:
        setting += f" capped at {place.cap_w:g} W"
    if place.clock_mhz is not None:
        setting += f" locked at {place.clock_mhz:g} MHz"
    where = f"{place.gpus} x {place.gpu.product}{setting}"
    return f"{work.name}, {', '.join(how)}, on {where}: predicted by {forecast.prediction.model}"


def rate_text(forecast: Forecast) -> str:
    return f"{_digits(forecast.throughput_samples_s)} samples/s"


def _range(interval: Interval | None, format_: Callable[[float], str]) -> str:
    return UNKNOWN if interval is None else interval_text(interval.low, interval.high, format_)


def _amount(amount: PredictedAmount, format_: Callable[[float], str]) -> tuple[str, str]:
    return format_(amount.value), _range(amount.interval, format_)


def _throughput_range(forecast: Forecast) -> str:
    interval = forecast.prediction.step_interval
    if interval is None:
        return UNKNOWN
    low, high = forecast.samples / interval.high, forecast.samples / interval.low
    return f"{_digits(low)} to {_digits(high)} samples/s"


def _regime(forecast: Forecast) -> str:
    predicted = forecast.prediction
    parts = []
    if predicted.gpu_s is not None:
        parts.append(f"the GPU computes {format_duration(predicted.gpu_s)} of a step")
    if predicted.host_s is not None:
        parts.append(f"the host needs {format_duration(predicted.host_s)} to dispatch it")
    if predicted.clock_mhz is not None:
        parts.append(f"at {predicted.clock_mhz:.0f} MHz")
    return ", ".join(parts)


def _print_terms(forecast: Forecast) -> None:
    step_s = forecast.prediction.step_s
    terms = [
        (name, format_duration(seconds), format_share(seconds / step_s))
        for name, seconds in forecast.prediction.terms_s.items()
        if seconds >= SMALL_SHARE * step_s
    ]
    if terms:
        typer.echo()
        print_rows(("part of the step", "time", "share"), terms)


def _print_operations(forecast: Forecast, top: int) -> None:
    rows = [
        (name, format_duration(s), format_share(s / forecast.prediction.step_s))
        for name, s in list(forecast.top_operations_s.items())[:top]
    ]
    if rows:
        typer.echo()
        print_rows(("operation that takes longest on the GPU", "time", "of the step"), rows)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


UNITS = {"cap": " W", "clock": " MHz"}


def print_points(points: Sequence[ComparisonPoint], axes: Sequence[Axis]) -> None:
    priced = any(point.forecast.run and point.forecast.run.gpu_cost for point in points)
    rows = [
        (*_settings(point, axes), *_cells(point.forecast), *_run_cells(point.forecast.run, priced))
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
        *_run_headers(points[0].forecast.run, priced),
    )
    first = points[0].forecast
    kind = "training" if first.workload.training else "inference"
    title = f"{first.workload.name}, {kind}, predicted by {first.estimator}; energy of the GPUs"
    print_rows(
        headers,
        rows,
        title=title,
        spare=("GPU energy per step", "constants", "memory", "± step", "± energy"),
    )
    _print_best(points)
    _print_remarks(points)


def _settings(point: ComparisonPoint, axes: Sequence[Axis]) -> tuple[str, ...]:
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


def _run_headers(run: RunTotal | None, priced: bool) -> tuple[str, ...]:
    if run is None:
        return ()
    priced = priced or run.cost is not None
    cost = (f"run cost ({run.currency})",) if priced else ()
    carbon = () if run.carbon_g is None else ("run CO2e",)
    return ("run time", f"run energy ({run.scope})", *cost, *carbon)


def _run_cells(run: RunTotal | None, priced: bool) -> tuple[str, ...]:
    """Return the run's columns; a GPU without a price has no cost next to one that has."""
    if run is None:
        return ()
    money = run.money if not priced or run.gpu_cost is not None else None
    cost = (UNKNOWN if money is None else format_money(money),) if priced or run.cost else ()
    carbon = () if run.carbon_g is None else (format_mass(run.carbon_g.value),)
    time, energy = format_duration(run.time_s.value), format_energy(run.energy_j.value)
    return (time, energy, *cost, *carbon)


def _spread(interval: Interval | None, value: float) -> str:
    """Return half of the 90% interval in percent of the value."""
    return UNKNOWN if interval is None else f"{(interval.high - interval.low) / 2 / value:.0%}"


def _print_best(points: Sequence[ComparisonPoint]) -> None:
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


def _print_remarks(points: Sequence[ComparisonPoint]) -> None:
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


def keep_workload(forecast: Forecast, place: str | None) -> None:
    if place is None:
        return
    from wattloop.predict.workload.files import save_workload

    save_workload(forecast.workload, user_path(place))
    say(f"wattloop: workload in {place}; predict from it with --model {place}")
