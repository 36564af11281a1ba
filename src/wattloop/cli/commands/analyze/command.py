"""Commands of `wattloop analyze`."""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any

from wattloop.analyze.analysis_result import Findings, cell
from wattloop.analyze.clusters import Clusters, clusters
from wattloop.analyze.configuration_matrix import configuration_matrix
from wattloop.analyze.correlation import correlations
from wattloop.analyze.efficiency_quotient import Quotients, quotients, top_runs
from wattloop.analyze.importance import importances
from wattloop.analyze.ols import regression
from wattloop.analyze.pareto import pareto_front
from wattloop.analyze.roles import default_target, with_energy
from wattloop.analyze.table import RunTable
from wattloop.analyze.table_reader import fold_epochs, read_csv
from wattloop.cli.app import Verb
from wattloop.cli.options import Config, JsonFile, StorePlace, argument, file_option, option
from wattloop.cli.output import print_rows, say, write_json, write_text
from wattloop.cli.progress import spinner
from wattloop.cli.stored import open_existing_store, say_which
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.table import csv_text
from wattloop.core.units import J_PER_WH
from wattloop.report.figures.chart import with_source
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

Source = Annotated[
    str,
    argument(
        "SEARCH|SWEEP|FILE.csv",
        "Identifier of a search or sweep, its beginning or end, name, 'last'; or a CSV file.",
    ),
]
Parameters = Annotated[
    str | None, option("--parameters LIST", "Columns that were chosen (default: found).")
]
Results = Annotated[str | None, option("--results LIST", "Columns that came out (default: found).")]
Where = Annotated[
    list[str] | None,
    option("--where CONDITION", "Only these rows, such as 'accuracy>=0.8'; repeatable."),
]
Scope = Annotated[str | None, option("--scope", "Of a sweep: energy of gpu, cpu, dram or node.")]
Rows = Annotated[int, option("--rows N", "Print at most so many rows; 0 is all.")]
CsvFile = Annotated[
    str | None, file_option("--csv -o FILE", "Write the table as CSV; - is standard output.")
]
Figure = Annotated[
    str | None, file_option("--figure FILE", "Draw into this .svg, .png or .html file.")
]


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions:
    """Options that all analyses share."""

    parameters: Parameters = None
    results: Results = None
    where: Where = None
    scope: Scope = None
    rows: Rows = 20
    json_file: JsonFile = None
    csv_file: CsvFile = None
    figure: Figure = None
    store: StorePlace = None
    config: Config = None


