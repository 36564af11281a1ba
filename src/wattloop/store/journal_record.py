"""The run of a journal as a record, and the validation of its header.

Any owner of a token may send anything. An invalid header is refused with the first chunk; a journal
that turns out invalid later is quarantined with its reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from wattloop.core.records import Domain, Signal, shape_fault
from wattloop.core.results import Missing, RunStatus, WindowResult
from wattloop.store.journal import FORMAT, Journal
from wattloop.store.run_record import RunRecord, event_rows
from wattloop.store.samples import pack_samples

_RECORD_FIELDS = frozenset(f.name for f in fields(RunRecord)) - {"status", "result"}


def identity_fault(header: Any) -> str:
    """Return why run and format cannot be identified; empty when they can."""
    if not isinstance(header, Mapping):
        return "its header is not an object"
    run_id, form = header.get("run_id"), header.get("format", FORMAT)
    if not isinstance(run_id, str) or not run_id:
        return "its header names no run"
    if not isinstance(form, int) or isinstance(form, bool) or form < 1:
        return f"its format is {str(form)[:40]!r}, not a number from 1 to {FORMAT}"
    return ""


def header_fault(header: Any) -> str:
    """Return the fault of a header; empty when its run can be shown and stored."""
    fault = identity_fault(header)
    if fault:
        return fault
    # null means unknown to the writer, and is left out
    said = {key: header[key] for key in _RECORD_FIELDS if header.get(key) is not None}
    return (
        shape_fault(said, RunRecord, "header")
        or shape_fault(said.get("missing", []), list[Missing], "header.missing")
        or feeds_fault(said.get("feeds", []))
    )


def feeds_fault(feeds: Any) -> str:
    """Return the fault of a run's meters; empty when their series can be read."""
    if not isinstance(feeds, list):
        return "feeds: not a list"
    for number, feed in enumerate(feeds):
        where = f"feeds.{number}"
        if not isinstance(feed, Mapping) or not isinstance(feed.get("meter", ""), str):
            return f"{where}: not a meter"
        fault = shape_fault(feed.get("domains", []), list[Domain], f"{where}.domains")
        fault = fault or shape_fault(feed.get("signals", []), list[Signal], f"{where}.signals")
        if fault:
            return fault
    return ""


# Conversion of a journal into a run record and rows. A run is imported whatever is wrong with its
# journal: torn, invalid or missing parts are recorded in a note.

Close = Callable[[Journal], dict[str, Any]]
"""Computes the end of a run that has none, from its journal."""


def record_of(journal: Journal, close: Close) -> RunRecord:
    """Return the record of a journal's run, ended by `close` where it has no end."""
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
        "saving": saving if isinstance(saving := end.get("saving"), dict) else None,
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
    """Return the end that `close` computes; a run is imported even when it cannot."""
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
    """Return the streams of the header, and those added during the run."""
    feeds = list(journal.header.get("feeds") or ())
    for event in journal.events:
        if isinstance(event, dict) and event.get("type") == "feeds":
            first = int(event.get("first", len(feeds)))
            feeds[first : first + len(event["feeds"])] = event["feeds"]
    return feeds


SENSELESS = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)
"""Errors of a journal whose content cannot be understood."""
Arriving = Callable[[RunRecord], None]
"""Checks a record before it is inserted, and may change it."""


def rows_of_journal(
    journal: Journal, close: Close, arriving: Arriving | None = None
) -> tuple[RunRecord, dict[str, list[dict[str, Any]]]]:
    """Return the record of a journal's run, and its samples, windows, steps and events by table."""
    record = record_of(journal, close)
    if arriving is not None:
        arriving(record)
    samples = pack_samples(record.run_id, record.feeds, journal.blocks)
    events, invalid = event_rows(record.run_id, journal.events)
    if invalid:
        record.notes.append(f"{invalid} of its events made no sense and were left out")
    return record, {**samples, **events}
