"""What happened inside a run: windows, steps and events, in the order they were written."""

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Table, insert, select

from wattloop.core.records import WindowResult
from wattloop.store.database import Store
from wattloop.store.schema import events, steps, windows
from wattloop.store.text import json_text, plain

__all__ = ["read_events", "read_steps", "read_windows", "write_events"]


def write_events(connection: Connection, run_id: str, happened: Iterable[dict[str, Any]]) -> int:
    """Sort a journal's events into their tables; the number that could not be understood."""
    rows: dict[str, list[dict[str, Any]]] = {"windows": [], "steps": [], "events": []}
    strange = 0
    for position, event in enumerate(happened):
        key = {"run_id": run_id, "position": position}
        try:
            if event.get("type") == "window":
                rows["windows"].append(key | _window(event["window"]))
            elif event.get("type") == "step":
                rows["steps"].append(key | _step(event))
            else:
                rows["events"].append(key | _event(event))
        except (AttributeError, KeyError, TypeError, ValueError):
            strange += 1
    for table in (windows, steps, events):
        if rows[table.name]:
            connection.execute(insert(table), rows[table.name])
    return strange


def read_windows(store: Store, run_id: str) -> list[WindowResult]:
    """The closed windows of a run, in the order they closed."""
    return [WindowResult.from_dict(body) for body in _bodies(store, windows, run_id)]


def read_steps(store: Store, run_id: str) -> list[dict[str, Any]]:
    """Training steps and epochs: kind, index, begin_s, end_s, energy per domain, metrics."""
    return _bodies(store, steps, run_id)


def read_events(store: Store, run_id: str) -> list[dict[str, Any]]:
    """Gaps, notes and feeds that were added later."""
    return _bodies(store, events, run_id)


def _bodies(store: Store, table: Table, run_id: str) -> list[dict[str, Any]]:
    query = select(table.c.body).where(table.c.run_id == run_id).order_by(table.c.position)
    with store.reading() as connection:
        return [json.loads(body) for (body,) in connection.execute(query)]


def _window(data: dict[str, Any]) -> dict[str, Any]:
    window = WindowResult.from_dict(data)  # what cannot be read back is not worth keeping
    return {
        "window_id": int(window.window_id),
        "parent_id": None if window.parent_id is None else int(window.parent_id),
        "name": plain(window.name),
        "begin_s": float(window.begin_s),
        "end_s": float(window.end_s),
        "energy_j": window.energy_j,
        "body": json_text(data),
    }


def _step(event: dict[str, Any]) -> dict[str, Any]:
    body = {key: value for key, value in event.items() if key != "type"}
    return {
        "kind": plain(event["kind"]),
        "step_index": int(event["index"]),
        "begin_s": float(event["begin_s"]),
        "end_s": float(event["end_s"]),
        "body": json_text(body),
    }


def _event(event: dict[str, Any]) -> dict[str, Any]:
    time_s = event.get("time_s")
    return {
        "type": plain(event.get("type", "")),
        "time_s": None if time_s is None else float(time_s),
        "body": json_text(event),
    }
