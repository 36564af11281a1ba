"""The record of a run: its rows in the store, and how a journal becomes one.

Any owner of a token may send any journal. An invalid header is refused with the first chunk; a
journal that turns out invalid later is quarantined with its reason.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from wattloop.core.records import Domain, Provenance, Scope, Signal, shape_fault
from wattloop.core.results import Missing, RunStatus, WindowResult, below_peers, label_of
from wattloop.core.text import plain, plain_data, plain_json
from wattloop.store.journal import FORMAT, Journal
from wattloop.store.samples import pack_samples

if TYPE_CHECKING:
    from wattloop.store.database import Store


ALL = 0.99
"""A run of whose energy other runs count more than this share is in no total."""


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """All data of one run except its samples, windows and steps.

    Attributes:
        run_id: unique; sorts by time of start.
        kind: `command`, `python`, or `imported`.
        started_wall_s: time of day of the start, seconds since 1970 UTC.
        started_s: the same moment on the machine's monotonic clock, which samples use.
        result: the root window: energy per domain, what is missing, warnings.
        accounting: idle, carbon, cost and labels, as computed when the run ended.
        counted: False when another run on this node already counts the same devices.
        counted_by: the run that does.
        shared: the time in which other runs counted the same devices, and the joules of it that
            they count (`left_out_j`): totals do not add those again.
        saving: what `wattloop run --save` saved and how that is known, as `cap.saver.SavingResult`
            writes it; None for a run without it.
        notes: what happened to the record itself, such as a torn journal.
        quarantine: why its figures are not trusted; they are in no total then.
        clock_offset_s: how far its machine's clock was ahead of the server's; start and end are
            corrected by it.
        provisional: kept because its machine fell silent; replaced when all of it comes.
    """

    run_id: str
    name: str = ""
    status: RunStatus = RunStatus.FINISHED
    kind: str = "command"
    command: list[str] | None = None
    started_wall_s: float = 0.0
    started_s: float = 0.0
    ended_wall_s: float | None = None
    ended_s: float | None = None
    host: str = ""
    machine_id: str = ""
    boot_id: str = ""
    pid: int | None = None
    user: str = ""
    cwd: str = ""
    python: str = ""
    version: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] | None = None
    parent_run_id: str | None = None
    feeds: list[dict[str, Any]] = field(default_factory=list)
    missing: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int | None = None
    signal: int | None = None
    result: WindowResult | None = None
    accounting: dict[str, Any] | None = None
    counted: bool = True
    counted_by: str | None = None
    shared: dict[str, Any] | None = None
    saving: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    quarantine: str | None = None
    clock_offset_s: float | None = None
    provisional: bool = False

    @property
    def duration_s(self) -> float | None:
        """Length of the root window, else of the run."""
        if self.result is not None:
            return self.result.duration_s
        return None if self.ended_s is None else self.ended_s - self.started_s

    @property
    def energy_j(self) -> float | None:
        """Joules of all devices that were read; None when none was."""
        return None if self.result is None else self.result.energy_j

    @property
    def left_out(self) -> float:
        """Share of its energy that another run counts, 0 to 1."""
        left_out_j, energy_j = (self.shared or {}).get("left_out_j"), self.energy_j
        if not isinstance(left_out_j, int | float) or not energy_j:
            return 0.0
        part = min(1.0, max(0.0, left_out_j / energy_j))
        return 1.0 if part > ALL else part

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with duration, energy and uncertainty."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        data["status"] = self.status.value
        data["result"] = None if self.result is None else self.result.to_dict()
        data["duration_s"] = self.duration_s
        data["energy_j"] = self.energy_j
        data["uncertainty_j"] = None if self.result is None else self.result.uncertainty_j
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "RunRecord":
        """Convert back from `to_dict`; fields of later versions are left out."""
        known = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        known["status"] = RunStatus(known.get("status", RunStatus.FINISHED))
        if known.get("result") is not None:
            known["result"] = WindowResult.from_dict(known["result"])
        return cls(**known)


def read_record(body: str) -> RunRecord:
    return RunRecord.from_dict(plain_data(body))


# Rows of a run. They are built without a database library, so that the import of a finished run
# needs none.
def record_rows(record: RunRecord, job_key: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a record by table; the row of its job is not among them."""
    tags = [
        {"run_id": record.run_id, "key": plain(key), "value": plain(value)}
        for key, value in record.tags.items()
    ]
    row = {**run_row(record), "job_key": job_key}
    return {"runs": [row], "run_tags": tags, "run_facts": [facts_row(record)]}


