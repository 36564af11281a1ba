"""`wattloop predict inspect`: the work of one training step by module, kind and phase."""

from collections.abc import Mapping
from typing import Any

import typer

from wattloop.cli.commands.predict.options import SaveWorkload, WorkloadOptions, with_options_named
from wattloop.cli.options import JsonFile, option
from wattloop.cli.output import UNKNOWN, present, print_rows, say
from wattloop.core.records import picked
from wattloop.core.units import format_bytes, format_duration, format_share
from wattloop.predict.breakdown import WorkPart, by_kind, by_module, by_phase, operation_times_s
from wattloop.predict.forecast import Forecast
from wattloop.predict.workload.workload import Workload

MOST_ROWS = 30


def inspect_command(
    *,
    work: WorkloadOptions,
    depth: int = option("--depth", "How deep to go into the modules.", 3, min=1),
    save_workload: SaveWorkload = None,
    json_file: JsonFile = None,
) -> None:
    """Show the workload by module, kind and phase: FLOPs, bytes, and time on a GPU."""
    from wattloop.cli.commands.predict.view import keep_workload
    from wattloop.cli.progress import spinner
    from wattloop.predict.forecaster import Forecaster

    with with_options_named():
        question = work.question()
        forecaster = Forecaster(cache=True)
        with spinner(f"tracing {question.model}"):
            forecast = forecaster.answer(question)
    times = operation_times_s(
        forecaster.estimator(question, forecast.placement.gpu),
        forecast.workload,
        forecast.placement,
    )
    traced = forecast.workload
    views = {
        "module": by_module(traced, times, depth),
        "kind": by_kind(traced, times),
        "phase": by_phase(traced, times),
    }
    keep_workload(forecast, save_workload)
    present(json_file, lambda: _data(forecast, views), lambda: _show(forecast, views))


def _show(forecast: Forecast, views: Mapping[str, Mapping[str, WorkPart]]) -> None:
    work = forecast.workload
    gpu = forecast.placement.gpu.product
    print_rows(("", ""), _facts(work), title=f"{work.name}: one step on one GPU")
    typer.echo()
    for view, parts in views.items():
        total_s = sum(part.gpu_s or 0.0 for part in parts.values())
        rows = [(name, *_cells(part, total_s)) for name, part in parts.items()]
        headers = (view, "calls", "GFLOP", "moved", "written forward", f"time on {gpu}", "share")
        print_rows(headers, rows[:MOST_ROWS], spare=("calls", "written forward"))
        if len(rows) > MOST_ROWS:
            typer.echo(f"... and {len(rows) - MOST_ROWS} more; --json has all of them")
        typer.echo()
    for note in forecast.notes:
        say(f"note: {note}")
    for warning in forecast.all_warnings:
        say(f"warning: {warning}")


def _facts(work: Workload) -> list[tuple[str, str]]:
    kernels = sum(
        op.kernels * op.count * (1 if op.phase == "optimizer" else work.accumulate)
        for op in work.operations
    )
    facts = [
        ("batch", f"{work.batch} samples x {work.accumulate}"),
        ("precision", work.precision),
        ("optimizer", f"{work.optimizer} ({work.optimizer_style})" if work.training else "none"),
        ("torch.compile", work.compile_mode or "none"),
        ("parameters", f"{work.parameters:,}"),
        ("memory of weights", format_bytes(work.parameter_bytes)),
        ("of gradients", format_bytes(work.gradient_bytes)),
        ("of the optimizer", format_bytes(work.optimizer_bytes)),
        ("of activations", format_bytes(work.activation_bytes)),
        ("at most", format_bytes(work.peak_bytes)),
        ("kernels launched", f"{kernels:,}"),
        ("without a cost rule", f"{format_share(work.unruled_share)} of the bytes"),
    ]
    if not work.training:
        facts = [f for f in facts if f[0] not in ("optimizer", "of gradients", "of the optimizer")]
    return facts


def _cells(part: WorkPart, total_s: float) -> tuple[str, ...]:
    known = part.gpu_s is not None
    return (
        f"{part.calls:,}",
        f"{part.flops / 1e9:,.1f}",
        format_bytes(part.bytes_moved),
        format_bytes(part.forward_bytes),
        format_duration(part.gpu_s or 0.0) if known else UNKNOWN,
        format_share((part.gpu_s or 0.0) / total_s) if known and total_s else UNKNOWN,
    )


def _data(forecast: Forecast, views: Mapping[str, Mapping[str, WorkPart]]) -> dict[str, Any]:
    work = forecast.workload
    return {
        "model": work.name,
        "gpu": forecast.placement.gpu.name,
        **picked(work, "precision batch accumulate training parameters parameter_bytes"),
        **picked(work, "gradient_bytes optimizer_bytes activation_bytes peak_bytes unruled_share"),
        **{
            f"by_{view}": {name: part.to_dict() for name, part in parts.items()}
            for view, parts in views.items()
        },
        "notes": list(forecast.notes),
        "warnings": list(forecast.all_warnings),
    }
