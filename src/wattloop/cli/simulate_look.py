"""`wattloop simulate list`, `show` and `export`: campaigns of before."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattloop.cli.experiment_list import Listing, list_stored, show_stored, stored
from wattloop.cli.experiment_list import which as which_one
from wattloop.cli.options import Config, JsonFile, StorePlace
from wattloop.cli.output import check_target, print_table, write_json, write_text
from wattloop.store.formats.csv_file import csv_text

if TYPE_CHECKING:
    from wattloop.store.database import Store
    from wattloop.store.experiments import Experiment

__all__ = ["export_command", "list_command", "show_command"]

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
    """Show what came of a campaign; of an unfinished one, so far."""
    from wattloop.cli.simulate_view import campaign_dict, print_outcomes
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
    """Write every simulation of a campaign as CSV (unless told otherwise) or JSON."""
    from wattloop.cli.simulate_view import campaign_dict
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
    """Utilisation by type in columns of its own; what is no figure is left to JSON."""
    flat = []
    for row in rows:
        used = row.get("utilisation") or {}
        plain = {name: value for name, value in row.items() if not isinstance(value, dict | list)}
        flat.append(plain | {f"utilisation.{kind}": value for kind, value in used.items()})
    columns = list(dict.fromkeys(name for row in flat for name in row)) or ["policy", "seed"]
    return csv_text(columns, flat)