def run_row(record: RunRecord) -> dict[str, Any]:
    """Return columns for lists and totals: energy and `counted` are the run's part of a total."""
    part = 1.0 if record.left_out == 1.0 else 1.0 - record.left_out
    energy_j = record.energy_j
    return {
        "run_id": record.run_id,
        "name": plain(record.name),
        "status": record.status.value,
        "kind": plain(record.kind),
        "host": plain(record.host),
        "machine_id": plain(record.machine_id),
        "user_name": plain(record.user),
        "job_id": None if not record.job else plain(record.job.get("id") or ""),
        "parent_run_id": record.parent_run_id,
        "started_wall_s": record.started_wall_s,
        "duration_s": record.duration_s,
        "energy_j": None if energy_j is None else part * energy_j,
        "uncertainty_j": None if record.result is None else part * record.result.uncertainty_j,
        "exit_code": record.exit_code,
        "counted": record.counted and record.left_out < 1.0,
        "body": plain_json(record.to_dict()),
        "quarantine": record.quarantine,
        "clock_offset_s": record.clock_offset_s,
    }


def facts_row(record: RunRecord) -> dict[str, Any]:
    job: Mapping[str, Any] = (record.job or {}).get("scheduler") or {}
    tags = record.tags
    accounting = record.accounting or {}
    result = record.result
    labels = accounting.get("labels") or {}
    facility = accounting.get("facility") or {}
    # what another run counts is in that run's grid energy and carbon
    part = 1.0 if record.left_out == 1.0 else 1.0 - record.left_out
    return {
        "run_id": record.run_id,
        "cluster": plain(tags.get("cluster") or job.get("cluster") or ""),
        "partition": plain(tags.get("partition") or job.get("partition") or ""),
        "project": plain(tags.get("project") or job.get("project") or ""),
        "exclusive": _exclusive(job.get("exclusive")),
        "device": plain(_device(record)),
        "label": labels.get("node") or labels.get("gpu") or labels.get("cpu") or "",
        "insights": ",".join(
            [
                *(str(one["code"]) for one in accounting.get("insights") or ()),
                *(["shared"] if record.shared else []),
            ]
        ),
        "provenance": "" if result is None or not result.provenance else result.provenance.value,
        "complete": result is not None and result.complete,
        "facility_j": _part(facility.get("energy_j"), part),
        "carbon_g": _part(accounting.get("carbon_g"), part),
        "efficiency": _efficiency(accounting),
        "job_nodes": _count(job.get("nodes")),
    }


def _part(value: Any, part: float) -> Any:
    return part * value if part < 1.0 and isinstance(value, int | float) else value


def _exclusive(value: Any) -> bool | None:
    """Return True if the job had its nodes to itself; None where unknown."""
    if value is None or value == "":
        return None
    return str(value).lower() not in ("0", "no", "false")


def _count(value: Any) -> int | None:
    """Return the number of the job's nodes, from the batch system."""
    text = str(value or "")
    return int(text) if text.isdecimal() and 0 < len(text) < 7 else None


def _efficiency(accounting: Mapping[str, Any]) -> float | None:
    """Return energy over limit x time of all devices of the node."""
    for one in accounting.get("efficiencies") or ():
        if isinstance(one, Mapping) and one.get("name") == "node":
            value = one.get("value")
            return float(value) if isinstance(value, int | float) else None
    return None


def _device(record: RunRecord) -> str:
    """Return the device that used most energy, which groups runs by kind of machine."""
    if record.result is None:
        return ""
    known = [d for d in record.result.domains if d.energy_j is not None and d.device]
    gpus = [d for d in known if d.scope is Scope.GPU] or known
    return max(gpus, key=lambda d: d.energy_j or 0.0).device or "" if gpus else ""


# Jobs. A job of a batch system is one row, however many nodes measured it. Any other run is its own
# job.
AGENT_KINDS = ("slurm", "kubernetes")
"""Kinds of the runs that a node agent writes. Where a job has any, they are its energy; energy
measured by the user's own program is shown in addition and not added."""
UNALLOCATED_KIND = "unallocated"
"""Kind of the runs with a node's energy outside of jobs."""
LONGEST_KEY = 200
_WORST_LAST = [*RunStatus]


def job_key_of(record: RunRecord) -> str:
    """Return the job that a run belongs to: the batch system's where it is part of one, else
    itself.
    """
    job = record.job or {}
    facts = job.get("scheduler")
    if isinstance(facts, Mapping):
        scheduler = facts.get("scheduler") or (job.get("kind") == "slurm" and "slurm")
        if scheduler and facts.get("job"):
            cluster = record.tags.get("cluster") or facts.get("cluster") or ""
            return plain(f"{scheduler}:{cluster}:{facts['job']}")[:LONGEST_KEY]
    return record.run_id


