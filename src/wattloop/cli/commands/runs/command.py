"""Commands of `wattloop runs`."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattloop.cli.app import StoreOptions, Verb
from wattloop.cli.options import argument, option
from wattloop.cli.output import is_terminal, say, write_json
from wattloop.cli.stored import chosen, nothing_yet, open_user_store, run_filter
from wattloop.core.errors import ConfigError
from wattloop.core.records import picked

if TYPE_CHECKING:
    from wattloop.measure.job_energy import MeasuredJobEnergy
    from wattloop.store.database import Store
    from wattloop.store.runs import RunRecord


def slopes_of(records: Iterable["RunRecord"]) -> dict[str, Any]:
    from wattloop.accounting.energy_slope import slopes

    pairs: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        if record.result is None or not record.counted:
            continue
        for domain in record.result.counted:
            if domain.energy_j is not None:
                device = f"{domain.name} {domain.device}".strip()
                pairs.setdefault(device, []).append((record.result.duration_s, domain.energy_j))
    found, missing = slopes(pairs)
    return {
        "slopes": [slope._asdict() for slope in found],
        "missing": [{"device": m.name, "reason": m.reason, "remedy": m.remedy} for m in missing],
    }


def find_job(store: "Store", reference: str = "last") -> "MeasuredJobEnergy":
    from wattloop.measure.job_energy import job_energy
    from wattloop.store.job_queries import find_job_members, stored_journal

    found = find_job_members(store, reference)
    return job_energy(
        found.name,
        found.records,
        lambda record: stored_journal(store, record),
        earlier=found.earlier,
    )


MOST_RUNS = 1_000_000_000
"""Databases take no number of any length."""
app = Verb("List, show, compare, export and import measured runs.")
Run = Annotated[str, argument("RUN", "Identifier, its beginning, name, or 'last'.")]
Runs = Annotated[list[str], argument("RUN", "Identifiers, their beginnings, or 'last'.")]


@dataclass(frozen=True)
class RowOptions:
    """Order and number of rows."""

    sort: Annotated[str, option("--sort", "newest, cost, energy or duration.")] = "newest"
    limit: Annotated[int, option("--limit -n", "0 shows all.", min=0, max=MOST_RUNS)] = 20
    every: Annotated[bool, option("--all -a", "Also the trials of sweeps and searches.")] = False


@app.command(
    "list",
    example="wattloop runs list --since 7d --sort cost\n"
    "wattloop runs list --name night* --limit 0 -j",
)
def list_command(
    *,
    name: str | None = option("--name", "Only this name; * is any text."),
    status: str | None = option("--status", "running, finished, failed, killed or died."),
    tag: list[str] | None = option("--tag -t KEY[=VALUE]", "Repeat for more."),
    host: str | None = option("--host", "Only runs on this machine."),
    job: str | None = option("--job", "Only runs of this job."),
    since: str | None = option("--since WHEN", "2026-01-31, 2026-01-31T08:00, 12h or 7d."),
    rows: RowOptions,
    given: StoreOptions,
) -> None:
    """Show runs, newest first or those that cost most; the trials of a sweep are one row.

    JSON has every run in `runs`, trials too, and what the rows of trials show in `experiments`.
    """
    from wattloop.cli.commands.runs import view
    from wattloop.store.runs import list_trial_groups

    wanted = run_filter(name, status, tag or [], host=host, job=job, since=since)
    with given.open_existing_store() as place:
        order = view.order_of(rows.sort, given.settings(), place)
        if place is not None:
            listed = view.list_rows(place, wanted, rows.limit, order, folded=not rows.every)
        if given.json_file is not None:
            as_before = view.RunList()
            if place is not None:
                as_before = view.list_rows(place, wanted, rows.limit, order)
            groups = [] if place is None else list_trial_groups(place, wanted)
            data = {"runs": [view.brief(r) for r in as_before.records], "more": as_before.more}
            experiments = [group.to_dict() for group in groups]
            write_json(data | {"experiments": experiments}, given.json_file)
        if given.json_file == "-":
            return
        if place is not None and listed.rows:
            view.print_list(listed)
        elif place is not None and any((name, status, tag, host, job, since)):
            say("no run matches; leave out a filter")
        else:
            say(nothing_yet(given.store, given.config))


@app.command("show", example="wattloop runs show\nwattloop runs show night -v")
def show_command(
    run: Run = "last",
    *,
    verbose: bool = option(
        "--verbose -v", "Everything: energy by domain, what is missing, windows, notes."
    ),
    given: StoreOptions,
) -> None:
    """Show one run in ten lines; with -v everything that is known of it."""
    from wattloop.accounting.restatement import restated
    from wattloop.cli.commands.runs import view
    from wattloop.integrations.serving import read_serving_totals
    from wattloop.integrations.stored_steps import read_step_totals
    from wattloop.store.run_record import read_steps, read_windows

    with given.open_store() as place:
        (record,) = chosen(place, [run])
        record = restated(record, given.settings())
        windows = read_windows(place, record.run_id)
        steps = read_steps(place, record.run_id)
        totals = read_step_totals(place, record)
        serving = read_serving_totals(place, record)
    data = record.to_dict() | {
        "windows": [w.to_dict() for w in windows],
        "steps": steps,
        "step_totals": None if totals is None else totals.to_dict(),
        "serving": None if serving is None else serving.to_dict(),
    }
    write_json(data, given.json_file)
    if given.json_file != "-":
        shown = view.print_run if verbose else view.print_brief
        shown(record, windows, steps, totals, serving)


@app.command("slope", example="wattloop runs slope --name night*")
def slope_command(
    name: str | None = option("--name", "Only this name; * is any text."), *, given: StoreOptions
) -> None:
    """Show energy over run time per device: the joules of each further second."""
    from wattloop.cli.commands.runs import view
    from wattloop.store.runs import list_runs

    wanted = run_filter(name, None, [], host=None, job=None, since=None)
    with given.open_store() as place:
        data = slopes_of(list_runs(place, wanted, None))
    given.present(lambda: data, lambda: view.print_slopes(data))


@app.command("job", example="wattloop runs job last")
def job_command(
    job: str = argument("JOB", "Its name, one of its runs, or 'last'.", "last"),
    *,
    given: StoreOptions,
) -> None:
    """Show a job of many processes: each node with each of its devices once, and the total."""
    from wattloop.cli.commands.runs import view

    with given.open_store() as place:
        found = find_job(place, job)
    given.present(found.to_dict, lambda: view.print_job(found))


@app.command(
    "export",
    example="wattloop runs export last --what samples -o samples.parquet\n"
    "wattloop runs export last --to mlflow",
)
def export_command(
    runs: list[str] | None = argument("RUN", "Identifiers, their beginnings, or 'last'."),
    *,
    every: bool = option("--all", "All runs."),
    asked_format: str | None = option(
        "--format -f", "csv, json, parquet or prometheus; else as FILE ends, or csv."
    ),
    what: str = option("--what -w", "runs, samples, signals, windows, steps or phases.", "runs"),
    output: str = option("--output -o FILE", "- is standard output.", "-"),
    to: str | None = option(
        "--to TRACKER", "mlflow, tensorboard or wandb: steps, epochs and totals."
    ),
    into: str | None = option(
        "--into WHERE", "With --to: its run or folder; else the one the program had open."
    ),
    given: StoreOptions,
) -> None:
    """Write runs to a file for other programs, or into the program's experiment tracker."""
    from wattloop.accounting.restatement import restated
    from wattloop.integrations.stored_steps import read_run_totals
    from wattloop.store.export import export, format_for
    from wattloop.store.runs import list_runs

    file_format = format_for(output, asked_format)
    if not runs and not every:
        raise ConfigError("name the runs to export, such as 'last', or give --all")
    if runs and every:
        raise ConfigError("give either runs or --all, not both")
    if given.json_file == "-" and output == "-":
        raise ConfigError("--json - and the export both go to standard output; use -o FILE")
    if to is not None:
        _export_to(to, into, runs or [], given)
        return
    if into is not None:
        raise ConfigError(f"--into {into}: name the tracker with --to mlflow, tensorboard or wandb")
    with given.open_store() as place:
        records = list_runs(place) if every else chosen(place, runs or [])
        settings = given.settings()
        records = [restated(record, settings) for record in records]
        totals = read_run_totals(place, records) if what in ("runs", "phases") else {}
        export(place, records, what=what, file_format=file_format, target=output, totals=totals)
    if output != "-":
        say(f"{what} of {len(records)} run(s) written to {output} as {file_format}")
    ids = [record.run_id for record in records]
    done = {"runs": ids, "what": what, "format": file_format, "file": output}
    write_json(done, given.json_file)


