"""Experiments (sweeps, searches, cap searches, benchmarks) and their trials."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic_core import from_json
from sqlalchemy import delete, func, insert, inspect, select, update

from wattloop.core.clock import Clock
from wattloop.core.errors import ExperimentNotFound, StoreError
from wattloop.core.text import json_text, plain
from wattloop.hardware.host import Host
from wattloop.store.database import Store
from wattloop.store.schema import experiments, trials

# Experiments: a record with a specification; its trials are below.

RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """An experiment: its specification, status and machine.

    Attributes:
        experiment_id: unique; sorts by time of creation.
        kind: `sweep`, `cap`, `bench`, `search`, `campaign` or `study`.
        status: `running`, `finished`, `interrupted` or `failed`.
        fingerprint: the same for the same specification and command; finds what to resume.
        spec: the whole specification as plain data.
        facts: about the machine on which it ran.
    """

    experiment_id: str
    kind: str
    name: str = ""
    status: str = RUNNING
    created_wall_s: float = 0.0
    fingerprint: str = ""
    spec: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def new_experiment_id(kind: str, wall_s: float) -> str:
    """Return an identifier that sorts by time and is unique: `sweep-20261115-031500-3f9a`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(wall_s))
    return f"{kind}-{stamp}-{os.urandom(2).hex()}"


def begin_experiment(store: Store, kind: str, wall_s: float, **fields: Any) -> Experiment:
    """Insert a new experiment, with further fields of its record, and return it."""
    identity = new_experiment_id(kind, wall_s)
    experiment = Experiment(experiment_id=identity, kind=kind, created_wall_s=wall_s, **fields)
    create_experiment(store, experiment)
    return experiment


def is_unfinished(experiment: Experiment) -> bool:
    return experiment.status != "finished"


def open_experiment(
    store: Store,
    kind: str,
    fingerprint: str,
    clock: Clock,
    spec: dict[str, Any],
    *,
    name: str = "",
    facts: Mapping[str, Any] | None = None,
    resumable: Callable[[Experiment], bool] | None = is_unfinished,
    none: str = "",
) -> tuple[Experiment, bool]:
    """Return the newest resumable experiment of that fingerprint, or a new one; True if it is
    resumed.

    Raises:
        ExperimentNotFound: with the text `none`, where that is given in place of a new one.
    """
    for known in same_experiments(store, fingerprint) if resumable else ():
        if resumable and known.kind == kind and resumable(known):
            return known, True
    if none:
        raise ExperimentNotFound(none)
    facts = {"host": Host.from_environment().name, **(facts or {})}
    fields = {"name": name, "fingerprint": fingerprint, "spec": spec, "facts": facts}
    return begin_experiment(store, kind, clock.wall_s(), **fields), False


def create_experiment(store: Store, experiment: Experiment) -> None:
    with store.writing() as connection:
        connection.execute(insert(experiments).values(**_columns(experiment)))


def find_experiment(store: Store, reference: str, *kinds: str) -> Experiment:
    """Find an experiment by its identifier, its name (the newest), a unique beginning or end, or
    `last`.

    Args:
        store: where to look.
        reference: as people write it.
        kinds: only experiments of these; of any kind when none is given.

    Raises:
        ExperimentNotFound: none, or several.
    """
    known = list_experiments(store, *kinds)
    what = " or ".join(kinds) or "experiment"
    if not known:
        raise ExperimentNotFound(f"{store.where}: no {what} yet")
    if reference == "last":
        return known[0]
    exact = [e for e in known if e.experiment_id == reference]
    named = [e for e in known if reference and e.name == reference]
    begun = [e for e in known if reference and _begins(e.experiment_id, reference)]
    found = exact or named[:1] or begun
    if len(found) == 1:
        return found[0]
    if not found:
        raise ExperimentNotFound(
            f"no {what} {reference!r} in {store.where}; the newest is {known[0].experiment_id}"
        )
    several = ", ".join(e.experiment_id for e in found)
    raise ExperimentNotFound(f"{reference!r} could be any of {several}; give more of it")


def namesakes(store: Store, reference: str, *kinds: str) -> list[Experiment]:
    """Return all experiments with the name by which `find_experiment` found one, newest first; else
    none.
    """
    known = list_experiments(store, *kinds)
    if reference == "last" or any(e.experiment_id == reference for e in known):
        return []
    return [e for e in known if reference and e.name == reference]


