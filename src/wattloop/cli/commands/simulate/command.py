"""Commands of `wattloop simulate`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattloop.cli.app import RUN, UsualCommandGroup
from wattloop.cli.commands.simulate.options import (
    Budget,
    CapCurves,
    Horizon,
    New,
    Seeds,
    Set,
    Throughputs,
    Trace,
    Variant,
    Workers,
)
from wattloop.cli.commands.simulate.whatif import whatif_command
from wattloop.cli.experiments import Listing, list_stored, show_stored, stored
from wattloop.cli.experiments import which as which_one
from wattloop.cli.options import Config, JsonFile, StorePlace
from wattloop.cli.output import check_target, print_table, say, write_json, write_text
from wattloop.core.errors import ConfigError
from wattloop.core.paths import user_path
from wattloop.core.units import format_number
from wattloop.store.formats.csv_file import csv_text

if TYPE_CHECKING:
    from wattloop.store.database import Store
    from wattloop.store.experiments import Experiment


def scenarios_command(*, json_file: JsonFile = None) -> None:
    """List the scenarios that come with Wattloop."""
    from wattloop.schedule.scenarios.file import shipped_scenarios

    check_target(json_file, "--json")
    known = shipped_scenarios()
    if json_file is not None:
        write_json(known, json_file)
    if json_file != "-":
        print_table(("scenario", "what it is"), list(known.items()))


def policies_command(*, json_file: JsonFile = None) -> None:
    """List the policies, what each ranks jobs by, and its parameters."""
    from dataclasses import asdict

    from wattloop.schedule.policies.registry import describe

    check_target(json_file, "--json")
    cards = describe()
    if json_file is not None:
        write_json([asdict(card) for card in cards], json_file)
    if json_file != "-":
        rows = [
            (
                card.name,
                card.summary,
                ", ".join(f"{name}: {_short(value)}" for name, value in card.parameters.items()),
            )
            for card in cards
        ]
        print_table(("policy", "what it does", "parameters"), rows)


def init_command(
    target: Annotated[
        str, typer.Argument(metavar="FILE.yaml", help="Where to; - is standard output.")
    ] = "scenario.yaml",
    *,
    json_file: JsonFile = None,
) -> None:
    """Write an example scenario to edit."""
    from wattloop.schedule.scenarios.file import SHIPPED

    check_target(json_file, "--json")
    check_target(target, "FILE")
    if target != "-" and user_path(target).exists():
        raise ConfigError(f"{target}: is there already; name another file, or remove it")
    text = SHIPPED.with_name("example.yaml").read_text(encoding="utf-8")
    write_text(text, target, "FILE")
    if json_file is not None:
        write_json({"file": target}, json_file)
    if target != "-":
        say(f"wattloop: {target} is written; edit it, then: wattloop simulate {target}")


def _short(value: object) -> str:
    """Format 1/600 as 0.00167."""
    return format_number(value, 3) if isinstance(value, float) else str(value)


KIND = "campaign"


Which = Annotated[str, which_one("CAMPAIGN")]


def list_command(
    json_file: JsonFile = None, store: StorePlace = None, config: Config = None
) -> None:
    """Show campaigns, newest first."""
    campaigns = Listing(
        kind=KIND,
        plural="campaigns",
        example="wattloop simulate thesis-pareto --policies fifo,pollux,zeus",
        row=_row,
        as_dict=dict,
        print_rows=_print_list,
    )
    list_stored(campaigns, json_file, store, config)


def show_command(
    which: Which = "last",
    *,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Show the results of a campaign, also of an unfinished one."""
    from wattloop.cli.commands.simulate.view import campaign_dict, print_outcomes
    from wattloop.schedule.campaigns.store import known_outcomes

    check_target(json_file, "--json")
    with stored(KIND, which, store, config) as (place, experiment):
        outcomes = known_outcomes(place, experiment)
        show_stored(
            (place, experiment),
            json_file,
            lambda _, campaign: campaign_dict(campaign, outcomes),
            lambda _, campaign: print_outcomes(campaign, outcomes),
        )


