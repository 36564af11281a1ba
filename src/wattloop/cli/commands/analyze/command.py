"""Commands of `wattloop analyze`."""

from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Annotated

from wattloop.analyze.quotient import Quotients
from wattloop.analyze.table import RunTable
from wattloop.cli.app import Verb
from wattloop.cli.commands.analyze.view import (
    AnalysisOptions,
    Source,
    listed,
    read_source,
    show,
)
from wattloop.cli.options import file_option, option
from wattloop.cli.progress import spinner
from wattloop.core.errors import ConfigError
from wattloop.core.units import J_PER_WH
from wattloop.report.figures.clusters import cluster_figures
from wattloop.report.figures.search import (
    matrix_figures,
    metrics_figures,
    pareto_figures,
    quotient_figures,
    top_figures,
)
from wattloop.report.figures.statistics import (
    correlation_figures,
    importance_figures,
    regression_figures,
)

Energy = Annotated[str | None, option("--energy COLUMN", "Energy (default: found).")]
Target = Annotated[str | None, option("--target COLUMN", "What to explain (default: energy).")]


@dataclass(frozen=True, kw_only=True)
class QuotientOptions:
    """How accuracy per energy is computed."""

    variant: Annotated[
        str, option("--variant", "epoch (equation 1), validation, total or gain.")
    ] = "epoch"
    quality: Annotated[str | None, option("--quality COLUMN", "Accuracy (default: found).")] = None
    energy: Energy = None
    epochs: Annotated[
        str | None, option("--epochs COLUMN|N", "Epochs of a run (default: found).")
    ] = None
    chance: Annotated[
        float | None, option("--chance", "Accuracy of guessing, for the variant gain.")
    ] = None

    def quotients(self, table: RunTable) -> Quotients:
        from wattloop.analyze.quotient import quotients

        epochs: str | float | None = self.epochs
        with suppress(ValueError):
            epochs = None if self.epochs is None else float(self.epochs)
        return quotients(
            table,
            self.variant,
            quality=self.quality,
            energy=self.energy,
            epochs=epochs,
            chance=self.chance,
        )


app = Verb(
    "Regression, clusters, Pareto front, efficiency quotient over a search, sweep or CSV.",
    example="wattloop analyze pareto last\n"
    "wattloop analyze ols runs.csv --target energy_wh --figure ols.svg",
)


@app.command("top", example="wattloop analyze top last -n 3")
def top_command(
    source: Source,
    *,
    by: str | None = option("--by", "accuracy, power or quotient (default: all three).", None),
    count: int = option("--count -n", "Runs per table.", 5),
    threshold: float | None = option("--threshold", "Leave out runs below this accuracy.", None),
    equation: QuotientOptions,
    request: AnalysisOptions,
) -> None:
    """Show the best runs by accuracy, by energy per epoch and by quotient."""
    from wattloop.analyze.quotient import top_runs

    table = read_source(source, request)
    known = equation.quotients(table)
    found = top_runs(table, by, count=count, threshold=threshold, found=known)
    show(request, table, found, lambda: top_figures(found))


@app.command("quotient", example="wattloop analyze quotient last")
def quotient_command(
    source: Source,
    *,
    equation: QuotientOptions,
    request: AnalysisOptions,
) -> None:
    """Show accuracy per energy of each run, best first (GreenScreen, equation 1)."""
    table = read_source(source, request)
    found = equation.quotients(table)
    show(request, table, found, lambda: quotient_figures(table, found))


@app.command("metrics", example="wattloop analyze metrics last")
def metrics_command(
    source: Source,
    *,
    reference: str | None = option(
        "--reference ROW", "Its name, or COLUMN=VALUE (default: is_default).", None
    ),
    k: str = option("--k LIST", "Of EDS.", "1.5,2"),
    energy: Energy = None,
    time: str | None = option("--time COLUMN", "Time (default: found).", None),
    request: AnalysisOptions,
) -> None:
    """Show EDP, ED2P, EDS(k), energy gain and gain minus loss of each run."""
    from wattloop.analyze.row_metrics import row_metrics

    table = read_source(source, request)
    try:
        numbers = tuple(float(part) for part in listed(k) or ())
    except ValueError:
        raise ConfigError(f"--k {k}: write numbers, such as 1.5,2") from None
    found = row_metrics(table, reference, k=numbers, energy=energy, time=time)
    show(request, table, found, lambda: metrics_figures(found))