def list_experiments(store: Store, *kinds: str) -> list[Experiment]:
    """Return experiments of these kinds, or all, newest first."""
    query = select(experiments.c.body, experiments.c.status)
    if kinds:
        query = query.where(experiments.c.kind.in_(kinds))
    query = query.order_by(experiments.c.created_wall_s.desc(), experiments.c.experiment_id.desc())
    with store.reading() as connection:
        if store.read_only and not inspect(connection).has_table(experiments.name):
            return []  # written by an earlier release, and the table cannot be created
        return [_experiment(*row) for row in connection.execute(query)]


def same_experiments(store: Store, fingerprint: str) -> list[Experiment]:
    """Return experiments of the same specification and command, newest first."""
    query = (
        select(experiments.c.body, experiments.c.status)
        .where(experiments.c.fingerprint == fingerprint)
        .order_by(experiments.c.created_wall_s.desc())
    )
    with store.reading() as connection:
        return [_experiment(*row) for row in connection.execute(query)]


def set_experiment_status(
    store: Store, experiment_id: str, status: str, facts: Mapping[str, Any] | None = None
) -> None:
    """Set the status; `facts` are added to the known ones."""
    with store.writing() as connection:
        query = select(experiments.c.body, experiments.c.status)
        row = connection.execute(
            query.where(experiments.c.experiment_id == experiment_id)
        ).one_or_none()
        if row is None:
            raise ExperimentNotFound(f"{store.where}: no experiment {experiment_id!r}")
        known = _experiment(*row)
        changed = replace(known, status=status, facts={**known.facts, **(facts or {})})
        connection.execute(
            update(experiments)
            .where(experiments.c.experiment_id == experiment_id)
            .values(**_columns(changed))
        )


def delete_experiment(store: Store, experiment_id: str) -> bool:
    """Remove an experiment with its trials; measured runs stay. False when it does not exist."""
    query = delete(experiments).where(experiments.c.experiment_id == experiment_id)
    with store.writing() as connection:
        return connection.execute(query).rowcount > 0


def _begins(experiment_id: str, reference: str) -> bool:
    """Return True for `sweep-2026`, or the last letters, which distinguish experiments."""
    return experiment_id.startswith(reference) or experiment_id.endswith(f"-{reference}")


def _experiment(body: str, status: str) -> Experiment:
    found = json.loads(body)
    return Experiment(**{**found, "name": plain(found["name"]), "status": status})


def _columns(experiment: Experiment) -> dict[str, Any]:
    return {
        "experiment_id": experiment.experiment_id,
        "kind": plain(experiment.kind),
        "name": plain(experiment.name),
        "status": plain(experiment.status),
        "created_wall_s": experiment.created_wall_s,
        "fingerprint": plain(experiment.fingerprint),
        "body": json_text(experiment.to_dict()),
    }


# Trials: one setting tried once. A trial is written when it begins and again when it ends, each in
# its own transaction. After `kill -9` every ended trial is in the store, and the unfinished ones
# are marked `running`.

KEYS_AT_ONCE = 500
"""Databases accept some hundred values in one query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One setting tried once.

    Attributes:
        key: unique within its experiment, and the same whenever that trial is planned again.
        number: its place in the order in which trials were begun.
        status: `running` until it ended, then that of its outcome.
        settings: the parameters tried.
        outcome: the result; empty while it runs.
        run_id: the measured run, if there is one.
    """

    key: str
    number: int
    status: str = RUNNING
    settings: dict[str, Any] = field(default_factory=dict)
    outcome: dict[str, Any] = field(default_factory=dict)
    run_id: str | None = None

    @property
    def ended(self) -> bool:
        """True if there is an outcome, good or bad."""
        return self.status != RUNNING

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def begin_trial(
    store: Store, experiment_id: str, key: str, settings: Mapping[str, Any]
) -> TrialRecord:
    """Insert a trial that begins. One that ended before is returned unchanged.

    A trial whose process died keeps its number and begins again.
    """
    with store.writing() as connection:
        mine = (trials.c.experiment_id == experiment_id) & (trials.c.key == plain(key))
        row = connection.execute(select(trials.c.body).where(mine)).one_or_none()
        if row is not None:
            known = _record(row[0], key, store.where, experiment_id)
            if known.ended:
                return known
            connection.execute(delete(trials).where(mine))
            number = known.number
        else:
            count = select(func.max(trials.c.number)).where(trials.c.experiment_id == experiment_id)
            last = connection.execute(count).scalar()
            number = 0 if last is None else int(last) + 1
        record = TrialRecord(key=key, number=number, settings=dict(settings))
        connection.execute(insert(trials).values(**_trial_columns(experiment_id, record)))
        return record


