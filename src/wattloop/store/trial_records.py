"""Trials of an experiment: what was tried, and what came of it, written as it happens.

A trial is one setting tried once. It is written when it begins and again when it ends, each in a
transaction of its own: after `kill -9` everything that ended is there, and what was under way is
marked `running`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic_core import from_json
from sqlalchemy import delete, func, insert, select, update

from wattloop.core.errors import StoreError
from wattloop.store.database import Store
from wattloop.store.experiments import RUNNING
from wattloop.store.schema import experiments, trials
from wattloop.store.text import json_text, plain

__all__ = [
    "TrialRecord",
    "add_trials",
    "begin_trial",
    "each_trial",
    "end_trial",
    "forget_trials",
    "read_trials",
    "trials_with_keys",
]

KEYS_AT_ONCE = 500
"""Databases take some hundred values in one query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One setting tried once.

    Attributes:
        key: unique within its experiment, and the same whenever that trial is planned again.
        number: its place in the order in which trials were begun.
        status: `running` until it ended, then that of its outcome.
        settings: what was tried.
        outcome: what came of it; empty while it runs.
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
        """Whether there is an outcome, good or bad."""
        return self.status != RUNNING

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def begin_trial(
    store: Store, experiment_id: str, key: str, settings: Mapping[str, Any]
) -> TrialRecord:
    """Write down that a trial begins. One that ended before is handed back as it is.

    One that was under way when its process died keeps its number and begins again.
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
    """Write down what came of a trial that was begun."""
    mine = (trials.c.experiment_id == experiment_id) & (trials.c.key == plain(record.key))
    with store.writing() as connection:
        connection.execute(
            update(trials).where(mine).values(**_trial_columns(experiment_id, record))
        )


def add_trials(store: Store, experiment_id: str, records: Sequence[TrialRecord]) -> None:
    """Write down trials that have ended, all or none; one that is there already is replaced."""
    with store.writing() as connection:
        for record in records:
            mine = (trials.c.experiment_id == experiment_id) & (trials.c.key == plain(record.key))
            connection.execute(delete(trials).where(mine))
            connection.execute(insert(trials).values(**_trial_columns(experiment_id, record)))


def trials_with_keys(
    store: Store, kind: str, keys: Sequence[str], status: str
) -> dict[str, TrialRecord]:
    """Trials of any experiment of a kind that have these keys and this status, by key.

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
    """Remove trials whose status is not one of `keep`, so that they are run again; how many."""
    query = delete(trials).where(
        trials.c.experiment_id == experiment_id, trials.c.status.not_in(list(keep))
    )
    with store.writing() as connection:
        return connection.execute(query).rowcount


def read_trials(store: Store, experiment_id: str) -> list[TrialRecord]:
    """All trials in the order in which they were begun."""
    return list(each_trial(store, experiment_id))


def each_trial(store: Store, experiment_id: str) -> Iterator[TrialRecord]:
    """As `read_trials`, one at a time: ten thousand of them need not be in memory at once."""
    query = (
        select(trials.c.key, trials.c.body)
        .where(trials.c.experiment_id == experiment_id)
        .order_by(trials.c.number, trials.c.key)
    )
    with store.reading() as connection:
        for key, body in connection.execute(query):
            yield _record(body, key, store.where, experiment_id)


def _record(body: str, key: str, where: str, experiment_id: str) -> TrialRecord:
    """What a row holds; fields of later versions are left out."""
    try:
        data = _parsed(body)
        return TrialRecord(**{name: data[name] for name in TrialRecord.__slots__ if name in data})
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"{where}: trial {key!r} of {experiment_id} cannot be read ({error}); something else "
            "changed it: restore the store from a copy"
        ) from None


def _parsed(body: str) -> dict[str, Any]:
    """By pydantic's parser, which takes half of json's time: thousands of trials are read at once.

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
