"""Stored runs, sweeps, searches and campaigns: opening the store, finding and listing."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from shlex import quote
from typing import TYPE_CHECKING, Any

from wattloop.cli.app import StoreOptions, Verb
from wattloop.cli.options import argument, option, settings_of
from wattloop.cli.output import print_table, say
from wattloop.core.errors import ConfigError, RunNotFound, StoreLocked, StoreUnwritable
from wattloop.core.results import RunStatus
from wattloop.core.settings import STORE
from wattloop.core.units import iso_time

if TYPE_CHECKING:
    from wattloop.core.table import Table
    from wattloop.store.database import Store
    from wattloop.store.experiments import Experiment
    from wattloop.store.runs import RunFilter, RunRecord


_UNITS_S = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


@contextmanager
def open_user_store(
    place: str | None, config: str | None, *, create: bool = False
) -> Iterator["Store"]:
    """Open the store; a store that does not exist is not created."""
    from wattloop.store.database import open_store

    location = settings_of(config, needs=STORE, store=place).store_location
    if not create and not _exists(location):
        raise RunNotFound(nothing_yet(place, config))
    with open_store(location) as store:
        _recover(store)
        yield store


@contextmanager
def open_existing_store(place: str | None, config: str | None) -> Iterator["Store | None"]:
    """Open the store; None if it does not exist yet."""
    if not _exists(settings_of(config, needs=STORE, store=place).store_location):
        yield None
        return
    with open_user_store(place, config) as store:
        yield store


def nothing_yet(place: str | None, config: str | None) -> str:
    """Format a message about an empty store: which one it is, and how to begin."""
    from wattloop.store.location import StoreLocation

    location = StoreLocation.parse(
        settings_of(config, needs=STORE, store=place).store_location
    ).label
    return f"{location}: no runs yet; try: wattloop run -- python train.py"


def chosen(store: "Store", references: Sequence[str], *, by_name: bool = True) -> list["RunRecord"]:
    """Return the runs that the arguments name; deletion accepts identifiers only."""
    from wattloop.store.runs import find_run

    if by_name:
        return [named_run(store, reference) for reference in references]
    return [find_run(store, reference) for reference in references]


def named_run(store: "Store", reference: str) -> "RunRecord":
    """Return the run that the argument names; say which, where several have that name."""
    from wattloop.store.runs import count_named, find_run

    record = find_run(store, reference, by_name=True)
    count = 1 if record.run_id.startswith(reference) else count_named(store, reference)
    if count > 1:
        say(
            f"wattloop: {reference} is taken as {record.run_id}, the newest of {count} runs of "
            f"that name; for another give its identifier: wattloop runs list --name "
            f"{quote(reference)}"
        )
    return record


def run_filter(
    name: str | None,
    status: str | None,
    tags: Sequence[str],
    *,
    host: str | None = None,
    job: str | None = None,
    since: str | None = None,
) -> "RunFilter":
    from wattloop.store.runs import RunFilter

    if status is not None and status not in list(RunStatus):
        raise ConfigError(f"--status {status}: unknown; choose one of {', '.join(RunStatus)}")
    wanted: dict[str, str | None] = {}
    for tag in tags:
        key, separator, value = tag.partition("=")
        wanted[key] = value if separator else None
    since_wall_s = None if since is None else _moment(since)
    return RunFilter(
        name=name, status=status, tags=wanted, host=host, job=job, since_wall_s=since_wall_s
    )


def _exists(location: str) -> bool:
    """Return True when a file, journals or a server can be read."""
    from wattloop.store.journal import journal_directory
    from wattloop.store.location import StoreLocation

    path = StoreLocation.parse(location).path
    return path is None or path.exists() or journal_directory(str(path)).is_dir()


def _recover(store: "Store") -> None:
    """Import unlocked journals; a store that is busy can still be read."""
    waiting = sum(1 for _ in store.journals.glob("*.journal"))
    if not waiting:  # the usual case: what folds them need not be loaded
        return
    if store.read_only:
        say(f"wattloop: warning: {store.where} is read-only; {waiting} run(s) wait in journals")
        return
    from wattloop.measure.recovery import finalize_orphaned_run
    from wattloop.store.journal_import import import_orphaned

    try:
        for folded in import_orphaned(store, finalize_orphaned_run):
            if folded.note:
                say(f"wattloop: warning: {folded.note}")
    except (StoreLocked, StoreUnwritable) as error:
        say(f"wattloop: warning: runs that just ended may be missing: {error}")


def _moment(text: str) -> float:
    ago = re.fullmatch(r"(\d+)\s*([mhdw])", text.strip())
    if ago:
        return time.time() - int(ago[1]) * _UNITS_S[ago[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"--since {text}: not a time; write 2026-01-31, 2026-01-31T08:00, 12h or 7d"
        ) from None


NAMED = "identifier, its beginning or end, name (the newest of that name), or 'last'"


def which(noun: str) -> Any:
    """Return the argument that names one experiment."""
    return argument(f"{noun}", f"{NAMED[0].upper()}{NAMED[1:]}.")


def add_list_command(
    app: "Verb",
    kind: str,
    *,
    plural: str,
    example: str,
    row: Callable[["Store", "Experiment"], Any],
    as_dict: Callable[[Any], dict[str, Any]],
    table: Callable[[Sequence[Any]], "Table"],
    folded: Callable[["Store"], Mapping[str, "Experiment"]] | None = None,
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
        folded: those that belong to another experiment, which `--all` shows as well.
    """

    def show(given: StoreOptions, is_folded: bool) -> None:
        from wattloop.store.experiments import list_experiments
        from wattloop.trials.experiment_lock import with_status_now

        rows: dict[str, Any] = {}
        inside: Mapping[str, Experiment] = {}
        with given.open_existing_store() as place:
            if place is not None:
                known = list_experiments(place, kind)
                inside = folded(place) if folded and is_folded else {}
                rows = {e.experiment_id: row(place, with_status_now(place, e)) for e in known}

        def print_rows() -> None:
            shown = [one for identity, one in rows.items() if identity not in inside]
            if shown:
                print_table(table(shown))
            elif not rows:
                say(f"no {kind} yet; try: {example}")
            if len(shown) < len(rows):
                names = ", ".join(dict.fromkeys(study.name for study in inside.values()))
                say(f"{len(rows) - len(shown)} more of the study {names}; see them with --all")

        given.present(lambda: {plural: [as_dict(one) for one in rows.values()]}, print_rows)

    def list_command(*, given: StoreOptions) -> None:
        show(given, False)

    def list_folded(
        *, every: bool = option("--all -a", f"Also {plural} of studies."), given: StoreOptions
    ) -> None:
        show(given, not every)

    list_example = f"wattloop {example.split()[1]} list"
    said = f"Show {plural}, newest first."
    app.command("list", example=list_example, help=said)(list_folded if folded else list_command)


@contextmanager
def stored(
    kind: str, reference: str, given: StoreOptions
) -> Iterator[tuple["Store", "Experiment"]]:
    """Return the named experiment with its current status; report equal names."""
    from wattloop.store.experiments import find_experiment
    from wattloop.trials.experiment_lock import with_status_now

    with given.open_store() as place:
        experiment = find_experiment(place, reference, kind)
        say_which(place, reference, kind)
        yield place, with_status_now(place, experiment)


def say_which(store: "Store", reference: str, *kinds: str) -> None:
    """Report which of several experiments of the same name is used, and how to choose another."""
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
