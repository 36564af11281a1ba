"""Search in the store: one record per segment, written when it starts and when it ends."""

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from wattloop.core.clock import RealClock
from wattloop.core.errors import StoreUnwritable
from wattloop.core.settings import Settings
from wattloop.store.database import Store
from wattloop.store.experiments import (
    RUNNING,
    Experiment,
    TrialRecord,
    begin_trial,
    each_trial,
    end_trial,
    open_experiment,
    set_experiment_status,
)
from wattloop.store.runs import RunFilter, list_runs
from wattloop.tune.segment import Progress, Segment, unreadable_trial
from wattloop.tune.segment_meter import scope_energy, widest_result_scope
from wattloop.tune.strategies.base import StrategyEvent

ROOM_B = 1 << 20
"""Many times the size of a segment in the database and its log."""
T = TypeVar("T")


class DiskReserve:
    """Reserve file, deleted when the disk is full, so that paid-for results can be written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def make(self) -> None:
        """Reserve the space, before anything is measured."""
        if self._path.exists():
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("wb") as file:
                file.write(b"\0" * ROOM_B)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self.release()
            free_b = 0
            with suppress(OSError):
                free_b = shutil.disk_usage(self._path.parent).free
            raise StoreUnwritable(
                f"{self._path.parent}: {error.strerror} ({free_b // 1024} KiB left); make room on "
                "the disk ('df -h') and go on with 'wattloop tune resume': nothing is lost"
            ) from None

    def write(self, write: Callable[[], T]) -> T:
        """Call `write`; where the disk is full, call it again with the reserve released."""
        try:
            return write()
        except StoreUnwritable:
            if not self._path.exists():
                raise
            self.release()
            return write()

    def release(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


# Asks and tells are numbered in their order, so that a strategy can be restored by replaying them,
# also where several segments ran at once.

KIND = "search"
OVER = ("finished", "failed")
SEARCH_TAG, SEGMENT_TAG = "search", "segment"


def search_folder(store: Store, search_id: str) -> Path:
    return store.journals / search_id


def open_search(
    store: Store,
    spec: Mapping[str, Any],
    fingerprint: str,
    *,
    name: str = "",
    facts: Mapping[str, Any] | None = None,
    resume: bool = True,
    only: bool = False,
) -> tuple[Experiment, bool]:
    """Return the unfinished search of the same specification, or a new one, and whether it is
    resumed.

    One that ended at a limit is unfinished where other limits are given.

    Raises:
        ExperimentNotFound: `only` an unfinished one is wanted, and there is none.
    """

    def is_unfinished(known: Experiment) -> bool:
        stopped, limits = known.facts.get("stopped"), known.spec.get("limits")
        return known.status not in OVER or bool(stopped and limits != spec.get("limits"))

    none = f"{store.where}: no unfinished search of this specification; see 'wattloop tune list'"
    return open_experiment(
        store,
        KIND,
        fingerprint,
        RealClock(),
        dict(spec),
        name=name,
        facts=facts,
        resumable=is_unfinished if resume else None,
        none=none if only else "",
    )


@dataclass(slots=True)
class SearchHistory:
    """Events of a search in the store.

    Attributes:
        events: asks and tells in their order.
        under_way: segments that were asked for and not told of.
    """

    events: list[StrategyEvent] = field(default_factory=list)
    told: list[tuple[Segment, Progress]] = field(default_factory=list)
    under_way: list[Segment] = field(default_factory=list)
    elapsed_s: float = 0.0


class SearchRecord:
    """Writer of one search. Thread-safe."""

    def __init__(self, store: Store, experiment: Experiment) -> None:
        self.store, self.experiment = store, experiment
        self._lock = threading.Lock()
        self._records: dict[str, TrialRecord] = {}
        self._next = 0
        self._reserve = DiskReserve(store.journals / f"{self.search_id}.reserve")

    @property
    def search_id(self) -> str:
        return self.experiment.experiment_id

    @property
    def tags(self) -> dict[str, str]:
        return {SEARCH_TAG: self.search_id}

    @property
    def folder(self) -> Path:
        return search_folder(self.store, self.search_id)

    def history(self, records: Iterable[TrialRecord] | None = None) -> SearchHistory:
        """Return all events so far; from `records` of its trials, if already read."""
        history = SearchHistory()
        numbered: list[tuple[int, StrategyEvent]] = []
        if records is None:
            records = each_trial(self.store, self.search_id)
        for record in records:
            try:
                numbered += self._events(record, history)
            except (KeyError, TypeError, ValueError) as error:
                raise unreadable_trial(record.key, error) from None
        history.events = [event for _, event in sorted(numbered, key=itemgetter(0))]
        history.told = [(e.segment, e.progress) for e in history.events if e.progress is not None]
        return history

    def _events(
        self, record: TrialRecord, history: SearchHistory
    ) -> list[tuple[int, StrategyEvent]]:
        segment = Segment.from_dict(record.settings["segment"])
        asked = int(record.settings["asked"])
        self._next = max(self._next, asked + 1)
        if not record.ended:
            self._records[segment.key] = record
            history.under_way.append(segment)
            return [(asked, StrategyEvent(segment))]
        told = int(record.outcome["told"])
        progress = Progress.from_dict(record.outcome)
        history.elapsed_s = max(history.elapsed_s, float(record.outcome.get("elapsed_s", 0.0)))
        self._next = max(self._next, told + 1)
        return [(asked, StrategyEvent(segment)), (told, StrategyEvent(segment, progress))]

    def begin(self, segment: Segment) -> None:
        """Record that a segment was asked for and starts, or starts again."""
        with self._lock:
            known = self._records.get(segment.key)
            asked = self._next if known is None else int(known.settings["asked"])
            settings = {"segment": segment.to_dict(), "asked": asked}
            self._reserve.make()
            self._records[segment.key] = self._reserve.write(
                lambda: begin_trial(self.store, self.search_id, segment.key, settings)
            )
            self._next = max(self._next, asked + 1)

    def end(
        self, segment: Segment, progress: Progress, facts: Mapping[str, Any] | None = None
    ) -> TrialRecord:
        """Record that it has ended and the strategy is told."""
        with self._lock:
            begun = self._records.pop(segment.key)
            told, self._next = self._next, self._next + 1
            outcome = {**progress.to_dict(), **(facts or {}), "told": told}
            record = TrialRecord(
                key=begun.key,
                number=begun.number,
                status=progress.status.value,
                settings=begun.settings,
                outcome=outcome,
                run_id=progress.run_id,
            )
            self._reserve.write(lambda: end_trial(self.store, self.search_id, record))
            return record

    def killed_cost(self, segment: Segment) -> tuple[float, float]:
        """Return seconds and joules of killed attempts at a segment, as far as known.

        Call it after their journals were imported.
        """
        tags: dict[str, str | None] = {SEARCH_TAG: self.search_id, SEGMENT_TAG: segment.key}
        time_s, energy_j = 0.0, 0.0
        for run in list_runs(self.store, RunFilter(tags=tags)):
            time_s += run.duration_s or 0.0
            if run.result is not None:
                scope = self.experiment.facts.get("scope") or widest_result_scope(run.result)
                energy_j += scope_energy(run.result, scope, Settings()).energy_j or 0.0
        return time_s, energy_j

    def set_status(self, status: str, facts: Mapping[str, Any] | None = None) -> None:
        set_experiment_status(self.store, self.search_id, status, facts)

    def note(self, facts: Mapping[str, Any]) -> None:
        self.running(facts)
        self.experiment = replace(self.experiment, facts={**self.experiment.facts, **facts})

    def running(self, facts: Mapping[str, Any] | None = None) -> None:
        self.set_status(RUNNING, facts)

    def close(self) -> None:
        self._reserve.release()