def _export_to(tracker: str, into: str | None, names: list[str], given: StoreOptions) -> None:
    """Write each run into the tracker's run that its program had open, or into the named one."""
    from wattloop.integrations.loggers import TRACKERS, export_to_tracker
    from wattloop.integrations.stored_steps import read_open_trackers, read_tracker_rows

    if tracker not in TRACKERS:
        raise ConfigError(f"--to {tracker}: unknown; choose one of {', '.join(TRACKERS)}")
    if len(names) != 1:
        raise ConfigError(f"--to {tracker}: name one run, such as 'last'")
    with given.open_store() as place:
        (record,) = chosen(place, names)
        opened = [run for run in read_open_trackers(place, record) if run["tracker"] == tracker]
        rows = read_tracker_rows(place, record)
    if into is None and not opened:
        raise ConfigError(
            f"--to {tracker}: run {record.run_id} had none open that Wattloop saw; name it with "
            "--into (a run of MLflow or W&B, a folder of TensorBoard)"
        )
    target = into or opened[-1]["into"]
    uri = opened[-1].get("uri", "") if into is None else ""
    export_to_tracker(record, rows, tracker, target, uri)
    say(f"energy of run {record.run_id} written into {tracker}: {target}")
    data = {"runs": [record.run_id], "tracker": tracker, "into": target, "rows": len(rows)}
    write_json(data, given.json_file)