def export_command(
    which: Which = "last",
    *,
    csv_file: Annotated[
        str | None,
        typer.Option("--csv", metavar="FILE", help="A row per policy and seed; - is the output."),
    ] = None,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Write every simulation of a campaign as CSV (default) or JSON."""
    from wattloop.cli.commands.simulate.view import campaign_dict
    from wattloop.schedule.campaigns.store import known_outcomes
    from wattloop.schedule.campaigns.summary import per_cell

    csv_file = "-" if csv_file is None and json_file is None else csv_file
    check_target(csv_file, "--csv")
    check_target(json_file, "--json")
    with stored(KIND, which, store, config) as (place, experiment):
        outcomes = known_outcomes(place, experiment)
    if json_file is not None:
        write_json(campaign_dict(experiment, outcomes), json_file)
    if csv_file is not None:
        write_text(_csv(per_cell(outcomes)), csv_file, "--csv")


def _row(place: "Store", experiment: "Experiment") -> dict[str, Any]:
    from wattloop.schedule.campaigns.store import known_outcomes
    from wattloop.store.tables import iso_time

    return {
        "campaign": experiment.experiment_id,
        "scenario": experiment.name,
        "status": experiment.status,
        "simulations": len(known_outcomes(place, experiment)),
        "policies": experiment.spec.get("policies", []),
        "seeds": experiment.spec.get("seeds", ""),
        "created": iso_time(experiment.created_wall_s),
    }


def _print_list(rows: Sequence[dict[str, Any]]) -> None:
    headers = ("campaign", "scenario", "status", "simulations", "policies", "seeds")
    texts = [
        tuple(", ".join(r[h]) if h == "policies" else str(r[h]) for h in headers) for r in rows
    ]
    print_table(headers, texts, spare=("seeds", "policies"))


def _csv(rows: list[dict[str, Any]]) -> str:
    """Return one row: utilisation by type in columns; non-numeric values are in JSON only."""
    flat = []
    for row in rows:
        used = row.get("utilisation") or {}
        plain = {name: value for name, value in row.items() if not isinstance(value, dict | list)}
        flat.append(plain | {f"utilisation.{kind}": value for kind, value in used.items()})
    columns = list(dict.fromkeys(name for row in flat for name in row)) or ["policy", "seed"]
    return csv_text(columns, flat)


app = typer.Typer(
    cls=UsualCommandGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Compare scheduling policies on a simulated GPU cluster: energy, waiting, deadlines.",
    epilog="Examples: wattloop simulate thesis-pareto --policies fifo,pollux,zeus --seeds 10; "
    "wattloop simulate whatif thesis-pareto --replace a100=h100.",
)


@app.command(RUN)
def run_command(  # noqa: PLR0913 - one parameter per option
    scenario: Annotated[
        str,
        typer.Argument(metavar="SCENARIO", help="YAML file, or a shipped one by its name."),
    ],
    *,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            "-p",
            metavar="LIST",
            help="Such as fifo,pollux,zeus{age_weight_per_s: 0.01}; 'all' is every one "
            "(default: the scenario's).",
        ),
    ] = None,
    max_delay: Annotated[
        str | None,
        typer.Option(
            "--max-delay",
            metavar="SHARE",
            help="How much longer than at full power jobs may take under helios, such as 10%.",
        ),
    ] = None,
    seeds: Seeds = None,
    workers: Workers = None,
    variant: Variant = None,
    trace: Trace = None,
    budget: Budget = None,
    horizon: Horizon = None,
    throughputs: Throughputs = None,
    cap_curves: CapCurves = None,
    changes: Set = None,
    check: Annotated[
        bool, typer.Option("--check", help="Look after every event that all invariants hold.")
    ] = False,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="FOLDER", help="Draw what came of it (SVG, PNG, HTML)."),
    ] = None,
    new: New = False,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Simulate policies on the same seeds, and compare them.

    Every finished simulation is stored: the same command resumes a stopped campaign, and computes
    nothing twice.
    """
    from wattloop.cli.commands.simulate.execution import SimulateRequest, execute
    from wattloop.cli.settings import settings_of
    from wattloop.core.settings import STORE

    check_target(json_file, "--json")
    execute(
        SimulateRequest(
            scenario=scenario,
            settings=settings_of(config, needs=STORE, store=store),
            policies=policies,
            max_delay=max_delay,
            seeds=seeds,
            workers=workers,
            variant=variant,
            trace=trace,
            budget=budget,
            horizon=horizon,
            throughputs=throughputs or [],
            cap_curves=cap_curves or [],
            changes=changes or [],
            check=check,
            plot=plot,
            new=new,
            json_file=json_file,
        )
    )


for word, command in (
    ("whatif", whatif_command),
    ("list", list_command),
    ("show", show_command),
    ("export", export_command),
    ("scenarios", scenarios_command),
    ("policies", policies_command),
    ("init", init_command),
):
    app.command(word)(command)
