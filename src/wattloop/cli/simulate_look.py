"""`wattloop simulate list`, `show` and `export`: campaigns of before."""

import csv
import io
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattloop.cli.options import Config, JsonFile, StorePlace
from wattloop.cli.output import check_target, print_table, say, write_json, write_text

if TYPE_CHECKING:
    from wattloop.schedule.campaigns.campaign import Outcomes

__all__ = ["export_command", "list_command", "show_command"]

Which = Annotated[
    str,
    typer.Argument(metavar="[CAMPAIGN]", help="Identifier, its beginning or end, name, or 'last'."),
]


def list_command(
    json_file: JsonFile = None, store: StorePlace = None, config: Config = None
) -> None:
    """Show campaigns, newest first."""
    from wattloop.cli.runs_store import opened_if_any
    from wattloop.schedule.campaigns.record import KIND, with_status_now
    from wattloop.schedule.campaigns.stored import known_outcomes
    from wattloop.store.experiments import list_experiments
    from wattloop.store.tables import iso_time

    check_target(json_file, "--json")
    rows: list[dict[str, Any]] = []
    with opened_if_any(store, config) as place:
        for stored in [] if place is None else list_experiments(place, KIND):
            assert place is not None
            experiment = with_status_now(place, stored)
            rows.append(
                {
                    "campaign": experiment.experiment_id,
                    "scenario": experiment.name,
                    "status": experiment.status,
                    "simulations": len(known_outcomes(place, experiment)),
                    "policies": experiment.spec.get("policies", []),
                    "seeds": experiment.spec.get("seeds", ""),
                    "created": iso_time(experiment.created_wall_s),
                }
            )
    if json_file is not None:
        write_json({"campaigns": rows}, json_file)
    if json_file == "-":
        return
    if not rows:
        say("no campaign yet; try: wattloop simulate thesis-pareto --policies fifo,pollux,zeus")
        return
    headers = ("campaign", "scenario", "status", "simulations", "policies", "seeds")
    texts = [
        tuple(", ".join(r[h]) if h == "policies" else str(r[h]) for h in headers) for r in rows
    ]
    print_table(headers, texts, spare=("seeds", "policies"))


def show_command(
    which: Which = "last",
    *,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Show what came of a campaign; of an unfinished one, so far."""
    from wattloop.cli.simulate_view import campaign_dict, print_outcomes

    check_target(json_file, "--json")
    experiment, outcomes = _stored(which, store, config)
    if json_file is not None:
        write_json(campaign_dict(experiment, outcomes), json_file)
    if json_file != "-":
        print_outcomes(experiment, outcomes)


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
    from wattloop.schedule.campaigns.summary import per_cell

    csv_file = "-" if csv_file is None and json_file is None else csv_file
    check_target(csv_file, "--csv")
    check_target(json_file, "--json")
    experiment, outcomes = _stored(which, store, config)
    if json_file is not None:
        write_json(campaign_dict(experiment, outcomes), json_file)
    if csv_file is not None:
        write_text(_csv(per_cell(outcomes)), csv_file, "--csv")


def _stored(which: str, store: str | None, config: str | None) -> "tuple[Any, Outcomes]":
    from wattloop.cli.runs_store import opened
    from wattloop.schedule.campaigns.record import KIND, with_status_now
    from wattloop.schedule.campaigns.stored import known_outcomes
    from wattloop.store.experiments import find_experiment

    with opened(store, config) as place:
        experiment = with_status_now(place, find_experiment(place, which, KIND))
        return experiment, known_outcomes(place, experiment)


def _csv(rows: list[dict[str, Any]]) -> str:
    """Utilisation by type in columns of its own; what is no figure is left to JSON."""
    flat = []
    for row in rows:
        used = row.get("utilisation") or {}
        plain = {name: value for name, value in row.items() if not isinstance(value, dict | list)}
        flat.append(plain | {f"utilisation.{kind}": value for kind, value in used.items()})
    columns = list(dict.fromkeys(name for row in flat for name in row)) or ["policy", "seed"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()
