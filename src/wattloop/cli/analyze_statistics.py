"""`wattloop analyze ols`, `correlation`, `clusters` and `importance`: what depends on what."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from wattloop.cli.analyze_request import Request, listed, with_request
from wattloop.cli.analyze_source import read_source
from wattloop.cli.analyze_view import check_targets, show
from wattloop.cli.progress import spinner
from wattloop.core.errors import ConfigError

__all__ = ["clusters_command", "correlation_command", "importance_command", "ols_command"]

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
    """Regression over levels: coefficient, error, t, p and interval of every level."""
    from wattloop.analyze.ols import regression

    check_targets(request)
    table = read_source(request)
    with spinner("regression"):
        found = regression(table, target, numeric=listed(numeric) or ())

    def figures() -> Mapping[str, Any]:
        from wattloop.report.figures.regression import regression_figures

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
    """Pearson's r and Spearman's rho of every pair of columns, with p."""
    from wattloop.analyze.correlation import correlations

    check_targets(request)
    table = read_source(request)
    with spinner("correlation"):
        found = correlations(table, target)

    def figures() -> Mapping[str, Any]:
        from wattloop.report.figures.correlation import correlation_figures

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
    """Families of runs by K-Means, their means, and parameters of little influence."""
    from wattloop.analyze.clusters import clusters
    from wattloop.cli.analyze_assign import write_assigned
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
    """How much of the target's spread each parameter makes."""
    from wattloop.analyze.importance import importances

    check_targets(request)
    table = read_source(request)
    with spinner("weighing parameters"):
        found = importances(table, target, method=method)

    def figures() -> Mapping[str, Any]:
        from wattloop.report.figures.regression import importance_figures

        return importance_figures(found)

    show(request, table, found, figures)
