"""`wattloop analyze quotient`, `top`, `metrics`, `pareto` and `matrix`: which runs are good."""

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any

import typer

from wattloop.cli.analyze_request import Request, listed, with_request
from wattloop.cli.analyze_source import read_source
from wattloop.cli.analyze_view import check_targets, show
from wattloop.core.errors import ConfigError
from wattloop.core.units import J_PER_WH

__all__ = [
    "matrix_command",
    "metrics_command",
    "pareto_command",
    "quotient_command",
    "top_command",
]

Quality = Annotated[
    str | None, typer.Option("--quality", metavar="COLUMN", help="Accuracy (default: found).")
]
Energy = Annotated[
    str | None, typer.Option("--energy", metavar="COLUMN", help="Energy (default: found).")
]
Epochs = Annotated[
    str | None,
    typer.Option("--epochs", metavar="COLUMN|N", help="Epochs of a run (default: found)."),
]
Variant = Annotated[
    str, typer.Option("--variant", help="epoch (equation 1), validation, total or gain.")
]
Chance = Annotated[
    float | None, typer.Option("--chance", help="Accuracy of guessing, for the variant gain.")
]


@with_request
def quotient_command(
    request: Request,
    variant: Variant = "epoch",
    quality: Quality = None,
    energy: Energy = None,
    epochs: Epochs = None,
    chance: Chance = None,
) -> None:
    """Accuracy per energy of each run, best first (GreenScreen, equation 1)."""
    from wattloop.analyze.quotient import quotients

    check_targets(request)
    table = read_source(request)
    found = quotients(
        table, variant, quality=quality, energy=energy, epochs=_count(epochs), chance=chance
    )

    def figures() -> Mapping[str, Any]:
        from wattloop.report.figures.quotient import quotient_figures

        return quotient_figures(table, found)

    show(request, table, found, figures)


@with_request
def top_command(
    request: Request,
    by: Annotated[
        str | None, typer.Option("--by", help="accuracy, power or quotient (default: all three).")
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", help="Runs per table.")] = 5,
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="Leave out runs below this accuracy.")
    ] = None,
    variant: Variant = "epoch",
    quality: Quality = None,
    energy: Energy = None,
    epochs: Epochs = None,
    chance: Chance = None,
) -> None:
    """The best runs by accuracy, by energy per epoch and by quotient."""
    from wattloop.analyze.quotient import quotients
    from wattloop.analyze.top import top_runs

    check_targets(request)
    table = read_source(request)
    known = quotients(
        table, variant, quality=quality, energy=energy, epochs=_count(epochs), chance=chance
    )
    found = top_runs(table, by, count=count, threshold=threshold, found=known)

    def figures() -> Mapping[str, Any]:
        from wattloop.report.figures.quotient import top_figures

        return top_figures(found)

    show(request, table, found, figures)


@with_request
def metrics_command(
    request: Request,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference", metavar="ROW", help="Its name, or COLUMN=VALUE (default: is_default)."
        ),
    ] = None,
    k: Annotated[str, typer.Option("--k", metavar="LIST", help="Of EDS.")] = "1.5,2",
    energy: Energy = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="COLUMN", help="Time (default: found).")
    ] = None,
) -> None:
    """EDP, ED2P, EDS(k), energy gain and gain minus loss of each run."""
    from wattloop.analyze.row_metrics import row_metrics

    check_targets(request)
    table = read_source(request)
    try:
        numbers = tuple(float(part) for part in listed(k) or ())
    except ValueError:
        raise ConfigError(f"--k {k}: write numbers, such as 1.5,2") from None
    found = row_metrics(table, reference, k=numbers, energy=energy, time=time)

    def figures() -> Mapping[str, Any]:
        from wattloop.report.figures.pareto import metrics_figures

        return metrics_figures(found)

    show(request, table, found, figures)


@with_request
def pareto_command(
    request: Request,
    minimize: Annotated[
        str | None, typer.Option("--minimize", metavar="LIST", help="Columns; less is better.")
    ] = None,
    maximize: Annotated[
        str | None, typer.Option("--maximize", metavar="LIST", help="Columns; more is better.")
    ] = None,
    knee: Annotated[
        str | None, typer.Option("--knee", help="chord (two objectives) or utopia.")
    ] = None,
) -> None:
    """The runs that no other beats in everything, and the knee among them."""
    from wattloop.analyze.pareto import pareto_front

    check_targets(request)
    table = read_source(request)
    less, more = listed(minimize) or [], listed(maximize) or []
    both = [name for name in less if name in more]
    if both:
        raise ConfigError(f"'{both[0]}' cannot be made both small and large")
    objectives = {**dict.fromkeys(less, False), **dict.fromkeys(more, True)}
    found = pareto_front(table, objectives or None, knee=knee)

    def figures() -> Mapping[str, Any]:
        from wattloop.report.figures.pareto import pareto_figures

        return pareto_figures(found)

    show(request, table, found, figures)


@with_request
def matrix_command(
    request: Request,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="COLUMN", help="Sort by it; 'quotient' is known, too."),
    ] = None,
    maximize: Annotated[
        bool | None, typer.Option("--maximize/--minimize", help="Which way is better.")
    ] = None,
) -> None:
    """Which levels were on, runs from worst to best (GreenScreen, figure 7)."""
    from wattloop.analyze.matrix import configuration_matrix
    from wattloop.analyze.quotient import quotients
    from wattloop.analyze.roles import usual_target

    check_targets(request)
    table = read_source(request)
    metric = target or usual_target(table)
    if metric == "quotient" and metric not in table.columns:
        per_wh = quotients(table).per_ws * J_PER_WH
        values = [float(value) if isfinite(value) else None for value in per_wh]
        table = table.with_column("quotient", values)
    found = configuration_matrix(table, metric, more_is_better=maximize)

    def figures() -> Mapping[str, Any]:
        from wattloop.report.figures.matrix import matrix_figures

        return matrix_figures(found)

    show(request, table, found, figures)


def _count(text: str | None) -> str | float | None:
    """A number of epochs, or the name of a column."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
