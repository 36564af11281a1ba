"""Listing, finding and showing stored sweeps, searches and campaigns."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from wattloop.cli.output import check_target, say, write_json

if TYPE_CHECKING:
    from wattloop.store.database import Store
    from wattloop.store.experiments import Experiment


NAMED = "identifier, its beginning or end, name (the newest of that name), or 'last'"


def which(noun: str) -> Any:
    """Return the argument that names one experiment."""
    return typer.Argument(metavar=f"[{noun}]", help=f"{NAMED[0].upper()}{NAMED[1:]}.")


@dataclass(frozen=True, slots=True)
class Listing:
    """Columns and texts for listing one kind of experiment.

    Attributes:
        kind: as it is stored.
        plural: the key of the list in JSON.
        example: the command that makes the first one.
        row: what is shown of an experiment.
        as_dict: a row as plain data.
        print_rows: all rows for people.
    """

    kind: str
    plural: str
    example: str
    row: Callable[["Store", "Experiment"], Any]
    as_dict: Callable[[Any], dict[str, Any]]
    print_rows: Callable[[Sequence[Any]], None]


def list_stored(
    listing: Listing, json_file: str | None, store: str | None, config: str | None
) -> None:
    """List all experiments of a kind, newest first."""
    from wattloop.cli.stored_runs import opened_if_any
    from wattloop.store.experiments import list_experiments
    from wattloop.trials.runner import with_status_now

    check_target(json_file, "--json")
    rows: list[Any] = []
    with opened_if_any(store, config) as place:
        if place is not None:
            known = list_experiments(place, listing.kind)
            rows = [listing.row(place, with_status_now(place, each)) for each in known]
    if json_file is not None:
        write_json({listing.plural: [listing.as_dict(row) for row in rows]}, json_file)
    if json_file == "-":
        return
    if rows:
        listing.print_rows(rows)
    else:
        say(f"no {listing.kind} yet; try: {listing.example}")


@contextmanager
def stored(
    kind: str, reference: str, store: str | None, config: str | None
) -> Iterator[tuple["Store", "Experiment"]]:
    """Return the named experiment with its current status; report equal names."""
    from wattloop.cli.stored_runs import opened
    from wattloop.store.experiments import find_experiment
    from wattloop.trials.runner import with_status_now

    with opened(store, config) as place:
        experiment = find_experiment(place, reference, kind)
        say_which(place, reference, kind)
        yield place, with_status_now(place, experiment)


def show_stored(
    found: tuple["Store", "Experiment"],
    json_file: str | None,
    as_dict: Callable[["Store", "Experiment"], Any],
    print_it: Callable[["Store", "Experiment"], None],
) -> None:
    """Write JSON if requested, and print text unless JSON goes to the terminal."""
    if json_file is not None:
        write_json(as_dict(*found), json_file)
    if json_file != "-":
        print_it(*found)


def say_which(store: "Store", reference: str, *kinds: str) -> None:
    """Report which of several experiments of the same name is used, and how to choose another."""
    from wattloop.store.experiments import namesakes
    from wattloop.store.tables import iso_time

    found = namesakes(store, reference, *kinds)
    if len(found) < 2:
        return
    newest, *others = found
    shown = ", ".join(f"{e.experiment_id} ({iso_time(e.created_wall_s)})" for e in others[:3])
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    say(
        f"wattloop: {len(others) + 1} are called {reference!r}; this is the newest, "
        f"{newest.experiment_id}. Name another by its identifier, or the end of it: {shown}{more}"
    )
