"""Commands of `wattloop tune`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattloop.cli.app import RUN, MeterOptions, StoreOptions, UserCommandGroup, Verb, user_command
from wattloop.cli.options import JsonFile, argument, file_option, option
from wattloop.cli.output import present, print_rows, say, write_json, write_text
from wattloop.cli.progress import counted
from wattloop.cli.stored import add_list_command, say_which, stored
from wattloop.cli.stored import which as which_one
from wattloop.core.errors import ConfigError
from wattloop.core.table import Table, csv_text
from wattloop.core.units import format_number

if TYPE_CHECKING:
    from wattloop.store.database import Store
    from wattloop.store.experiments import Experiment
    from wattloop.tune.results import SearchSummary
    from wattloop.tune.search_setup import PreparedSearch

# `wattloop tune replay`: compare strategies on measured tables, without training.

SHOWN = (
    "one_shot_d",
    "explore_d",
    "final_over_oracle",
    "within_5pct_share",
    "failures",
    "cum20_over_oracle",
    "cum50_over_oracle",
)

REPLAY_FIGURES = (
    "D is one training with the default batch size at the highest cap, mean over training seeds; "
    "the oracle is the least mean energy to the target over batch sizes and caps. explore_d: "
    "energy of the first search that did not train its winner. one_shot_d: everything until the "
    "search is over and the target is reached. final_over_oracle: the winner's mean energy. "
    "within_5pct_share: of the seeds. failures: runs that did not reach the target, and trainings "
    "of a settled job that did not. cum20_over_oracle, cum50_over_oracle: all energy of the first "
    "20 and 50 runs of the job."
)


def replay_command(
    *,
    power: list[str] = option(
        "--power FILE", "CSV: time and power of epochs at each cap; one a GPU."
    ),
    train: str = option("--train FILE", "CSV: epochs to each quality."),
    problems: str | None = option(
        "--problems FILE", "CSV: target, limit and default; default: problems.csv next to --train."
    ),
    strategy: str = option(
        "--strategy", "race, sm2, grid, random, zeus, default-cap or asha.", "race"
    ),
    seeds: int = option("--seeds", "Independent repetitions.", 20),
    noise: float = option("--noise PCT", "Of each reading of the meter, in %.", 0.0),
    recurrences: int = option("--recurrences", "How often the same job is run.", 50),
    json_file: JsonFile = None,
) -> None:
    """Run a strategy on measured tables in the format of Zeus."""
    from wattloop.tune.replay.executor import CapScripts
    from wattloop.tune.replay.recurring_jobs import check_policy
    from wattloop.tune.replay.replay import medians, replay
    from wattloop.tune.replay.tables import read_workloads

    check_policy(strategy)
    if not (math.isfinite(noise) and 0 <= noise <= 30):
        raise ConfigError(f"--noise {noise:g}: give per cent between 0 and 30")
    for name, value in (("--seeds", seeds), ("--recurrences", recurrences)):
        if value < 1:
            raise ConfigError(f"{name} {value}: give at least 1")
    given = str(Path(train).with_name("problems.csv")) if problems is None else problems
    workloads, left_out = read_workloads(power, train, given)
    for one in left_out:
        say(f"wattloop: {one.name} is left out: {one.reason}")
    scripts = CapScripts(noise / 100)
    with counted("replaying", len(workloads) * seeds) as bar:
        entries = [
            replay(
                workload,
                strategy,
                seeds=seeds,
                recurrences=recurrences,
                scripts=scripts,
                advance=bar.advance,
            )
            for workload in workloads
        ]
    found = medians(entries)
    data = {
        "strategy": strategy,
        "seeds": seeds,
        "noise_pct": noise,
        "recurrences": recurrences,
        "problems": [entry.to_dict() for entry in entries],
        "medians": found,
        "left_out": [asdict(one) for one in left_out],
    }
    write_json(data, json_file)
    if json_file != "-":
        rows = [
            (f"{e.dataset}/{e.network}", e.gpu, *(_shown(getattr(e, name)) for name in SHOWN))
            for e in entries
        ]
        rows.append(("median", "", *(_shown(found[name]) for name in SHOWN)))
        print_rows(("problem", "gpu", *SHOWN), rows, title=f"{strategy}, {seeds} seeds")


def _shown(value: float | None) -> str:
    return "-" if value is None else format_number(value, 3)


KIND = "search"
Which = Annotated[str, which_one("SEARCH")]
Energy = Annotated[str | None, option("--energy AMOUNT", "Budget, such as 2kWh.")]
Time = Annotated[str | None, option("--time TIME", "Deadline, such as 90min or 8h.")]
Trials = Annotated[int | None, option("--trials", "Configurations to begin at most.")]


class TuneGroup(UserCommandGroup):
    """Command group in which `tune SPEC.yaml` means `tune run SPEC.yaml`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].endswith((".yaml", ".yml")):
            args = [RUN, *args]
        return super().parse_args(ctx, args)


app = Verb(
    "Search hyper-parameters and power cap together, with energy in the objective.",
    example="wattloop tune run search.yaml -- python train.py --lr {lr}\n"
    "wattloop tune best\nwattloop tune final",
    cls=TuneGroup,
)