def end_trial(store: Store, experiment_id: str, record: TrialRecord) -> None:
    """Write the outcome of a trial that was begun."""
    mine = (trials.c.experiment_id == experiment_id) & (trials.c.key == plain(record.key))
    with store.writing() as connection:
        connection.execute(
            update(trials).where(mine).values(**_trial_columns(experiment_id, record))
        )


def add_trials(store: Store, experiment_id: str, records: Sequence[TrialRecord]) -> None:
    """Insert ended trials, all or none; an existing trial is replaced."""
    with store.writing() as connection:
        for record in records:
            mine = (trials.c.experiment_id == experiment_id) & (trials.c.key == plain(record.key))
            connection.execute(delete(trials).where(mine))
            connection.execute(insert(trials).values(**_trial_columns(experiment_id, record)))


def trials_with_keys(
    store: Store, kind: str, keys: Sequence[str], status: str
) -> dict[str, TrialRecord]:
    """Return trials of any experiment of a kind that have these keys and this status, by key.

    For keys that say all about a trial, so that what one experiment knows serves another.
    """
    found: dict[str, TrialRecord] = {}
    mine = (experiments.c.kind == kind) & (trials.c.status == status)
    with store.reading() as connection:
        for at in range(0, len(keys), KEYS_AT_ONCE):
            wanted = [plain(key) for key in keys[at : at + KEYS_AT_ONCE]]
            query = (
                select(trials.c.experiment_id, trials.c.key, trials.c.body)
                .join(experiments, experiments.c.experiment_id == trials.c.experiment_id)
                .where(mine, trials.c.key.in_(wanted))
                .order_by(trials.c.key, trials.c.experiment_id)
            )
            for experiment_id, key, body in connection.execute(query):
                found[key] = _record(body, key, store.where, experiment_id)
    return found


def forget_trials(store: Store, experiment_id: str, keep: Sequence[str]) -> int:
    """Remove trials whose status is not one of `keep`, so that they run again; return their
    number.
    """
    query = delete(trials).where(
        trials.c.experiment_id == experiment_id, trials.c.status.not_in(list(keep))
    )
    with store.writing() as connection:
        return connection.execute(query).rowcount


def read_trials(store: Store, experiment_id: str) -> list[TrialRecord]:
    """Return all trials in the order in which they were begun."""
    return list(each_trial(store, experiment_id))


def each_trial(store: Store, experiment_id: str) -> Iterator[TrialRecord]:
    """Iterate as `read_trials`, one at a time, which saves memory."""
    query = (
        select(trials.c.key, trials.c.body)
        .where(trials.c.experiment_id == experiment_id)
        .order_by(trials.c.number, trials.c.key)
    )
    with store.reading() as connection:
        for key, body in connection.execute(query):
            yield _record(body, key, store.where, experiment_id)


def _record(body: str, key: str, where: str, experiment_id: str) -> TrialRecord:
    """Build a record from a row; fields of later versions are left out."""
    try:
        data = _parsed(body)
        return TrialRecord(**{name: data[name] for name in TrialRecord.__slots__ if name in data})
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"{where}: trial {key!r} of {experiment_id} cannot be read ({error}); something else "
            "changed it: restore the store from a copy"
        ) from None


def _parsed(body: str) -> dict[str, Any]:
    """Parse JSON with pydantic's parser, which takes half of json's time.

    It refuses a few texts that json writes and reads, such as half of a surrogate pair.
    """
    try:
        parsed = from_json(body, cache_strings="keys")
    except ValueError:
        parsed = json.loads(body)
    if not isinstance(parsed, dict):
        raise TypeError(f"not an object but {type(parsed).__name__}")
    return parsed


def _trial_columns(experiment_id: str, record: TrialRecord) -> dict[str, Any]:
    return {
        "experiment_id": experiment_id,
        "key": plain(record.key),
        "number": record.number,
        "status": plain(record.status),
        "run_id": record.run_id,
        "body": json_text(record.to_dict()),
    }
