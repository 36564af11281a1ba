"""Commands of `wattloop analyze`."""

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any

import typer

from wattloop.cli.commands.analyze.view import (
    Request,
    check_targets,
    listed,
    read_source,
    show,
    with_request,
)
from wattloop.cli.progress import spinner
from wattloop.core.errors import ConfigError
from wattloop.core.units import J_PER_WH

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
    """Show accuracy per energy of each run, best first (GreenScreen, equation 1)."""
    from wattloop.analyze.quotient import quotients

    check_targets(request)
    table = read_source(request)
    found = quotients(
        table, variant, quality=quality, energy=energy, epochs=_count(epochs), chance=chance
    )

    def figures() -> Mapping[str, Any]:
        from wattloop.report.figures.search import quotient_figures

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
    """Show the best runs by accuracy, by energy per epoch and by quotient."""
    from wattloop.analyze.quotient import quotients
    from wattloop.analyze.top import top_runs

    check_targets(request)
    table = read_source(request)
    known = quotients(
        table, variant, quality=quality, energy=energy, epochs=_count(epochs), chance=chance
    )
    found = top_runs(table, by, count=count, threshold=threshold, found=known)

    def figures() -> Mapping[str, Any]:
        from wattloop.report.figures.search import top_figures

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
    """Show EDP, ED2P, EDS(k), energy gain and gain minus loss of each run."""
    from wattloop.analyze.row_metrics import row_metrics

    check_targets(request)
    table = read_source(request)
    try:
        numbers = tuple(float(part) for part in listed(k) or ())
    except ValueError:
        raise ConfigError(f"--k {k}: write numbers, such as 1.5,2") from None
    found = row_metrics(table, reference, k=numbers, energy=energy, time=time)

    def figures() -> Mapping[str, Any]:
        from wattloop.report.figures.search import metrics_figures

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
    """Show the runs that no other run beats in every objective, and the knee among them."""
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
        from wattloop.report.figures.search import pareto_figures

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
    """Show which levels each run had, from worst to best run (GreenScreen, figure 7)."""
    from wattloop.analyze.matrix import configuration_matrix
    from wattloop.analyze.quotient import quotients
    from wattloop.analyze.roles import default_target

    check_targets(request)
    table = read_source(request)
    metric = target or default_target(table)
    if metric == "quotient" and metric not in table.columns:
        per_wh = quotients(table).per_ws * J_PER_WH
        values = [float(value) if isfinite(value) else None for value in per_wh]
        table = table.with_column("quotient", values)
    found = configuration_matrix(table, metric, more_is_better=maximize)

    def figures() -> Mapping[str, Any]:
        from wattloop.report.figures.search import matrix_figures

        return matrix_figures(found)

    show(request, table, found, figures)


def _count(text: str | None) -> str | float | None:
    """Return a number of epochs, or the name of a column."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


Target = Annotated[
    str | None,
    typer.Option("--target", metavar="COLUMN", help="What to explain (default: energy)."),
]


@with_request
def ols_command(
    request: Request,
    target: Target = None,
    numeric: Annotated[
        str | None,
        typer.Option("--numeric", metavar="LIST", help="Keep these as numbers, not as levels."),
    ] = None,
) -> None:
    """Fit a regression over levels: coefficient, error, t, p and interval of every level."""
    from wattloop.analyze.ols import regression

    check_targets(request)
    table = read_source(request)
    with spinner("regression"):
        found = regression(table, target, numeric=listed(numeric) or ())

    def figures() -> Mapping[str, Any]:
        from wattloop.report.figures.statistics import regression_figures

        return regression_figures(found)

    show(request, table, found, figures)


@with_request
def correlation_command(
    request: Request,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="COLUMN", help="Only with this column (default: all)."),
    ] = None,
) -> None:
    """Show Pearson's r and Spearman's rho of every pair of columns, with p."""
    from wattloop.analyze.correlation import correlations

    check_targets(request)
    table = read_source(request)
    with spinner("correlation"):
        found = correlations(table, target)

    def figures() -> Mapping[str, Any]:
        from wattloop.report.figures.statistics import correlation_figures

        return correlation_figures(found)

    show(request, table, found, figures)


@with_request
def clusters_command(
    request: Request,
    strategy: Annotated[str, typer.Option("--strategy", help="results, all or hybrid.")] = "hybrid",
    k: Annotated[
        int | None, typer.Option("--k", help="Number of clusters (default: by silhouette).")
    ] = None,
    dimensions: Annotated[
        int, typer.Option("--dimensions", help="2 or 3, of the figure in .svg and .png.")
    ] = 2,
    assign: Annotated[
        str | None,
        typer.Option("--assign", metavar="FILE", help="Write each run with its cluster as CSV."),
    ] = None,
) -> None:
    """Group runs by K-Means; show means of the groups and parameters of little influence."""
    from wattloop.analyze.clusters import clusters
    from wattloop.cli.commands.analyze.view import write_assigned
    from wattloop.cli.output import check_target

    check_targets(request)
    check_target(assign, "--assign")
    if dimensions not in (2, 3):
        raise ConfigError(f"--dimensions {dimensions}: give 2 or 3")
    table = read_source(request)
    with spinner("clustering"):
        found = clusters(table, strategy, k=k)

    def figures() -> Mapping[str, Any]:
        from wattloop.report.figures.clusters import cluster_figures

        return cluster_figures(found, dimensions)

    show(request, table, found, figures)
    if assign is not None:
        write_assigned(found, assign)


@with_request
def importance_command(
    request: Request,
    target: Target = None,
    method: Annotated[
        str | None,
        typer.Option("--method", help="fanova or variance (default: fanova where installed)."),
    ] = None,
) -> None:
    """Show the share of the target's variance that each parameter explains."""
    from wattloop.analyze.importance import importances

    check_targets(request)
    table = read_source(request)
    with spinner("weighing parameters"):
        found = importances(table, target, method=method)

    def figures() -> Mapping[str, Any]:
        from wattloop.report.figures.statistics import importance_figures

        return importance_figures(found)

    show(request, table, found, figures)


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Regression, clusters, Pareto front, efficiency quotient over a search, sweep or CSV.",
    epilog="Examples: wattloop analyze pareto last; wattloop analyze ols runs.csv --target "
    "energy_wh --figure ols.svg.",
)


app.command("top")(top_command)


app.command("quotient")(quotient_command)


app.command("metrics")(metrics_command)


app.command("pareto")(pareto_command)


app.command("matrix")(matrix_command)


app.command("ols")(ols_command)


app.command("correlation")(correlation_command)


app.command("clusters")(clusters_command)


app.command("importance")(importance_command)