@app.command(RUN, example="wattloop tune run search.yaml -- python train.py --lr {lr}")
def run_command(  # noqa: PLR0913 - one parameter per option
    ctx: typer.Context,
    spec: str = argument("SPEC.yaml", "Parameters, metric, limits."),
    *,
    strategy: str | None = option("--strategy", "race, sm2, grid, random, tpe, gp, asha ..."),
    target: float | None = option("--target", "Quality that is good enough."),
    energy: Energy = None,
    time: Time = None,
    trials: Trials = None,
    epochs: float | None = option("--epochs", "Epochs of one training at most."),
    scope: str | None = option("--scope", "Energy of gpu, cpu, dram or node."),
    parallel: str | None = option(
        "--parallel GPUS", "Train side by side: 2, groups such as 0,1;2,3, or ray[:SLOTSxGPUS]."
    ),
    seed: int | None = option("--seed", "Of everything random."),
    name: str | None = option("--name -n", "What it is called."),
    new: bool = option("--new", "Start a new search, even if the same one is unfinished."),
    resume: bool = option("--resume", "Only resume an unfinished search."),
    given: MeterOptions,
) -> None:
    """Search, and show the best configuration.

    The same specification and command resumes a stopped search; finished trials are not repeated.
    """
    from wattloop.cli.commands.tune.view import progress
    from wattloop.core.yaml_spec import read_yaml
    from wattloop.store.database import open_store
    from wattloop.tune.search_setup import prepare_search
    from wattloop.tune.spec import given_fields, spec_from

    settings = given.settings()
    source = read_yaml(spec)
    data = dict(source.data) | given_fields(name=name, seed=seed, scope=scope, strategy=strategy)
    if strategy is not None:
        data.pop("method", None)
    data |= given_fields(command=user_command(ctx) or None)
    limits = given_fields(energy=energy, time=time, trials=trials, epochs=epochs)
    if limits:
        own = data.get("limits")
        known = dict(own) if isinstance(own, Mapping) else {}
        if "time" in limits:
            known.pop("deadline", None)  # another word for it
        if "trials" in limits:
            data.pop("run_cap", None)
        data["limits"] = {**known, **limits}
    if target is not None:
        metric = data.get("metric")
        written = metric if isinstance(metric, Mapping) else {"name": metric}
        data["metric"] = {**written, "target": target}
    search = spec_from(data, source)
    for note in (*search.notes, *search.remarks):
        say(f"wattloop: {spec}: {note}")
    with open_store(settings.store_location) as store:
        with progress(search) as listener:
            ready = prepare_search(
                search,
                store,
                settings,
                resume=not new,
                resume_only=resume,
                parallel=parallel,
                listener=listener,
            )
            if not ready.is_resumed and not new:
                _say_known(ready, store)
            _run(ready)
        _show(ready, store, given.json_file)


def _say_known(ready: "PreparedSearch", store: "Store") -> None:
    """Tell the user that an equal search exists and how to resume it."""
    from wattloop.store.experiments import same_experiments

    own = ready.experiment
    for known in same_experiments(store, own.fingerprint):
        if known.experiment_id != own.experiment_id and known.status == "finished":
            say(
                f"wattloop: {known.experiment_id} searched the same to its end: 'wattloop tune "
                "show' has what it found; this is another search"
            )
            return


def _run(ready: "PreparedSearch") -> None:
    verb = "going on with" if ready.is_resumed else "beginning"
    if ready.is_over:
        verb = "nothing is left to train in"
    say(f"wattloop: {verb} {ready.experiment.experiment_id}")
    for name, reason in ready.without.items():
        say(f"wattloop: the search goes on without {name}: {reason}")
    try:
        stopped = ready.run()
    except (KeyboardInterrupt, SystemExit):
        say("wattloop: interrupted; finished trials are stored, 'wattloop tune resume' continues")
        raise
    if stopped.limit:
        say(f"wattloop: stopped: {stopped.limit}; the best so far stands")


def _show(ready: "PreparedSearch", store: "Store", json_file: str | None) -> None:
    from wattloop.cli.commands.tune.view import print_found, result_of
    from wattloop.report.stored_results import read_search
    from wattloop.store.experiments import find_experiment

    experiment = find_experiment(store, ready.experiment.experiment_id)
    found, summary = read_search(store, experiment)
    present(
        json_file,
        lambda: result_of(found, summary, experiment),
        lambda: print_found(found, summary, experiment),
    )
    if found and summary.failed == len(found):
        said = next((text for one in found for text in one.messages), "")
        say("wattloop: every configuration failed" + (f"; the first: {said}" if said else ""))
        raise typer.Exit(1)


