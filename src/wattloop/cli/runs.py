"""`wattloop runs`: what was measured."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from wattloop.cli import runs_view
from wattloop.cli.chosen import settings_of
from wattloop.cli.options import Config, JsonFile, StorePlace
from wattloop.cli.output import check_target, is_terminal, say, write_json
from wattloop.cli.runs_store import chosen, filter_of, nothing_yet, opened, opened_if_any
from wattloop.core.errors import ConfigError
from wattloop.core.settings import STORE

__all__ = ["app"]

MOST_RUNS = 1_000_000_000
"""Databases take no number of any length."""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="List, show, compare, export and import measured runs.",
)

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="Identifier, its beginning, name, or 'last'.")
]
Runs = Annotated[
    list[str], typer.Argument(metavar="RUN", help="Identifiers, their beginnings, or 'last'.")
]


@app.command("list")
def list_command(  # noqa: PLR0913 - one parameter per option
    *,
    name: Annotated[str | None, typer.Option(help="Only this name; * is any text.")] = None,
    status: Annotated[
        str | None, typer.Option(help="running, finished, failed, killed or died.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", "-t", metavar="KEY[=VALUE]", help="Repeat for more."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Only runs on this machine.")] = None,
    job: Annotated[str | None, typer.Option(help="Only runs of this job.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="2026-01-31, 2026-01-31T08:00, 12h or 7d.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, max=MOST_RUNS, help="0 shows all.")
    ] = 20,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Show runs, newest first."""
    from wattloop.store.runs import list_runs

    check_target(json_file, "--json")
    wanted = filter_of(name, status, tag or [], host=host, job=job, since=since)
    with opened_if_any(store, config) as place:
        if place is None:
            records, more = [], False
        else:
            live = runs_view.matching_live(place, wanted)
            kept = list_runs(place, wanted, limit + 1 if limit else None)
            records = (live + kept)[: limit or None]
            more = len(live) + len(kept) > len(records)
        filtered = any((name, status, tag, host, job, since))
        if json_file is not None:
            write_json({"runs": [runs_view.brief(r) for r in records], "more": more}, json_file)
        if json_file != "-":
            if records:
                runs_view.print_list(records)
            elif filtered and place:
                say("no run matches; leave out a filter")
            else:
                say(nothing_yet(store, config))
        if more:
            say(f"the {len(records)} newest; see all with --limit 0")


@app.command("show")
def show_command(
    run: Run = "last",
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Show one run: energy by domain, what is missing, windows and steps."""
    from wattloop.accounting.restatement import restated
    from wattloop.store.details import read_steps, read_windows

    check_target(json_file, "--json")
    with opened(store, config) as place:
        (record,) = chosen(place, [run])
        record = restated(record, settings_of(config, needs=STORE, store=store))
        windows = read_windows(place, record.run_id)
        steps = read_steps(place, record.run_id)
    if json_file is not None:
        data = record.to_dict() | {"windows": [w.to_dict() for w in windows], "steps": steps}
        write_json(data, json_file)
    if json_file != "-":
        runs_view.print_run(record, windows, steps)


@app.command("slope")
def slope_command(
    name: Annotated[str | None, typer.Option(help="Only this name; * is any text.")] = None,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Show energy over runtime per device: what each further second costs."""
    from wattloop.cli.runs_slope import print_slopes, slopes_of
    from wattloop.store.runs import list_runs

    check_target(json_file, "--json")
    wanted = filter_of(name, None, [], host=None, job=None, since=None)
    with opened(store, config) as place:
        data = slopes_of(list_runs(place, wanted, None))
    if json_file is not None:
        write_json(data, json_file)
    if json_file != "-":
        print_slopes(data)


@app.command("job")
def job_command(
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="Its name, one of its runs, or 'last'.")
    ] = "last",
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Show a job of many processes: each node with each of its devices once, and the total."""
    from wattloop.cli.runs_job import find_job, print_job

    check_target(json_file, "--json")
    with opened(store, config) as place:
        found = find_job(place, job)
    if json_file is not None:
        write_json(found.to_dict(), json_file)
    if json_file != "-":
        print_job(found)


@app.command("export")
def export_command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help="Identifiers, their beginnings, or 'last'."),
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All runs.")] = False,
    asked_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help="csv, json, parquet or prometheus; else as FILE ends, or csv.",
        ),
    ] = None,
    what: Annotated[
        str, typer.Option("--what", "-w", help="runs, samples, signals, windows or steps.")
    ] = "runs",
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="- is standard output.")
    ] = "-",
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Write runs to a file for other programs."""
    from wattloop.accounting.restatement import restated
    from wattloop.store.export import export, format_for
    from wattloop.store.runs import list_runs

    check_target(json_file, "--json")
    file_format = format_for(output, asked_format)
    if not runs and not every:
        raise ConfigError("name the runs to export, such as 'last', or give --all")
    if runs and every:
        raise ConfigError("give either runs or --all, not both")
    if json_file == "-" and output == "-":
        raise ConfigError("--json - and the export both go to standard output; use -o FILE")
    with opened(store, config) as place:
        records = list_runs(place) if every else chosen(place, runs or [])
        settings = settings_of(config, needs=STORE, store=store)
        records = [restated(record, settings) for record in records]
        export(place, records, what=what, file_format=file_format, target=output)
    if output != "-":
        say(f"{what} of {len(records)} run(s) written to {output} as {file_format}")
    if json_file is not None:
        ids = [record.run_id for record in records]
        done = {"runs": ids, "what": what, "format": file_format, "file": output}
        write_json(done, json_file)