@app.command("compare", example="wattloop runs compare before after")
def compare_command(runs: Runs, *, given: StoreOptions) -> None:
    """Compare runs with the first one: energy, time, power and EDP per scope, cost of a step."""
    from wattloop.cli.commands.runs import view
    from wattloop.integrations.stored_steps import read_repeats, read_step_costs
    from wattloop.store.comparison import compare

    with given.open_store() as place:
        records = chosen(place, runs)
        repeats = read_repeats(place, records)
        comparison = compare(records, read_step_costs(place, records), repeats)
    given.present(comparison.to_dict, lambda: view.print_comparison(comparison))


@app.command("import", example="wattloop runs import emissions.csv")
def import_command(
    file: Path = argument("FILE", "An emissions.csv of CodeCarbon."), *, given: StoreOptions
) -> None:
    """Import runs that CodeCarbon recorded; runs already stored are not changed."""
    from wattloop.store.formats.codecarbon import import_codecarbon, read_codecarbon

    read_codecarbon(file)  # a wrong file is refused before a store is made for it
    with given.open_store(create=True) as place:
        done = import_codecarbon(place, file)
    for problem in done.problems:
        say(f"wattloop: {problem}")
    counts = f"{len(done.added)} added, {len(done.updated)} updated, {len(done.known)} known"
    say(f"{file}: {counts}, {len(done.problems)} line(s) refused")
    write_json(picked(done, "added updated known problems"), given.json_file)
    if done.problems and not (done.added or done.updated or done.known):
        raise ConfigError(f"{file}: no line could be imported")


@app.command("copy", example="wattloop runs copy archive.db")
def copy_command(
    to: str = argument("PLACE", "SQLite file or postgresql:// URL to copy to."),
    *,
    given: StoreOptions,
) -> None:
    """Copy all runs to another store; runs already there are not changed."""
    from wattloop.store.export import copy_runs

    with given.open_store() as source, open_user_store(to, given.config, create=True) as target:
        copied, known = copy_runs(source, target)
        say(f"{len(copied)} run(s) copied to {target.where}, {len(known)} were there already")
    write_json({"copied": copied, "known": known}, given.json_file)


@app.command("delete", example="wattloop runs delete 20260131-0800")
def delete_command(
    runs: Runs, *, yes: bool = option("--yes -y", "Do not ask."), given: StoreOptions
) -> None:
    """Delete runs with their samples. This cannot be undone."""
    from wattloop.store.runs import delete_run

    with given.open_store() as place:
        records = {record.run_id: record for record in chosen(place, runs, by_name=False)}
        if not yes:
            if not is_terminal(sys.stdin):
                raise ConfigError(
                    "standard input is not a terminal, so the question cannot be asked; add --yes"
                )
            for record in records.values():
                say(f"{record.run_id}  {record.name}")
            if not typer.confirm(f"Delete {len(records)} run(s)?", err=True):
                say("nothing was deleted")
                raise typer.Exit(1)
        deleted = [run_id for run_id in records if delete_run(place, run_id)]
    say(f"{len(deleted)} run(s) deleted")
    write_json({"deleted": deleted}, given.json_file)


app.add_plot("runs", "RUN", ("power-gpu", "power"), "power over time")
