"""Validation of a journal's header: fields and their types.

Any owner of a token may send anything. An invalid header is refused with the first chunk; a journal
that turns out invalid later is quarantined with its reason.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from wattloop.core.json_shape import shape_fault
from wattloop.core.records import Domain, Signal
from wattloop.core.results import Missing
from wattloop.store.journal import FORMAT
from wattloop.store.run_record import RunRecord

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