@app.command("resume", example="wattloop tune resume last")
def resume_command(
    which: str | None = argument("[SEARCH]", "Unless given, the last one that is unfinished."),
    *,
    energy: Energy = None,
    time: Time = None,
    trials: Trials = None,
    given: MeterOptions,
) -> None:
    """Resume a stopped or killed search, optionally with other limits."""
    from wattloop.cli.commands.tune.view import progress
    from wattloop.store.database import open_store
    from wattloop.tune.search_setup import resume_search
    from wattloop.tune.spec import given_fields

    settings = given.settings()
    limits = given_fields(energy=energy, time=time, trials=trials)
    with open_store(settings.store_location) as store:
        say_which(store, which or "last", KIND)
        with progress() as listener:
            ready = resume_search(which, store, settings, limits=limits, listener=listener)
            listener.about(ready.spec)
            _run(ready)
        _show(ready, store, given.json_file)


def _list_row(place: "Store", search: "Experiment") -> "tuple[Experiment, SearchSummary]":
    from wattloop.report.stored_results import read_search
    from wattloop.tune.results import summarize_search
    from wattloop.tune.search_store import OVER

    if search.status in OVER:
        return search, summarize_search(place, search)
    return search, read_search(place, search)[1]  # one that was killed wrote no best down


def _list_table(rows: "Sequence[tuple[Experiment, SearchSummary]]") -> Table:
    from wattloop.cli.commands.tune.view import list_table

    return list_table(rows)


add_list_command(
    app,
    KIND,
    plural="searches",
    example="wattloop tune run search.yaml -- python train.py --lr {lr}",
    row=_list_row,
    as_dict=lambda row: row[1].to_dict(),
    table=_list_table,
)


@app.command("show", example="wattloop tune show")
def show_command(
    which: Which = "last",
    *,
    figures: str | None = option("--figures DIR", "Draw how sm2 went into this folder."),
    given: StoreOptions,
) -> None:
    """Show the configurations of a search, the best first."""
    from wattloop.cli.commands.tune import view

    with stored(KIND, which, given) as found:
        if figures is not None:
            view.drawable(found[1], figures)
        given.present(lambda: view.result_dict(*found), lambda: view.print_summary(*found))
        if figures is not None:
            view.draw(*found, figures)


@app.command("best", example="wattloop tune best -j")
def best_command(which: Which = "last", *, given: StoreOptions) -> None:
    """Show the best configuration of a search."""
    from wattloop.cli.commands.tune import view
    from wattloop.report.stored_results import read_search

    with stored(KIND, which, given) as (place, experiment):
        _, summary = read_search(place, experiment)
        given.present(lambda: view.best_dict(summary), lambda: view.print_best(summary))


@app.command("export", example="wattloop tune export last -o trials.csv")
def export_command(
    which: Which = "last",
    *,
    csv_file: str | None = file_option(
        "--csv -o FILE", "A row per configuration; - is the output."
    ),
    optuna_file: str | None = file_option(
        "--optuna FILE.db", "A study that optuna-dashboard opens; or FILE.log."
    ),
    epochs: bool = option("--epochs", "A row per epoch: time, energy, power, metrics."),
    given: StoreOptions,
) -> None:
    """Write every configuration as CSV (default), JSON or an Optuna study."""
    from wattloop.cli.commands.tune import view
    from wattloop.store.experiments import each_trial
    from wattloop.tune.results import epoch_rows, search_table

    if csv_file is None and given.json_file is None and optuna_file is None:
        csv_file = "-"
    with stored(KIND, which, given) as (place, experiment):
        if given.json_file is not None:
            write_json(view.result_dict(place, experiment), given.json_file)
        if csv_file is not None:
            if epochs:
                rows = epoch_rows(each_trial(place, experiment.experiment_id))
            else:
                rows = search_table(place, experiment.experiment_id)
            columns = list(dict.fromkeys(name for row in rows for name in row)) or ["candidate"]
            write_text(csv_text(columns, rows), csv_file, "--csv")
        if optuna_file is not None:
            view.write_study(place, experiment.experiment_id, optuna_file, given.config)


@app.command("final", example="wattloop tune final")
def final_command(
    which: str = argument("SEARCH", "Identifier, its beginning, name or 'last'.", "last"),
    *,
    to_the_end: bool = option("--to-the-end", "Go on after the target was reached."),
    from_importances: bool = option(
        "--from-importances", "Train the best value of each parameter, not the winner."
    ),
    given: MeterOptions,
) -> None:
    """Train the best configuration in full, measure it, and show when the search pays off."""
    from wattloop.cli.commands.tune.view import best_values, busy, print_final
    from wattloop.store.database import open_store
    from wattloop.store.experiments import find_experiment
    from wattloop.tune.final import train_final

    settings = given.settings()
    with open_store(settings.store_location) as place:
        say_which(place, which, KIND)
        search = find_experiment(place, which, KIND)
        which_one, chosen = "configuration", None
        if from_importances:
            which_one, chosen = "value of each parameter", best_values(place, search)
        what = f"training the best {which_one} of {search.name or search.experiment_id} in full"
        with busy(f"{what}, and the default for comparison"):
            result = train_final(
                search.experiment_id, place, settings, to_the_end=to_the_end, configuration=chosen
            )
    present(given.json_file, result.to_dict, lambda: print_final(result))


app.command(
    "replay",
    example="wattloop tune replay --power power.csv --train train.csv --strategy race",
    epilog=REPLAY_FIGURES,
)(replay_command)


app.add_plot("tune", "SEARCH", ("pareto",), "quality against energy")
