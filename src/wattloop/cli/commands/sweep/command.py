"""Commands of `wattloop sweep`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattloop.cli.app import RUN, UsualCommandGroup
from wattloop.cli.experiments import NAMED, Listing, list_stored, say_which, stored
from wattloop.cli.experiments import which as which_one
from wattloop.cli.options import Config, Devices, Interval, JsonFile, Meters, StorePlace
from wattloop.cli.output import check_target, write_json, write_text
from wattloop.core.errors import ConfigError
from wattloop.store.experiments import read_trials
from wattloop.store.formats.csv_file import csv_text
from wattloop.sweep.result import SweepResult
from wattloop.trials.trial import SCOPES

if TYPE_CHECKING:
    from wattloop.store.database import Store


def export(result: SweepResult, store: "Store", what: str, target: str) -> None:
    """Return one row per trial, warm-ups and outliers marked, or one per point."""
    if what not in ("trials", "points"):
        raise ConfigError(f"--what {what}: unknown; choose trials or points")
    rows = _trial_rows(result, store) if what == "trials" else _point_rows(result)
    if target.endswith(".json"):
        write_json(rows, target, "--output")
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write_text(csv_text(columns, rows), target, "--output")


def _trial_rows(result: SweepResult, store: "Store") -> list[dict[str, Any]]:
    outlying = {
        key
        for point in result.points
        for key, out in zip(point.keys, point.repeated.outlying, strict=True)
        if out
    }
    rows = []
    for trial in read_trials(store, result.experiment.experiment_id):
        point, outcome = trial.settings["point"], trial.outcome
        row: dict[str, Any] = {
            "number": trial.number,
            "key": trial.key,
            "status": trial.status,
            "workload": point["workload"],
            "library": point["library"],
            "gpus": point["gpus"],
            **point["levels"],
            "is_default": point["is_default"],
            "warm_up": not str(trial.settings["repeat"]).isdecimal(),
            "outlier": trial.key in outlying,
            "time_s": outcome.get("time_s"),
            "program_s": outcome.get("lasted_s"),
        }
        for scope in SCOPES:
            found = outcome.get("scopes", {}).get(scope, {})
            for name in ("energy_j", "average_w", "peak_w", "provenance"):
                row[f"{scope}_{name}"] = found.get(name)
        rows.append(row | {"run_id": trial.run_id, "message": outcome.get("message", "")})
    return rows


def _point_rows(result: SweepResult) -> list[dict[str, Any]]:
    rows = []
    for point in result.summary()["points"]:
        row = {k: point[k] for k in ("workload", "library", "gpus")} | dict(point["levels"])
        row |= {k: point[k] for k in ("is_default", "runs", "used", "temperature_c")}
        row |= _spelled("time_s", point["time_s"])
        for name in ("energy_j", "average_w", "peak_w"):
            for scope, value in point[name].items():
                row |= _spelled(f"{scope}_{name}", value)
        for metric, gain in point["gains"].items():
            row |= {
                f"{metric}_gain_pct": gain["value_pct"],
                f"{metric}_gain_half_width_pct": gain["half_width_pct"],
            }
        rows.append(row | {"scope": result.scope, "provenance": result.provenance})
    return rows


def _spelled(name: str, value: dict[str, Any] | None) -> dict[str, Any]:
    found = value or {}
    return {
        f"{name}_mean": found.get("mean"),
        f"{name}_sd": found.get("sd"),
        f"{name}_half_width": found.get("half_width"),
    }


KIND = "sweep"


Which = Annotated[str, which_one("SWEEP")]


Several = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SWEEP]...", help=f"Each by {NAMED}."),
]


Figures = Annotated[
    str | None, typer.Option("--figures", metavar="DIR", help="Draw figures into this folder.")
]


Scope = Annotated[str | None, typer.Option("--scope", help="Energy of gpu, cpu, dram or node.")]


def list_command(
    json_file: JsonFile = None, store: StorePlace = None, config: Config = None
) -> None:
    """Show sweeps, newest first."""
    from wattloop.cli.commands.sweep import view
    from wattloop.store.experiments import read_trials

    sweeps = Listing(
        kind=KIND,
        plural="sweeps",
        example="wattloop sweep --cap 50%:100%:10% -- python train.py",
        row=lambda place, experiment: (experiment, read_trials(place, experiment.experiment_id)),
        as_dict=lambda row: view.brief(*row),
        print_rows=view.print_list,
    )
    list_stored(sweeps, json_file, store, config)


def show_command(
    which: Several = None,
    *,
    scope: Scope = None,
    tables: Annotated[
        str,
        typer.Option(
            "--tables",
            metavar="LIST",
            help="Of points, best, techniques, powers, scaling, synthesis; or all.",
        ),
    ] = "points,best",
    figures: Figures = None,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Show points with means and intervals, the best per metric, and further tables.

    Several sweeps make one table, by workload and library.
    """
    from wattloop.cli.commands.sweep import view
    from wattloop.cli.stored_runs import opened
    from wattloop.report.stored_results import stored_sweep

    check_target(json_file, "--json")
    wanted = view.tables_from(tables)
    with opened(store, config) as place:
        for name in which or ():
            say_which(place, name, KIND)
        results = [stored_sweep(place, name, scope) for name in which or ["last"]]
        if json_file is not None:
            data = [view.as_dict(result) for result in results]
            write_json(data[0] if len(data) == 1 else data, json_file)
        if json_file != "-":
            view.print_results(results, wanted)
        if figures is not None:
            from wattloop.cli.commands.sweep.view import draw

            draw(results, place, figures)