def listed(text: str | None) -> list[str] | None:
    """Split `a, b` into two names."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


SWEEP, SEARCH = "sweep", "search"


def read_source(source: str, request: AnalysisOptions) -> RunTable:
    """Read the rows that the options select; refuse output files that cannot be written first."""
    _check_outputs(request)
    place = user_path(source)
    if place.suffix.lower() in (".csv", ".tsv", ".txt") or place.is_file():
        chosen = listed(request.parameters), listed(request.results)
        table = fold_epochs(read_csv(source, *chosen))
    else:
        table = _stored(source, request)
    table = with_energy(table)
    for condition in request.where or ():
        table = table.where(condition)
    return table


def _stored(source: str, request: AnalysisOptions) -> RunTable:
    from wattloop.store.experiments import find_experiment

    with open_existing_store(request.store, request.config) as store:
        if store is None:
            raise ConfigError(
                f"{source}: no such file, and nothing is stored yet; "
                "name a CSV file, or run 'wattloop tune' or 'wattloop sweep' first"
            )
        experiment = find_experiment(store, source, SEARCH, SWEEP)
        say_which(store, source, SEARCH, SWEEP)
        chosen = listed(request.parameters), listed(request.results)
        if experiment.kind == SEARCH:
            from wattloop.report.stored_results import search_table

            return search_table(store, experiment, *chosen)
        from wattloop.report.stored_results import stored_sweep, sweep_table

        result = stored_sweep(store, experiment.experiment_id, request.scope)
        return sweep_table(result, *chosen, store=store)


def _check_outputs(request: AnalysisOptions) -> None:
    if request.json_file == request.csv_file == "-":
        raise ConfigError("--json - and --csv -: only one can have standard output")
    if request.rows < 0:
        raise ConfigError(f"--rows {request.rows}: give 0 (all) or more")
    if request.figure is None:
        return
    from wattloop.report.figures.render import FORMATS, needs_libraries

    if user_path(request.figure).suffix.lower() not in FORMATS:
        raise ConfigError(f"--figure {request.figure}: end it with {', '.join(FORMATS)}")
    needs_libraries()


def show(
    request: AnalysisOptions,
    table: RunTable,
    found: Findings,
    figures: Callable[[], Mapping[str, Any]],
) -> None:
    """Print tables to standard output and remarks to standard error; write the requested files."""
    write_json({"source": table.to_dict(), **found.to_dict()}, request.json_file)
    if request.csv_file is not None:
        write_text(_csv(found), request.csv_file, "--csv")
    if "-" not in (request.json_file, request.csv_file):
        _print(found, request.rows, table.parameters)
    for line in _remarks(table, found):
        say(f"wattloop: {line}")
    if request.figure is not None:
        _draw(request.figure, table, found, figures())


def _print(found: Findings, most: int, parameters: tuple[str, ...]) -> None:
    for number, table in enumerate((found, *found.others)):
        if number:
            sys.stdout.write("\n")
        cells = table.cells()
        shown = cells[:most] if most and table.name != "coefficients" else cells
        spare = [name for name in reversed(parameters) if name in table.headers]
        print_rows(table.headers, shown, table.title, spare=spare)
        if len(shown) < len(cells):
            sys.stdout.write(f"... and {len(cells) - len(shown)} more (--rows 0, --csv FILE)\n")
        facts = ", ".join(f"{k} {cell(v)}" for k, v in table.facts.items() if v is not None)
        if facts:
            sys.stdout.write(facts + "\n")


def _remarks(table: RunTable, found: Findings) -> list[str]:
    """Return source and method, then warnings."""
    lines = [table.source] if table.source else []
    lines += table.notes
    if table.left_out:
        gone = ", ".join(f"{count} {reason}" for reason, count in table.left_out.items())
        lines.append(f"rows left out: {gone}")
    lines += found.notes
    lines += [note for other in found.others for note in other.notes]
    warnings = [*found.warnings, *(w for other in found.others for w in other.warnings)]
    return [*dict.fromkeys(lines), *(f"warning: {text}" for text in dict.fromkeys(warnings))]


def _csv(found: Findings) -> str:
    columns = list(dict.fromkeys([*found.columns, *(key for row in found.rows for key in row)]))
    return csv_text(columns, found.rows)


def _draw(target: str, table: RunTable, found: Findings, charts: Mapping[str, Any]) -> None:
    from wattloop.report.figures.render import save_one

    if not charts:
        say("wattloop: nothing to draw")
        return
    notes = [table.source] if table.source else []
    # a file of its own has to say whose energy it shows, and whether it was measured
    sourced = {name: with_source(chart, table.source) for name, chart in charts.items()}
    with spinner("drawing"):
        save_one(sourced, user_path(target), title=found.title, notes=[*notes, *found.notes])
    say(f"wattloop: figure in {target}")


def write_assigned(found: Clusters, target: str) -> None:
    """Write all columns of the table with cluster and main components of each row."""
    table = found.table
    components = [f"pc{number + 1}" for number in range(found.projection.shape[1])]
    columns = ["run_name", *table.columns, "cluster", *components]
    rows = []
    for number, name in enumerate(table.names):
        values = [column[number] for column in table.columns.values()]
        place = [float(value) for value in found.projection[number]]
        rows.append([name, *values, int(found.labels[number]), *place])
    write_text(csv_text(columns, rows), target, "--assign")


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
    by: str | None = option("--by", "accuracy, power or quotient (default: all three)."),
    count: int = option("--count -n", "Runs per table.", 5),
    threshold: float | None = option("--threshold", "Leave out runs below this accuracy."),
    equation: QuotientOptions,
    request: AnalysisOptions,
) -> None:
    """Show the best runs by accuracy, by energy per epoch and by quotient."""
    table = read_source(source, request)
    known = equation.quotients(table)
    found = top_runs(table, by, count=count, threshold=threshold, found=known)
    show(request, table, found, lambda: top_figures(found))


@app.command("quotient", example="wattloop analyze quotient last")
def quotient_command(
    source: Source, *, equation: QuotientOptions, request: AnalysisOptions
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
        "--reference ROW", "Its name, or COLUMN=VALUE (default: is_default)."
    ),
    k: str = option("--k LIST", "Of EDS.", "1.5,2"),
    energy: Energy = None,
    time: str | None = option("--time COLUMN", "Time (default: found)."),
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
    minimize: str | None = option("--minimize LIST", "Columns; less is better."),
    maximize: str | None = option("--maximize LIST", "Columns; more is better."),
    knee: str | None = option("--knee", "chord (two objectives) or utopia."),
    request: AnalysisOptions,
) -> None:
    """Show the runs that no other run beats in every objective, and the knee among them."""
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
    target: str | None = option("--target COLUMN", "Sort by it; 'quotient' is known, too."),
    maximize: bool | None = option("--maximize/--minimize", "Which way is better."),
    request: AnalysisOptions,
) -> None:
    """Show which levels each run had, from worst to best run (GreenScreen, figure 7)."""
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
    numeric: str | None = option("--numeric LIST", "Keep these as numbers, not as levels."),
    request: AnalysisOptions,
) -> None:
    """Fit a regression over levels: coefficient, error, t, p and interval of every level."""
    table = read_source(source, request)
    with spinner("regression"):
        found = regression(table, target, numeric=listed(numeric) or ())
    show(request, table, found, lambda: regression_figures(found))


@app.command("correlation", example="wattloop analyze correlation runs.csv")
def correlation_command(
    source: Source,
    *,
    target: str | None = option("--target COLUMN", "Only with this column (default: all)."),
    request: AnalysisOptions,
) -> None:
    """Show Pearson's r and Spearman's rho of every pair of columns, with p."""
    table = read_source(source, request)
    with spinner("correlation"):
        found = correlations(table, target)
    show(request, table, found, lambda: correlation_figures(found))


@app.command("clusters", example="wattloop analyze clusters runs.csv")
def clusters_command(
    source: Source,
    *,
    strategy: str = option("--strategy", "results, all or hybrid.", "hybrid"),
    k: int | None = option("--k", "Number of clusters (default: by silhouette)."),
    dimensions: int = option("--dimensions", "2 or 3, of the figure in .svg and .png.", 2),
    assign: str | None = file_option("--assign FILE", "Write each run with its cluster as CSV."),
    request: AnalysisOptions,
) -> None:
    """Group runs by K-Means; show means of the groups and parameters of little influence."""
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
        "--method", "fanova or variance (default: fanova where installed)."
    ),
    request: AnalysisOptions,
) -> None:
    """Show the share of the target's variance that each parameter explains."""
    table = read_source(source, request)
    with spinner("weighing parameters"):
        found = importances(table, target, method=method)
    show(request, table, found, lambda: importance_figures(found))
