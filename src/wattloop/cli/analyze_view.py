"""What `wattloop analyze` prints, writes and draws."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from wattloop.analyze.findings import Findings, cell
from wattloop.analyze.table import RunTable
from wattloop.cli.analyze_request import Request
from wattloop.cli.output import check_target, print_table, say, write_json, write_text
from wattloop.cli.progress import spinner
from wattloop.core.errors import ConfigError
from wattloop.core.user_code import user_path
from wattloop.store.formats.csv_file import csv_text

__all__ = ["check_targets", "show"]


def check_targets(request: Request) -> None:
    """Refuse what cannot be written before anything is computed."""
    check_target(request.json_file, "--json")
    check_target(request.csv_file, "--csv")
    if request.json_file == request.csv_file == "-":
        raise ConfigError("--json - and --csv -: only one can have standard output")
    if request.rows < 0:
        raise ConfigError(f"--rows {request.rows}: give 0 (all) or more")
    if request.figure is None:
        return
    from wattloop.report.figures.render import FORMATS, needs_libraries

    check_target(request.figure, "--figure")
    if user_path(request.figure).suffix.lower() not in FORMATS:
        raise ConfigError(f"--figure {request.figure}: end it with {', '.join(FORMATS)}")
    needs_libraries()


def show(
    request: Request, table: RunTable, found: Findings, figures: Callable[[], Mapping[str, Any]]
) -> None:
    """Tables on standard output, remarks on standard error, files as asked for."""
    if request.json_file is not None:
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
    """A terminal that is too narrow loses parameters, the last first."""
    for number, table in enumerate((found, *found.others)):
        if number:
            sys.stdout.write("\n")
        cells = table.cells()
        shown = cells[:most] if most and table.name != "coefficients" else cells
        spare = [name for name in reversed(parameters) if name in table.headers]
        print_table(table.headers, shown, table.title, spare=spare)
        if len(shown) < len(cells):
            sys.stdout.write(f"... and {len(cells) - len(shown)} more (--rows 0, --csv FILE)\n")
        facts = ", ".join(f"{k} {cell(v)}" for k, v in table.facts.items() if v is not None)
        if facts:
            sys.stdout.write(facts + "\n")


def _remarks(table: RunTable, found: Findings) -> list[str]:
    """Where it comes from and how it was done, then what to beware of."""
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
    from wattloop.report.figures.style import with_source

    if not charts:
        say("wattloop: nothing to draw")
        return
    notes = [table.source] if table.source else []
    # a file of its own has to say whose energy it shows, and whether it was measured
    sourced = {name: with_source(chart, table.source) for name, chart in charts.items()}
    with spinner("drawing"):
        save_one(sourced, user_path(target), title=found.title, notes=[*notes, *found.notes])
    say(f"wattloop: figure in {target}")
