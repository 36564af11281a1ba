"""What a journal says of its run, as the record that is kept of it.

A run is kept whatever is wrong with its journal: what is torn, odd or missing is said in a note.
"""

from collections.abc import Callable
from typing import Any

from wattloop.core.json_shape import shape_fault
from wattloop.core.results import RunStatus, WindowResult
from wattloop.store.journal import Journal
from wattloop.store.runs import RunRecord

__all__ = ["Close", "record_of"]

Close = Callable[[Journal], dict[str, Any]]
"""Computes the end of a run that has none, from what its journal holds."""


def record_of(journal: Journal, close: Close) -> RunRecord:
    """The record of a journal's run, ended by `close` where it has no end."""
    header, notes = journal.header, []
    if journal.torn_bytes:
        notes.append(f"the last {journal.torn_bytes} bytes of its journal were torn and left out")
    end = journal.end
    result = _result(end)
    if end is None or (result is None and end.get("result") is not None):
        end, result = _closed(journal, close, notes)
    fields = {
        **{key: value for key, value in header.items() if key in _FROM_HEADER},
        "feeds": _feeds(journal),
        "status": _status(end),
        "ended_s": end.get("time_s"),
        "ended_wall_s": end.get("wall_s"),
        "exit_code": end.get("exit_code"),
        "signal": end.get("signal"),
        "accounting": end.get("accounting"),
        "counted": bool(end.get("counted", True)),
        "counted_by": end.get("counted_by"),
        "shared": shared if isinstance(shared := end.get("shared"), dict) else None,
        "notes": notes,
    }
    record = RunRecord(run_id=header["run_id"])
    for name, value in fields.items():
        if value is not None:
            setattr(record, name, value)
    record.result = result
    return record


_FROM_HEADER = frozenset(
    (
        *("name", "command", "kind", "started_wall_s", "started_s", "boot_id", "host"),
        *("machine_id", "pid", "user", "cwd", "python", "version", "settings", "tags"),
        *("job", "parent_run_id", "missing"),
    )
)


def _closed(
    journal: Journal, close: Close, notes: list[str]
) -> tuple[dict[str, Any], WindowResult | None]:
    """The end that `close` computes; a run is kept even when it cannot."""
    try:
        end = close(journal)
        result = _result(end)
    except Exception as error:  # noqa: BLE001 - a run with an odd journal is kept, not lost
        notes.append(f"its energy could not be computed: {type(error).__name__}: {error}")
        end, result = {}, None
    times_s = [block.times_s[-1] for block in journal.blocks if len(block.times_s)]
    last_s = max(times_s, default=journal.header.get("started_s", 0.0))
    lived_s = last_s - journal.header.get("started_s", last_s)
    wall_s = journal.header.get("started_wall_s", 0.0) + lived_s
    return {"status": RunStatus.DIED, "time_s": last_s, "wall_s": wall_s, **end}, result


def _result(end: dict[str, Any] | None) -> WindowResult | None:
    try:
        data = None if end is None else end.get("result")
        if data is None or shape_fault(data, WindowResult):
            return None
        return WindowResult.from_dict(data)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _status(end: dict[str, Any]) -> RunStatus:
    try:
        return RunStatus(end.get("status", RunStatus.DIED))
    except ValueError:
        return RunStatus.DIED


def _feeds(journal: Journal) -> list[dict[str, Any]]:
    """The feeds of the header, and those added while the run went on."""
    feeds = list(journal.header.get("feeds") or ())
    for event in journal.events:
        if isinstance(event, dict) and event.get("type") == "feeds":
            first = int(event.get("first", len(feeds)))
            feeds[first : first + len(event["feeds"])] = event["feeds"]
    return feeds
