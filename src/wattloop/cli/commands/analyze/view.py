"""Input and output of `wattloop analyze`: source tables, printed tables, figures."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from wattloop.analyze.clusters import Clusters
from wattloop.analyze.findings import Findings, cell
from wattloop.analyze.roles import with_energy
from wattloop.analyze.table import RunTable
from wattloop.analyze.table_reader import fold_epochs, read_csv
from wattloop.cli.options import Config, JsonFile, StorePlace, argument, file_option, option
from wattloop.cli.output import print_rows, say, write_json, write_text
from wattloop.cli.progress import spinner
from wattloop.cli.stored import say_which
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.table import csv_text

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
    from wattloop.cli.stored import open_existing_store
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

        return sweep_table(stored_sweep(store, experiment.experiment_id, request.scope), *chosen)


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
    from wattloop.report.figures.chart import with_source
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
