"""Windows, steps and events of a run, in the order they were written."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wattloop.core.json_shape import shape_fault
from wattloop.core.results import WindowResult
from wattloop.core.text import plain, plain_data, plain_json

if TYPE_CHECKING:
    from wattloop.store.database import Store


@dataclass(slots=True)
class SortedEvents:
    """Rows that are ready to be inserted, and the number of invalid events."""

    windows: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    strange: int = 0

    def rows(self, run_id: str) -> dict[str, list[dict[str, Any]]]:
        """Rows by table."""
        return {
            table: [{**row, "run_id": run_id, "position": i} for i, row in enumerate(rows)]
            for table, rows in (
                ("windows", self.windows),
                ("steps", self.steps),
                ("events", self.events),
            )
        }


def sort_events(happened: Iterable[dict[str, Any]]) -> SortedEvents:
    """Sort a journal's events by their table."""
    found = SortedEvents()
    for event in happened:
        try:
            match event.get("type"):
                case "window":
                    found.windows.append(_window(event["window"]))
                case "step":
                    found.steps.append(_step(event))
                case "steps":
                    found.steps.extend(_step(step) for step in _single_steps(event))
                case _:
                    found.events.append(_event(event))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            found.strange += 1
    return found


def read_windows(store: "Store", run_id: str) -> list[WindowResult]:
    """Return the closed windows of a run, in the order they closed."""
    return [WindowResult.from_dict(body) for body in _bodies(store, "windows", run_id)]


def read_steps(store: "Store", run_id: str) -> list[dict[str, Any]]:
    """Return training steps and epochs: kind, index, begin_s, end_s, energy per domain, metrics."""
    return _bodies(store, "steps", run_id)


def read_events(store: "Store", run_id: str) -> list[dict[str, Any]]:
    """Return gaps, notes and streams that were added later."""
    return _bodies(store, "events", run_id)


def _bodies(store: "Store", name: str, run_id: str) -> list[dict[str, Any]]:
    # not above: the import of a finished run reads nothing, and SQLAlchemy takes 0.2 s to load
    from sqlalchemy import select

    from wattloop.store.schema import metadata

    table = metadata.tables[name]
    query = select(table.c.body).where(table.c.run_id == run_id).order_by(table.c.position)
    with store.reading() as connection:
        return [plain_data(body) for (body,) in connection.execute(query)]


def _window(data: dict[str, Any]) -> dict[str, Any]:
    fault = shape_fault(data, WindowResult)
    if fault:
        raise ValueError(fault)  # an event that cannot be read back is dropped
    window = WindowResult.from_dict(data)
    return {
        "window_id": int(window.window_id),
        "parent_id": None if window.parent_id is None else int(window.parent_id),
        "name": plain(window.name),
        "begin_s": float(window.begin_s),
        "end_s": float(window.end_s),
        "energy_j": window.energy_j,
        "body": plain_json(data),
    }


def _step(event: dict[str, Any]) -> dict[str, Any]:
    body = {key: value for key, value in event.items() if key != "type"}
    return {
        "kind": plain(event["kind"]),
        "step_index": int(event["index"]),
        "begin_s": float(event["begin_s"]),
        "end_s": float(event["end_s"]),
        "body": plain_json(body),
    }


def _single_steps(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Split an event that holds many steps, a column per field, into single steps.

    Energies are one column per domain; null is "not read" and is left out.
    """
    metrics = {**event.get("metrics", {}), "loss": event.get("loss")}
    columns = {name: values for name, values in metrics.items() if values is not None}
    for i, index in enumerate(event["index"]):
        joules = zip(event["domains"], event["energy_j"], event["uncertainty_j"], strict=True)
        step = {
            "kind": event["kind"],
            "index": index,
            "begin_s": event["begin_s"][i],
            "end_s": event["end_s"][i],
            "energy": {name: [e[i], u[i]] for name, e, u in joules if e[i] is not None},
            "metrics": {name: values[i] for name, values in columns.items()},
        }
        for extra in ("epoch", "count"):
            if extra in event:
                step[extra] = event[extra][i]
        yield step


def _event(event: dict[str, Any]) -> dict[str, Any]:
    time_s = event.get("time_s")
    return {
        "type": plain(event.get("type", "")),
        "time_s": None if time_s is None else float(time_s),
        "body": plain_json(event),
    }