@app.command("compare")
def compare_command(
    runs: Runs,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Compare runs with the first one: energy, time, power and EDP per scope."""
    from wattloop.store.comparison import compare

    check_target(json_file, "--json")
    with opened(store, config) as place:
        comparison = compare(chosen(place, runs))
    if json_file is not None:
        write_json(comparison.to_dict(), json_file)
    if json_file != "-":
        runs_view.print_comparison(comparison)


@app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An emissions.csv of CodeCarbon.")],
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Bring in runs that CodeCarbon recorded; those already here are left as they are."""
    from wattloop.store.formats.codecarbon import import_codecarbon, read_codecarbon

    check_target(json_file, "--json")
    read_codecarbon(file)  # a wrong file is refused before a store is made for it
    with opened(store, config, create=True) as place:
        done = import_codecarbon(place, file)
    for problem in done.problems:
        say(f"wattloop: {problem}")
    counts = f"{len(done.added)} added, {len(done.updated)} updated, {len(done.known)} known"
    say(f"{file}: {counts}, {len(done.problems)} line(s) refused")
    if json_file is not None:
        data = {"added": done.added, "updated": done.updated, "known": done.known}
        write_json(data | {"problems": done.problems}, json_file)
    if done.problems and not (done.added or done.updated or done.known):
        raise ConfigError(f"{file}: no line could be imported")


@app.command("copy")
def copy_command(
    to: Annotated[
        str, typer.Argument(metavar="PLACE", help="SQLite file or postgresql:// URL to copy to.")
    ],
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Copy all runs to another store; those already there are left as they are."""
    from wattloop.store.export import copy_runs

    check_target(json_file, "--json")
    with opened(store, config) as source, opened(to, config, create=True) as target:
        copied, known = copy_runs(source, target)
        say(f"{len(copied)} run(s) copied to {target.where}, {len(known)} were there already")
    if json_file is not None:
        write_json({"copied": copied, "known": known}, json_file)


@app.command("delete")
def delete_command(
    runs: Runs,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Delete runs with their samples. This cannot be undone."""
    from wattloop.store.runs import delete_run

    check_target(json_file, "--json")
    with opened(store, config) as place:
        records = {record.run_id: record for record in chosen(place, runs, by_name=False)}
        if not yes:
            if not is_terminal(sys.stdin):
                raise ConfigError("nobody is there to ask; delete without asking with --yes")
            for record in records.values():
                say(f"{record.run_id}  {record.name}")
            if not typer.confirm(f"Delete {len(records)} run(s)?", err=True):
                say("nothing was deleted")
                raise typer.Exit(1)
        deleted = [run_id for run_id in records if delete_run(place, run_id)]
    say(f"{len(deleted)} run(s) deleted")
    if json_file is not None:
        write_json({"deleted": deleted}, json_file)
