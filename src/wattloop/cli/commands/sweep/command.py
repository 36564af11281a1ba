"""Commands of `wattloop sweep`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattloop.accounting.summary import parse_gpu_price
from wattloop.cli.app import (
    RUN,
    MeterOptions,
    StoreOptions,
    UserCommandGroup,
    UsualCommandGroup,
    Verb,
    user_command,
)
from wattloop.cli.options import Config, Price, StorePlace, argument, file_option, option
from wattloop.cli.output import present, say, write_json, write_text
from wattloop.cli.stored import NAMED, add_list_command, say_which, stored
from wattloop.cli.stored import which as which_one
from wattloop.core.clock import RealClock
from wattloop.core.errors import ConfigError, ExperimentNotFound
from wattloop.core.records import picked
from wattloop.core.settings import Settings
from wattloop.core.table import Table, records_csv
from wattloop.core.units import iso_time
from wattloop.core.yaml_spec import YamlWithLines, read_yaml
from wattloop.store.database import Store, open_store
from wattloop.store.experiments import Experiment, find_experiment, list_experiments, read_trials
from wattloop.sweep.result import SweepResult
from wattloop.sweep.spec import SweepSpec, parse_sweep_spec
from wattloop.trials.trial import SCOPES

if TYPE_CHECKING:
    from wattloop.sweep.plan import SweepPlan

KIND = "sweep"
KERNEL_WINDOW = "kernel"
Which = Annotated[str, which_one("SWEEP")]
Several = Annotated[list[str] | None, argument("SWEEP", f"Each by {NAMED}.")]
Figures = Annotated[str | None, option("--figures DIR", "Draw figures into this folder.")]
Scope = Annotated[str | None, option("--scope", "Energy of gpu, cpu, dram or node.")]


class SweepCommands(UserCommandGroup, UsualCommandGroup):
    """Command group in which `sweep SPEC -- CMD` means `sweep run SPEC -- CMD`."""


app = Verb(
    "Try power caps, clocks, governors and GPU counts on a command; find the best.",
    example="wattloop sweep caps.yaml -- python train.py\nwattloop sweep show",
    cls=SweepCommands,
)


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions:
    """Options of a sweep that is run or resumed."""

    retry_failed: Annotated[bool, option("--retry-failed", "Run again what failed before.")] = False
    show_output: Annotated[
        bool, option("--show-output", "Show what the command prints instead of keeping it.")
    ] = False
    figures: Figures = None
    price: Price = None

    def check_drawable(self) -> None:
        """Report a missing library or unwritable folder before hours are spent."""
        if self.figures is not None:
            from wattloop.report.figures.render import check_drawable

            check_drawable(self.figures)


@app.command(
    RUN,
    example="wattloop sweep caps.yaml -- python train.py\n"
    "wattloop sweep --cap 100:260:10 --gpus 1,2,4,8 -- python train.py --gpus {gpus}",
)
def run_command(  # noqa: PLR0913 - one parameter per option
    ctx: typer.Context,
    spec: str | None = argument("SPEC.yaml", "What to vary, and how."),
    *,
    cap: str | None = option(
        "--cap VALUES", "GPU power caps: 100:260:10, 150,200 or 50%:100%:10%."
    ),
    clock: str | None = option("--clock VALUES", "GPU clocks in MHz."),
    lever: list[str] | None = option(
        "--lever NAME=VALUES", "Any lever, such as cpu/governor=powersave."
    ),
    gpus: str | None = option("--gpus LIST", "Numbers of GPUs, such as 1,2,4,8."),
    kernel: list[str] | None = option("--kernel NAME[/BACKEND]", "Sweep a kernel of 'bench'."),
    repeats: str | None = option("--repeats N or MIN:MAX", "Runs of each point (default: 3)."),
    target: str | None = option("--target PCT", "Stop repeating at this half-width, in %."),
    combine: str | None = option("--combine", "grid of all levers, or each on its own."),
    warmup: int | None = option("--warmup", "Runs before the first."),
    cooldown: float | None = option("--cooldown DEGREES", "Wait until this near to idle warmth."),
    timeout: str | None = option("--timeout TIME", "End a run after 90 or 10min."),
    order: str | None = option("--order", "random or listed."),
    seed: int | None = option("--seed", "Of the random order."),
    window: str | None = option(
        "--window NAME", "Count only wattloop.measure(NAME) in the command."
    ),
    scope: Scope = None,
    metric: str | None = option("--metric", "What to be best at."),
    k: float | None = option("--k", "For the metric eds."),
    name: str | None = option("--name -n", "What it is called."),
    dry_run: bool = option("--dry-run", "List every point and every write; run nothing."),
    new: bool = option("--new", "Start a new sweep, even if the same one is unfinished."),
    resume: bool = option("--resume", "Only resume an unfinished sweep."),
    how: ExecutionOptions,
    given: MeterOptions,
) -> None:
    """Run and measure a command at every setting, and show the best.

    The same specification and command resumes a stopped sweep.
    """
    from wattloop.sweep.runner import open_sweep

    settings = given.settings()
    source = None if spec is None else read_yaml(spec)
    data: dict[str, Any] = {} if source is None else dict(source.data)
    levers = _levers({"gpu/power_limit": cap, "gpu/sm_clock": clock}, lever or [])
    if levers:
        own = data.get("levers")
        data["levers"] = {**(own if isinstance(own, Mapping) else {}), **levers}
    fields = {
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
        "command": user_command(ctx) or None,
        "cooldown": None if cooldown is None else {"within": cooldown},
        "gpus": None if gpus is None else _counts(gpus),
        "repeats": _repeats(repeats, target, data.get("repeats")),
    }
    data |= {name: value for name, value in fields.items() if value is not None}
    if kernel:
        window = str(data.setdefault("window", KERNEL_WINDOW))
        data["workloads"] = {name: _kernel_command(name, window) for name in kernel}
    plan = plan_here(parse_sweep_spec(data, source), source, settings)
    if dry_run:
        from wattloop.cli.commands.sweep.view import plan_dict, print_plan

        present(given.json_file, lambda: plan_dict(plan), lambda: print_plan(plan))
        return
    how.check_drawable()
    with open_store(settings.store_location) as store:
        experiment, resumed = open_sweep(store, plan, RealClock(), resume=not new, only=resume)
        _run(plan, experiment, store, settings, how, given.json_file, resumed=resumed)


def _levers(usual: Mapping[str, str | None], named: list[str]) -> dict[str, str]:
    levers = {name: values for name, values in usual.items() if values is not None}
    for pair in named:
        name, separator, values = pair.partition("=")
        if not separator or not values:
            raise ConfigError(f"--lever {pair}: write NAME=VALUES, such as cpu/governor=powersave")
        levers[name.strip()] = values.strip()
    return levers


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"--gpus {text}: write numbers with commas, such as 1,2,4,8") from None


def _repeats(repeats: str | None, target: str | None, own: Any) -> dict[str, Any] | None:
    """Return the rule of the options over that of the file; None without options."""
    if repeats is None and target is None:
        return None
    rule: dict[str, Any] = dict(own) if isinstance(own, Mapping) else {}
    if isinstance(own, int):
        rule = {"min": own, "max": own}
    if repeats is not None:
        low, _, high = repeats.partition(":")
        try:
            rule |= {"min": int(low), "max": int(high or low)}
        except ValueError:
            raise ConfigError(
                f"--repeats {repeats}: write a number, or MIN:MAX such as 3:10"
            ) from None
    if target is not None:
        rule["target"] = target
        rule.setdefault("max", 10)
    return rule


def _kernel_command(name: str, window: str) -> list[str]:
    """Return a program that does a fixed amount of work of a `bench` kernel."""
    from wattloop.kernels.registry import work_command

    kernel, _, backend = name.partition("/")
    return [*work_command(kernel, backend), "--window", window]


def plan_here(spec: "SweepSpec", source: "YamlWithLines | None", settings: Settings) -> "SweepPlan":
    """Plan the specification on this machine."""
    from wattloop.control.registry import find_levers
    from wattloop.hardware.host import Host
    from wattloop.meters.base import Context
    from wattloop.sweep.plan import make_axis, make_plan
    from wattloop.sweep.runner import Thermometer

    if not spec.levers and len(spec.gpus) < 2 and len(spec.workloads) < 2:
        raise ConfigError(
            "nothing to vary: name levers, such as --cap 50%:100%:10% or 'levers:' in the file, "
            "or several GPU counts; 'wattloop run' measures a command once"
        )
    context = Context(Host.from_environment(), settings)
    levers = find_levers(context, settings) if spec.levers else []
    axes = [
        make_axis(name, values, levers, "" if source is None else source.where(("levers", name)))
        for name, values in spec.levers.items()
    ]
    gpus_here = None
    if spec.gpus:
        with Thermometer(context) as thermometer:
            gpus_here = thermometer.gpus
        numbered = {n.partition("/")[0] for n in (lever.name for lever in levers)}
        gpus_here = max(gpus_here, sum(name.startswith("gpu:") for name in numbered))
    try:
        return make_plan(spec, axes, gpus_here)
    except ConfigError as error:
        where = "" if source is None or "gpus" not in str(error) else source.where(("gpus",)) + ": "
        raise ConfigError(f"{where}{error}") from None


@app.command("resume", example="wattloop sweep resume last")
def resume_command(
    which: str | None = argument("SWEEP", "Unless given, the last one that is unfinished."),
    *,
    how: ExecutionOptions,
    given: StoreOptions,
) -> None:
    """Resume a stopped sweep."""
    from wattloop.sweep.plan import fingerprint

    settings = given.settings(needs=None)
    how.check_drawable()
    with open_store(settings.store_location) as store:
        if which is None:
            experiment = _last_unfinished(store, retry_failed=how.retry_failed)
        else:
            experiment = find_experiment(store, which, KIND)
            say_which(store, which, KIND)
        plan = plan_here(parse_sweep_spec(experiment.spec), None, settings)
        if fingerprint(plan) != experiment.fingerprint:
            raise ConfigError(
                f"{experiment.experiment_id}: this machine does not offer the same points as when "
                "it was begun (other GPUs, limits or defaults); start a new sweep with its file"
            )
        _run(plan, experiment, store, settings, how, given.json_file, resumed=True)


def _last_unfinished(store: "Store", *, retry_failed: bool) -> "Experiment":
    last = find_experiment(store, "last", "sweep")
    for experiment in list_experiments(store, "sweep"):
        if experiment.status != "finished" or retry_failed:
            return experiment
    raise ExperimentNotFound(
        f"every sweep is finished; 'wattloop sweep show {last.experiment_id}' shows the last one"
    )


def _run(
    plan: "SweepPlan",
    experiment: "Experiment",
    store: "Store",
    settings: Settings,
    how: ExecutionOptions,
    json_file: str | None,
    *,
    resumed: bool,
) -> None:
    from wattloop.cli.commands.sweep import view
    from wattloop.sweep.runner import Sweep
    from wattloop.trials.experiment_lock import refuse_locked

    identity = experiment.experiment_id
    refuse_locked(store, identity)
    with view.progress(plan, identity, resumed=resumed) as listener:
        sweep = Sweep(
            plan,
            experiment,
            store,
            settings,
            listener=listener,
            outputs=None if how.show_output else store.outputs_folder(identity),
        )
        try:
            result = sweep.run(retry_failed=how.retry_failed)
        except (KeyboardInterrupt, SystemExit):
            say(
                f"wattloop: interrupted; what ended is kept, levers are as they were. Go on with: "
                f"wattloop sweep resume {identity}"
            )
            raise
    result = _priced(result, how.price, settings)
    present(
        json_file,
        lambda: view.as_dict(result),
        lambda: view.print_results([result], ("points", "best")),
    )
    if how.figures is not None:
        view.draw([result], store, how.figures)


def _priced(result: SweepResult, price: str | None, settings: Settings) -> SweepResult:
    if price is None:
        return result

    parsed = parse_gpu_price(price, settings)
    if "" not in parsed.per_hour:
        raise ConfigError(f"--price {price}: a sweep has one kind of GPU; give one price")
    return replace(result, price=parsed)


add_list_command(
    app,
    KIND,
    plural="sweeps",
    example="wattloop sweep --cap 50%:100%:10% -- python train.py",
    row=lambda place, experiment: (experiment, read_trials(place, experiment.experiment_id)),
    as_dict=lambda row: {
        **picked(row[0], "experiment_id name status created_wall_s"),
        "trials": len(row[1]),
        "ended": sum(trial.ended for trial in row[1]),
    },
    table=lambda rows: Table.from_records(
        rows,
        {
            "sweep": lambda row: row[0].experiment_id,
            "name": lambda row: row[0].name,
            "status": lambda row: row[0].status,
            "trials": lambda row: sum(trial.ended for trial in row[1]),
            "begun": lambda row: (iso_time(row[0].created_wall_s) or "")[:19].replace("T", " "),
        },
        spare=("begun", "name"),
    ),
)


@app.command("show", example="wattloop sweep show\nwattloop sweep show --tables all")
def show_command(
    which: Several = None,
    *,
    scope: Scope = None,
    tables: str = option(
        "--tables LIST",
        "Of points, best, techniques, powers, scaling, synthesis; or all.",
        "points,best",
    ),
    figures: Figures = None,
    price: Price = None,
    given: StoreOptions,
) -> None:
    """Show points with means and intervals, the best per metric, and further tables.

    Several sweeps make one table, by workload and library.
    """
    from wattloop.cli.commands.sweep import view
    from wattloop.report.stored_results import stored_sweep

    wanted = view.tables_from(tables)
    with given.open_store() as place:
        for name in which or ():
            say_which(place, name, KIND)
        settings = given.settings()
        results = [
            _priced(stored_sweep(place, name, scope), price, settings) for name in which or ["last"]
        ]

        def as_data() -> Any:
            data = [view.as_dict(result) for result in results]
            return data[0] if len(data) == 1 else data

        given.present(as_data, lambda: view.print_results(results, wanted))
        if figures is not None:
            view.draw(results, place, figures)


@app.command("export", example="wattloop sweep export last -o trials.csv")
def export_command(
    which: Which = "last",
    *,
    output: str = file_option("--output -o FILE", ".csv or .json; - is CSV.", "-"),
    what: str = option("--what", "trials (one row each) or points (means).", "trials"),
    scope: Scope = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Write every trial, or the means, as CSV or JSON."""
    from wattloop.report.stored_results import stored_sweep

    if what not in ("trials", "points"):
        raise ConfigError(f"--what {what}: unknown; choose trials or points")
    with stored(KIND, which, StoreOptions(store=store, config=config)) as (place, experiment):
        result = stored_sweep(place, experiment.experiment_id, scope)
        rows = _trial_rows(result, place) if what == "trials" else _point_rows(result)
    if output.endswith(".json"):
        write_json(rows, output, "--output")
    else:
        write_text(records_csv(rows), output, "--output")


def _trial_rows(result: SweepResult, store: "Store") -> list[dict[str, Any]]:
    from wattloop.store.runs import mean_efficiencies

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
            **picked(trial, "number key status"),
            **{name: point[name] for name in ("workload", "library", "gpus")},
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
    shares = mean_efficiencies(store, [[row["run_id"]] if row["run_id"] else [] for row in rows])
    return [row | share for row, share in zip(rows, shares, strict=True)]


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


app.add_plot("sweep", "SWEEP", ("energy",), "energy against the setting")