def job_row(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the row of a job; `members` have the columns of its runs and their facts."""
    first = members[0]
    by_agents = [m for m in members if m["kind"] in AGENT_KINDS]
    adds = [m for m in by_agents or members if _counts(m)]
    shown = adds or by_agents or members
    begin_s = min(m["started_wall_s"] for m in shown)
    ends_s = [m["started_wall_s"] + m["duration_s"] for m in shown if m["duration_s"] is not None]
    energy_j = _total(m["energy_j"] for m in shown)
    nodes = len({m["host"] for m in shown})
    expected = max((m["job_nodes"] or 0 for m in by_agents), default=0) or None
    return {
        "first_run_id": first["run_id"],
        "job_id": first["job_id"],
        **{name: shown[0][name] for name in ("name", "kind", "user_name", "exclusive")},
        "status": max((m["status"] for m in shown), key=_badness),
        "host": shown[0]["host"],
        "nodes": nodes,
        "nodes_expected": expected,
        "runs": len(members),
        "started_wall_s": begin_s,
        "duration_s": max(ends_s) - begin_s if ends_s else None,
        "energy_j": energy_j,
        "uncertainty_j": None if energy_j is None else _uncertainty_j(shown),
        "counted": any(m["counted"] for m in shown),
        "in_totals": bool(adds),
        "quarantined": sum(m["quarantine"] is not None for m in members),
        **{name: _first(shown, name) for name in ("cluster", "partition", "project")},
        "device": _first(shown, "device"),
        **_judged(shown),
        "provenance": _provenance(shown),
        # a node without figures, or with quarantined ones, is a missing part
        "complete": all(m["complete"] for m in shown)
        and nodes >= (expected or 0)
        and not any(m["quarantine"] is not None for m in by_agents if m not in shown),
        "facility_j": _total(m["facility_j"] for m in shown),
        "carbon_g": _total(m["carbon_g"] for m in shown),
    }


def _counts(member: Mapping[str, Any]) -> bool:
    return bool(
        member["counted"] and member["parent_run_id"] is None and member["quarantine"] is None
    )


def _judged(shown: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return label and insights: of all nodes together, and of nodes against each other."""
    codes = dict.fromkeys(code for m in shown for code in (m["insights"] or "").split(",") if code)
    known = [m for m in shown if m["efficiency"] and m["energy_j"]]
    if len(shown) == 1 or not known:
        return {"label": _first(shown, "label"), "insights": ",".join(codes)}
    # energy / (limit x time) of the sum; each node's limit x time is its energy / efficiency
    limits_j = sum(m["energy_j"] / m["efficiency"] for m in known)
    by_node: dict[str, float] = {}
    for member in known:
        by_node.setdefault(member["host"], member["efficiency"])
    if below_peers(by_node):
        codes["node_imbalance"] = None
    label = label_of(sum(m["energy_j"] for m in known) / limits_j).value
    for code in ("low", "high"):  # of single nodes; the job has its own
        if code != label:
            codes.pop(f"{code}_efficiency", None)
    return {"label": label, "insights": ",".join(codes)}


def _total(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


def _uncertainty_j(shown: Sequence[Mapping[str, Any]]) -> float:
    return math.hypot(*(m["uncertainty_j"] or 0.0 for m in shown))


def _first(shown: Sequence[Mapping[str, Any]], name: str) -> str:
    return next((m[name] for m in shown if m[name]), "")


def _badness(status: str) -> int:
    return next((n for n, known in enumerate(_WORST_LAST) if known.value == status), 0)


def _provenance(shown: Sequence[Mapping[str, Any]]) -> str:
    known = [Provenance(m["provenance"]) for m in shown if m["provenance"]]
    return Provenance.weakest(known).value if known else ""


# Windows, steps and events of a run, in the order they were written.
def event_rows(
    run_id: str, happened: Iterable[dict[str, Any]]
) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """Return the rows of a journal's events by table, and the number of invalid events."""
    windows: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    curve = StepCurve()
    invalid = 0
    for event in happened:
        try:
            match event.get("type"):
                case "window":
                    windows.append(_window(event["window"]))
                case "step":
                    steps.append(_step(event))
                    curve.add(event)
                case "steps":
                    for step in _single_steps(event):
                        steps.append(_step(step))
                        curve.add(step)
                case _:
                    events.append(_event(event))
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError):
            invalid += 1
    if curve.steps > CURVED_STEPS:
        events.append(_event(curve.to_event()))
    tables = {"windows": windows, "steps": steps, "events": events}
    for rows in tables.values():
        for position, row in enumerate(rows):
            row |= {"run_id": run_id, "position": position}
    return tables, invalid


CURVED_STEPS = 2_000
"""A run with more steps also gets their downsampled curve: reading every step takes seconds."""
CURVE_POINTS = 1_000


class StepCurve:
    """Downsampled steps of a run: sums of neighbouring steps, in at most `CURVE_POINTS` points.

    Energies are pairs of joules and the number of steps that were read. Samples and tokens that a
    step lacks are None.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._size = 1
        self._points: list[dict[str, Any]] = []

    def add(self, step: Mapping[str, Any]) -> None:
        """Add a valid step as the store has it; epochs are not steps."""
        if step["kind"] != "step":
            return
        try:
            added = _curve_point(step)
        except (AttributeError, IndexError, TypeError):  # metrics of another kind: not in a curve
            return
        self.steps += 1
        point = self._points[-1] if self._points else None
        if point is not None and point["rows"] < self._size:
            _add_point(point, added)
            return
        if len(self._points) >= 2 * CURVE_POINTS:
            self._halve()
        self._points.append(added)

    def to_event(self) -> dict[str, Any]:
        """Return the event that the store has: a list of points."""
        while len(self._points) > CURVE_POINTS:
            self._halve()
        return {"type": "step_curve", "points": self._points}

    def _halve(self) -> None:
        self._size *= 2
        pairs = zip(self._points[::2], self._points[1::2], strict=False)
        left = self._points[-1:] if len(self._points) % 2 else []
        self._points = [_add_point(*pair) for pair in pairs] + left


def _curve_point(step: Mapping[str, Any]) -> dict[str, Any]:
    metrics = step.get("metrics") or {}
    count = step.get("count")
    count = count if isinstance(count, int) and count > 0 else 1
    loss = _finite(metrics.get("loss"))
    return {
        "number": int(step["index"]),
        "rows": 1,
        "steps": count,
        "end_s": float(step["end_s"]),
        "time_s": float(step["end_s"]) - float(step["begin_s"]),
        "energy": {
            name: [joules, count]
            for name, pair in (step.get("energy") or {}).items()
            if (joules := _finite(pair[0])) is not None
        },
        "loss": loss,
        "losses": 0 if loss is None else 1,
        # a row for several steps has the samples of the last of them only
        "samples": _finite(metrics.get("samples")) if count == 1 else None,
        "tokens": _finite(metrics.get("tokens")) if count == 1 else None,
    }


def _add_point(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Add the sums of `other` to `one`; a loss is the mean of those that are known."""
    for name, (joules, count) in other["energy"].items():
        whole = one["energy"].setdefault(name, [0.0, 0])
        whole[0] += joules
        whole[1] += count
    losses = one["losses"] + other["losses"]
    if losses:
        one["loss"] = sum((p["loss"] or 0.0) * p["losses"] for p in (one, other)) / losses
    one["losses"] = losses
    for name in ("samples", "tokens"):
        one[name] = _sum(one[name], other[name])
    for name in ("rows", "steps", "time_s"):
        one[name] += other[name]
    one["end_s"] = other["end_s"]
    return one


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def read_windows(store: "Store", run_id: str) -> list[WindowResult]:
    """Return the closed windows of a run, in the order they closed."""
    return [WindowResult.from_dict(body) for body in _bodies(store, "windows", run_id)]


def read_steps(
    store: "Store", run_id: str, most: int | None = None, *, kind: str | None = None
) -> list[dict[str, Any]]:
    """Return training steps and epochs: kind, index, begin_s, end_s, energy per domain, metrics.

    Args:
        store: where they are.
        run_id: of the run.
        most: read about so many at most, evenly spread over the run; `stands_for` of each says how
            many it stands for.
        kind: only `step` or `epoch`.
    """
    from sqlalchemy import func, select

    from wattloop.store.schema import metadata

    table = metadata.tables["steps"]
    wanted = table.c.run_id == run_id
    if kind is not None:
        wanted &= table.c.kind == kind
    every = 1
    if most is not None:
        with store.reading() as connection:
            count = connection.execute(select(func.count()).where(wanted)).scalar() or 0
        every = max(1, -(-count // most))
        wanted &= table.c.position % every == 0
    query = select(table.c.body).where(wanted).order_by(table.c.position)
    with store.reading() as connection:
        steps = [plain_data(body) for (body,) in connection.execute(query)]
    return steps if every == 1 else [step | {"stands_for": every} for step in steps]


def runs_with_steps(store: "Store") -> set[str]:
    """Return the runs that have steps, or phases of their steps."""
    from sqlalchemy import select, union

    from wattloop.store.schema import metadata

    steps, events = metadata.tables["steps"], metadata.tables["events"]
    phases = select(events.c.run_id).where(events.c.type == "phases")
    query = union(select(steps.c.run_id), phases)
    with store.reading() as connection:
        return {run_id for (run_id,) in connection.execute(query)}


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


# The run of a journal as a record, and the validation of its header.

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