@app.command("pareto", example="wattloop analyze pareto last")
def pareto_command(
    source: Source,
    *,
    minimize: str | None = option("--minimize LIST", "Columns; less is better.", None),
    maximize: str | None = option("--maximize LIST", "Columns; more is better.", None),
    knee: str | None = option("--knee", "chord (two objectives) or utopia.", None),
    request: AnalysisOptions,
) -> None:
    """Show the runs that no other run beats in every objective, and the knee among them."""
    from wattloop.analyze.pareto import pareto_front

    table = read_source(source, request)
    less, more = listed(minimize) or [], listed(maximize) or []
    both = [name for name in less if name in more]
    if both:
        raise ConfigError(f"'{both[0]}' cannot be made both small and large")
    objectives = {**dict.fromkeys(less, False), **dict.fromkeys(more, True)}
    found = pareto_front(table, objectives or None, knee=knee)
    show(request, table, found, lambda: pareto_figures(found))


@app.command("matrix", example="wattloop analyze matrix runs.csv")
def matrix_command(
    source: Source,
    *,
    target: str | None = option("--target COLUMN", "Sort by it; 'quotient' is known, too.", None),
    maximize: bool | None = option("--maximize/--minimize", "Which way is better.", None),
    request: AnalysisOptions,
) -> None:
    """Show which levels each run had, from worst to best run (GreenScreen, figure 7)."""
    from wattloop.analyze.configuration_matrix import configuration_matrix
    from wattloop.analyze.quotient import quotients
    from wattloop.analyze.roles import default_target

    table = read_source(source, request)
    metric = target or default_target(table)
    if metric == "quotient" and metric not in table.columns:
        per_wh = quotients(table).per_ws * J_PER_WH
        values = [float(value) if isfinite(value) else None for value in per_wh]
        table = table.with_column("quotient", values)
    found = configuration_matrix(table, metric, more_is_better=maximize)
    show(request, table, found, lambda: matrix_figures(found))


@app.command("ols", example="wattloop analyze ols runs.csv --target energy_wh --figure ols.svg")
def ols_command(
    source: Source,
    *,
    target: Target = None,
    numeric: str | None = option("--numeric LIST", "Keep these as numbers, not as levels.", None),
    request: AnalysisOptions,
) -> None:
    """Fit a regression over levels: coefficient, error, t, p and interval of every level."""
    from wattloop.analyze.ols import regression

    table = read_source(source, request)
    with spinner("regression"):
        found = regression(table, target, numeric=listed(numeric) or ())
    show(request, table, found, lambda: regression_figures(found))


@app.command("correlation", example="wattloop analyze correlation runs.csv")
def correlation_command(
    source: Source,
    *,
    target: str | None = option("--target COLUMN", "Only with this column (default: all).", None),
    request: AnalysisOptions,
) -> None:
    """Show Pearson's r and Spearman's rho of every pair of columns, with p."""
    from wattloop.analyze.correlation import correlations

    table = read_source(source, request)
    with spinner("correlation"):
        found = correlations(table, target)
    show(request, table, found, lambda: correlation_figures(found))


@app.command("clusters", example="wattloop analyze clusters runs.csv")
def clusters_command(
    source: Source,
    *,
    strategy: str = option("--strategy", "results, all or hybrid.", "hybrid"),
    k: int | None = option("--k", "Number of clusters (default: by silhouette).", None),
    dimensions: int = option("--dimensions", "2 or 3, of the figure in .svg and .png.", 2),
    assign: str | None = file_option(
        "--assign FILE", "Write each run with its cluster as CSV.", None
    ),
    request: AnalysisOptions,
) -> None:
    """Group runs by K-Means; show means of the groups and parameters of little influence."""
    from wattloop.analyze.clusters import clusters
    from wattloop.cli.commands.analyze.view import write_assigned

    if dimensions not in (2, 3):
        raise ConfigError(f"--dimensions {dimensions}: give 2 or 3")
    table = read_source(source, request)
    with spinner("clustering"):
        found = clusters(table, strategy, k=k)
    show(request, table, found, lambda: cluster_figures(found, dimensions))
    if assign is not None:
        write_assigned(found, assign)


@app.command("importance", example="wattloop analyze importance runs.csv --target accuracy")
def importance_command(
    source: Source,
    *,
    target: Target = None,
    method: str | None = option(
        "--method", "fanova or variance (default: fanova where installed).", None
    ),
    request: AnalysisOptions,
) -> None:
    """Show the share of the target's variance that each parameter explains."""
    from wattloop.analyze.importance import importances

    table = read_source(source, request)
    with spinner("weighing parameters"):
        found = importances(table, target, method=method)
    show(request, table, found, lambda: importance_figures(found))
