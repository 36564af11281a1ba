"""Experiments: what is tried and why.

An experiment (a sweep, a search for a cap, a benchmark) is a record with a specification; its
trials are in `trial_records`.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sqlalchemy import delete, insert, inspect, select, update

from wattloop.core.errors import ExperimentNotFound
from wattloop.store.database import Store
from wattloop.store.schema import experiments
from wattloop.store.text import json_text, plain

__all__ = [
    "RUNNING",
    "Experiment",
    "create_experiment",
    "delete_experiment",
    "find_experiment",
    "list_experiments",
    "new_experiment_id",
    "same_experiments",
    "set_experiment_status",
]

RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is tried and why.

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
        """Plain data for JSON."""
        return asdict(self)


def new_experiment_id(kind: str, wall_s: float) -> str:
    """Sortable by time and unique: `sweep-20261115-031500-3f9a`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(wall_s))
    return f"{kind}-{stamp}-{os.urandom(2).hex()}"


def create_experiment(store: Store, experiment: Experiment) -> None:
    """Keep a new experiment."""
    with store.writing() as connection:
        connection.execute(insert(experiments).values(**_columns(experiment)))


def find_experiment(store: Store, reference: str, *kinds: str) -> Experiment:
    """The experiment with this identifier, the newest of this name, or the only one that begins or
    ends so; or `last`.

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
    """All that have the name by which `find_experiment` found one, newest first; else none."""
    known = list_experiments(store, *kinds)
    if reference == "last" or any(e.experiment_id == reference for e in known):
        return []
    return [e for e in known if reference and e.name == reference]


def list_experiments(store: Store, *kinds: str) -> list[Experiment]:
    """Experiments of these kinds, or all, newest first."""
    query = select(experiments.c.body, experiments.c.status)
    if kinds:
        query = query.where(experiments.c.kind.in_(kinds))
    query = query.order_by(experiments.c.created_wall_s.desc(), experiments.c.experiment_id.desc())
    with store.reading() as connection:
        if store.read_only and not inspect(connection).has_table(experiments.name):
            return []  # written by an earlier release, and cannot be given the table
        return [_experiment(*row) for row in connection.execute(query)]


def same_experiments(store: Store, fingerprint: str) -> list[Experiment]:
    """Experiments of the same specification and command, newest first."""
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
    """Say how far it is; `facts` are added to those that are known."""
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
    """Remove it with its trials; the runs that were measured stay. False when it is not there."""
    query = delete(experiments).where(experiments.c.experiment_id == experiment_id)
    with store.writing() as connection:
        return connection.execute(query).rowcount > 0


def _begins(experiment_id: str, reference: str) -> bool:
    """`sweep-2026`, or the last letters, which are what tells two apart."""
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