def export_command(
    which: Which = "last",
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help=".csv or .json; - is CSV.")
    ] = "-",
    what: Annotated[
        str, typer.Option("--what", help="trials (one row each) or points (means).")
    ] = "trials",
    scope: Scope = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Write every trial, or the means, as CSV or JSON."""
    from wattloop.report.stored_results import stored_sweep

    check_target(output, "--output")
    with stored(KIND, which, store, config) as (place, experiment):
        export(stored_sweep(place, experiment.experiment_id, scope), place, what, output)


COMMAND = "wattloop.sweep.command"


class SweepGroup(UsualCommandGroup):
    """Command group in which `sweep SPEC -- CMD` means `sweep run SPEC -- CMD`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split the user's command off; insert `run` where no command is left."""
        if "--" in args:
            end = args.index("--")
            args, ctx.meta[COMMAND] = args[:end], args[end + 1 :]
            args = args or [RUN]
        return list(super().parse_args(ctx, args))


app = typer.Typer(
    cls=SweepGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Try power caps, clocks, governors and GPU counts on a command; find the best.",
    epilog="Examples: wattloop sweep caps.yaml -- python train.py; "
    "wattloop sweep --cap 100:260:10 --gpus 1,2,4,8 -- python train.py --gpus {gpus}.",
)


ShowOutput = Annotated[
    bool, typer.Option("--show-output", help="Show what the command prints instead of keeping it.")
]


RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Run again what failed before.")]


@app.command(RUN)
def run_command(  # noqa: PLR0913 - one parameter per option
    ctx: typer.Context,
    spec: Annotated[
        str | None, typer.Argument(metavar="[SPEC.yaml]", help="What to vary, and how.")
    ] = None,
    *,
    cap: Annotated[
        str | None,
        typer.Option(
            "--cap", metavar="VALUES", help="GPU power caps: 100:260:10, 150,200 or 50%:100%:10%."
        ),
    ] = None,
    clock: Annotated[
        str | None, typer.Option("--clock", metavar="VALUES", help="GPU clocks in MHz.")
    ] = None,
    lever: Annotated[
        list[str] | None,
        typer.Option(
            "--lever", metavar="NAME=VALUES", help="Any lever, such as cpu/governor=powersave."
        ),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="LIST", help="Numbers of GPUs, such as 1,2,4,8.")
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option("--kernel", metavar="NAME[/BACKEND]", help="Sweep a kernel of 'bench'."),
    ] = None,
    repeats: Annotated[
        str | None,
        typer.Option("--repeats", metavar="N or MIN:MAX", help="Runs of each point (default: 3)."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="PCT", help="Stop repeating at this half-width, in %."),
    ] = None,
    combine: Annotated[
        str | None, typer.Option("--combine", help="grid of all levers, or each on its own.")
    ] = None,
    warmup: Annotated[int | None, typer.Option("--warmup", help="Runs before the first.")] = None,
    cooldown: Annotated[
        float | None,
        typer.Option("--cooldown", metavar="DEGREES", help="Wait until this near to idle warmth."),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="End a run after 90 or 10min.")
    ] = None,
    order: Annotated[str | None, typer.Option("--order", help="random or listed.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the random order.")] = None,
    window: Annotated[
        str | None,
        typer.Option(
            "--window", metavar="NAME", help="Count only wattloop.measure(NAME) in the command."
        ),
    ] = None,
    scope: Scope = None,
    metric: Annotated[str | None, typer.Option("--metric", help="What to be best at.")] = None,
    k: Annotated[float | None, typer.Option("--k", help="For the metric eds.")] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="What it is called.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List every point and every write; run nothing.")
    ] = False,
    new: Annotated[
        bool, typer.Option("--new", help="Start a new sweep, even if the same one is unfinished.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Only resume an unfinished sweep.")
    ] = False,
    retry_failed: RetryFailed = False,
    show_output: ShowOutput = False,
    figures: Figures = None,
    json_file: JsonFile = None,
    interval: Interval = None,
    devices: Devices = None,
    meters: Meters = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Run and measure a command at every setting, and show the best.

    The same specification and command resumes a stopped sweep.
    """
    from wattloop.cli.commands.sweep.execution import SweepRequest, execute
    from wattloop.cli.settings import settings_of

    check_target(json_file, "--json")
    settings = settings_of(config, interval=interval, devices=devices, meters=meters, store=store)
    request = SweepRequest(
        spec_file=spec,
        command=ctx.meta.get(COMMAND, []),
        levers={"--cap": cap, "--clock": clock},
        named_levers=lever or [],
        kernels=kernel or [],
        gpus=gpus,
        repeats=repeats,
        target=target,
        cooldown_c=cooldown,
        fields={
            "combine": combine,
            "warmup": warmup,
            "timeout": timeout,
            "order": order,
            "seed": seed,
            "window": window,
            "scope": scope,
            "metric": metric,
            "k": k,
            "name": name,
        },
        settings=settings,
        dry_run=dry_run,
        new=new,
        resume_only=resume,
        retry_failed=retry_failed,
        show_output=show_output,
        figures=figures,
        json_file=json_file,
    )
    execute(request)


@app.command("resume")
def resume_command(
    which: Annotated[
        str | None,
        typer.Argument(metavar="[SWEEP]", help="Unless given, the last one that is unfinished."),
    ] = None,
    *,
    retry_failed: RetryFailed = False,
    show_output: ShowOutput = False,
    figures: Figures = None,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Resume a stopped sweep."""
    from wattloop.cli.commands.sweep.execution import SweepRequest, execute_stored
    from wattloop.cli.settings import settings_of

    check_target(json_file, "--json")
    request = SweepRequest(
        settings=settings_of(config, store=store),
        retry_failed=retry_failed,
        show_output=show_output,
        figures=figures,
        json_file=json_file,
    )
    execute_stored(which, request)


for name, looking in (("list", list_command), ("show", show_command), ("export", export_command)):
    app.command(name)(looking)
