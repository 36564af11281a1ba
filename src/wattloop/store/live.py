"""Runs that are still going on: known from the header of the journal that somebody holds."""

from pathlib import Path
from typing import Any

from wattloop.core.records import RunStatus
from wattloop.store.database import Store
from wattloop.store.journal import journal_is_live, read_header
from wattloop.store.runs import RunRecord

__all__ = ["live_runs"]


def live_runs(store: Store) -> list[RunRecord]:
    """Newest first; without result, which only the end of a run has."""
    found = []
    for path in store.journals.glob("*.journal"):
        header = _header(path) if _is_live(path) else None
        if header is not None:
            record = RunRecord.from_dict({**header, "status": RunStatus.RUNNING.value})
            found.append(record)
    return sorted(found, key=lambda record: record.started_wall_s, reverse=True)


def _is_live(path: Path) -> bool:
    try:
        # a reader's lock on an empty journal could come before its writer's own
        return path.stat().st_size > 0 and journal_is_live(path)
    except OSError:
        return False


def _header(path: Path) -> dict[str, Any] | None:
    try:
        header = read_header(path)
    except OSError:
        return None
    if header is None or not header.get("run_id"):
        return None
    return {key: value for key, value in header.items() if value is not None}
