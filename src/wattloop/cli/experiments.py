"""Listing, finding and showing stored sweeps, searches and campaigns."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wattloop.cli.options import StoreOptions, argument
from wattloop.cli.output import print_table, say

if TYPE_CHECKING:
    from pathlib import Path

    from wattloop.cli.app import Verb
    from wattloop.core.table import Table
    from wattloop.store.database import Store
    from wattloop.store.experiments import Experiment


NAMED = "identifier, its beginning or end, name (the newest of that name), or 'last'"


def which(noun: str) -> Any:
    """Return the argument that names one experiment."""
    return argument(f"[{noun}]", f"{NAMED[0].upper()}{NAMED[1:]}.")


def add_list_command(
    app: "Verb",
    kind: str,
    *,
    plural: str,
    example: str,
    row: Callable[["Store", "Experiment"], Any],
    as_dict: Callable[[Any], dict[str, Any]],
    table: Callable[[Sequence[Any]], "Table"],
) -> None:
    """Add the command that lists all experiments of a kind, newest first.

    Args:
        app: gets the command.
        kind: as it is stored.
        plural: the key of the list in JSON.
        example: the command that makes the first one.
        row: what is shown of an experiment.
        as_dict: a row as plain data.
        table: all rows for people.
    """

    def list_command(*, given: StoreOptions) -> None:
        from wattloop.store.experiments import list_experiments
        from wattloop.trials.runner import with_status_now

        rows: list[Any] = []
        with given.opened_if_any() as place:
            if place is not None:
                known = list_experiments(place, kind)
                rows = [row(place, with_status_now(place, each)) for each in known]

        def print_rows() -> None:
            if rows:
                print_table(table(rows))
            else:
                say(f"no {kind} yet; try: {example}")

        given.present(lambda: {plural: [as_dict(one) for one in rows]}, print_rows)

    app.command("list", help=f"Show {plural}, newest first.")(list_command)


@contextmanager
def stored(
    kind: str, reference: str, given: StoreOptions
) -> Iterator[tuple["Store", "Experiment"]]:
    """Return the named experiment with its current status; report equal names."""
    from wattloop.store.experiments import find_experiment
    from wattloop.trials.runner import with_status_now

    with given.opened() as place:
        experiment = find_experiment(place, reference, kind)
        say_which(place, reference, kind)
        yield place, with_status_now(place, experiment)


def say_which(store: "Store", reference: str, *kinds: str) -> None:
    """Report which of several experiments of the same name is used, and how to choose another."""
    from wattloop.core.units import iso_time
    from wattloop.store.experiments import namesakes

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


def outputs_folder(store: "Store", identity: str) -> "Path":
    """Return the folder of what the programs of an experiment print."""
    journals = store.journals
    return journals.with_name(journals.name.replace("journals", "trials")) / identity
