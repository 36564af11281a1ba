"""The nodes of a fleet: their state in memory and in the store."""

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import delete, func, insert, select

from wattloop.core.errors import ConfigError
from wattloop.core.text import plain_data, plain_json
from wattloop.core.units import format_duration
from wattloop.fleet.delivery.node_status import NodeStatus
from wattloop.store.database import Store
from wattloop.store.job_queries import newest_runs
from wattloop.store.schema import nodes, runs

STALE_S = 10.0
"""Age from which a node does not count for the current power."""
OFFSETS = 16
MOST_NODES = 20_000


@dataclass(frozen=True, slots=True)
class NodeNow:
    """Last known state of a node.

    Attributes:
        power_w: watts of all its domains; None when it sent none.
        limit_w: sum of the limits in force of those that have one; None when none is known.
        without_limit: domains whose limit is not known: `limit_w` lacks them.
        age_s: since its power was read, by its own corrected clock, or since its last message.
        heard_wall_s: time of its last message.
        clock_offset_s: lead of its clock; None when it was never measured.
        refusal, refused_wall_s: last refusal, and its time.
    """

    node: str
    status: NodeStatus
    power_w: float | None
    limit_w: float | None
    without_limit: tuple[str, ...]
    age_s: float
    heard_wall_s: float
    clock_offset_s: float | None
    refusal: str = ""
    refused_wall_s: float | None = None

    @property
    def is_stale(self) -> bool:
        """Return True when the node has been silent too long to know its power."""
        return self.age_s > STALE_S


@dataclass(slots=True)
class _Entry:
    status: NodeStatus = field(default_factory=NodeStatus)
    heard_wall_s: float = 0.0
    offsets_s: deque[float] = field(default_factory=lambda: deque(maxlen=OFFSETS))
    kept_offset_s: float | None = None
    refusal: str = ""
    refused_wall_s: float | None = None
    is_fresh: bool = True

    @property
    def clock_offset_s(self) -> float | None:
        # a request takes time on its way, which makes a clock look late: the highest is nearest
        return max(self.offsets_s) if self.offsets_s else self.kept_offset_s


class NodeTable:
    """All nodes; thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._guard = threading.Lock()

    def record(
        self, node: str, wall_s: float | None, status: NodeStatus | None = None
    ) -> float | None:
        """Record a message of a node with its clock; return the clock's offset."""
        now_s = time.time()
        with self._guard:
            entry = self._entry(node)
            entry.heard_wall_s = now_s
            entry.is_fresh = True
            if wall_s is not None:
                _measure(entry, wall_s - now_s)
            if status is not None:
                entry.status = status
            return entry.clock_offset_s

    def record_refusal(self, node: str, reason: str) -> None:
        with self._guard:
            if node in self._entries:  # unknown names are not recorded
                entry = self._entries[node]
                entry.refusal, entry.refused_wall_s = reason, time.time()
                entry.is_fresh = True

    def now(self) -> list[NodeNow]:
        now_s = time.time()
        with self._guard:
            return [_now(node, entry, now_s) for node, entry in sorted(self._entries.items())]

    def names(self) -> frozenset[str]:
        with self._guard:
            return frozenset(self._entries)

    def changed(self) -> dict[str, tuple[float, dict[str, Any]]]:
        """Return what has changed since the last call, for the store."""
        with self._guard:
            found = {}
            for node, entry in self._entries.items():
                if entry.is_fresh:
                    entry.is_fresh = False
                    body = {
                        "status": entry.status.to_dict(),
                        "clock_offset_s": entry.clock_offset_s,
                        "refusal": entry.refusal,
                        "refused_wall_s": entry.refused_wall_s,
                    }
                    found[node] = (entry.heard_wall_s, body)
            return found

    def mark_changed(self, nodes: Iterable[str]) -> None:
        """Mark entries as changed again: the store did not take them."""
        with self._guard:
            for node in nodes:
                if node in self._entries:
                    self._entries[node].is_fresh = True

    def load(self, known: dict[str, tuple[float, dict[str, Any]]]) -> None:
        """Load what an earlier server knew."""
        with self._guard:
            for node, (heard_s, body) in known.items():
                if node not in self._entries:
                    entry = self._entries[node] = _Entry(heard_wall_s=heard_s, is_fresh=False)
                    entry.kept_offset_s = body.get("clock_offset_s")
                    entry.refusal = str(body.get("refusal") or "")
                    entry.refused_wall_s = body.get("refused_wall_s")
                    try:
                        entry.status = NodeStatus.parse(body.get("status"))
                    except ConfigError:
                        continue

    def forget(self, node: str) -> bool:
        """Remove a node; False when it was not known."""
        with self._guard:
            return self._entries.pop(node, None) is not None

    def _entry(self, node: str) -> _Entry:
        if node not in self._entries and len(self._entries) >= MOST_NODES:
            raise ConfigError(f"more than {MOST_NODES} nodes")
        return self._entries.setdefault(node, _Entry())


def _measure(entry: _Entry, offset_s: float) -> None:
    if entry.offsets_s:
        # a clock that was set forward, or twice in a row found set back: not a slow request
        gains_s = offset_s - max(entry.offsets_s)
        if gains_s > 1.0 or (gains_s < -1.0 and abs(entry.offsets_s[-1] - offset_s) < 1.0):
            entry.offsets_s.clear()
    entry.offsets_s.append(offset_s)


def _now(node: str, entry: _Entry, now_s: float) -> NodeNow:
    status = entry.status
    age_s = now_s - entry.heard_wall_s
    if status.read_wall_s is not None:
        read_s = status.read_wall_s - (entry.clock_offset_s or 0.0)
        age_s = max(age_s, now_s - read_s)
    power_w = sum(status.power_w.values()) if status.power_w else None
    limit_w = sum(status.limit_w.values()) if status.limit_w else None
    return NodeNow(
        node=node,
        status=status,
        power_w=power_w,
        limit_w=limit_w,
        without_limit=tuple(name for name in status.power_w if name not in status.limit_w),
        age_s=max(0.0, age_s),
        heard_wall_s=entry.heard_wall_s,
        clock_offset_s=entry.clock_offset_s,
        refusal=entry.refusal,
        refused_wall_s=entry.refused_wall_s,
    )


def write_nodes(store: Store, heard: Mapping[str, tuple[float, dict[str, Any]]]) -> None:
    """Store nodes: name -> (time of the last report, state)."""
    if not heard:
        return
    rows = [
        {"node": node, "heard_wall_s": heard_s, "body": plain_json(body)}
        for node, (heard_s, body) in sorted(heard.items())
    ]
    with store.writing() as connection:
        connection.execute(delete(nodes).where(nodes.c.node.in_(list(heard))))
        connection.execute(insert(nodes), rows)


def known_nodes(store: Store) -> dict[str, tuple[float, dict[str, Any]]]:
    """Return the nodes that `write_nodes` stored."""
    with store.reading() as connection:
        found = connection.execute(select(nodes.c.node, nodes.c.heard_wall_s, nodes.c.body))
        return {node: (heard_s, plain_data(body)) for node, heard_s, body in found}


def forget_node(store: Store, node: str) -> bool:
    """Delete a node; False when it was not known."""
    with store.writing() as connection:
        return connection.execute(delete(nodes).where(nodes.c.node == node)).rowcount > 0


LATELY_S = 7 * 86_400.0
SILENT_S = 300.0
"""Of a stored state: a server writes it every minute."""


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """State of a node, from its agent's last report and from its runs of seven days.

    Attributes:
        reported: what its agent said, and whether it is silent.
        unread: sensors that its newest run could not read, with the remedy.
        failed: status -> number of runs that ended so.
        age_s, last_run_wall_s: since the agent's report; when its newest run began.
    """

    node: str
    reported: tuple[str, ...]
    unread: tuple[str, ...]
    failed: Mapping[str, int]
    power_w: float | None
    age_s: float | None
    last_run_wall_s: float | None
    runs: int
    energy_j: float | None

    @property
    def faults(self) -> tuple[str, ...]:
        """Everything to look at, a line each, with the command that shows it."""
        failed = (
            f"{count} run{'s' * (count != 1)} {status} in 7 days: wattloop runs list --host "
            f"{self.node} --status {status} --since 7d"
            for status, count in self.failed.items()
        )
        return (*self.reported, *self.unread, *failed)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "faults": list(self.faults)}


def node_health(store: Store) -> list[NodeHealth]:
    """Return all nodes that reported or ran something lately, by name."""
    since_s = time.time() - LATELY_S
    book = NodeTable()
    book.load(known_nodes(store))
    heard = {one.node: one for one in book.now()}
    newest = {record.host: record for record in newest_runs(store, since_s, MOST_NODES)}
    query = (
        select(runs.c.host, runs.c.status, func.count(), func.sum(runs.c.energy_j))
        .where(runs.c.started_wall_s >= since_s, runs.c.host != "")
        .group_by(runs.c.host, runs.c.status)
    )
    sums: dict[str, list[tuple[str, int, float | None]]] = {}
    with store.reading() as connection:
        for host, status, count, energy_j in connection.execute(query):
            sums.setdefault(host, []).append((status, count, energy_j))
    found = []
    for node in sorted({*heard, *sums}):
        record, parts = newest.get(node), sums.get(node, [])
        missing = () if record is None or record.result is None else record.result.missing
        energies_j = [energy_j for _, _, energy_j in parts if energy_j is not None]
        found.append(
            NodeHealth(
                node=node,
                reported=tuple(_reported(heard[node])) if node in heard else (),
                unread=tuple(
                    f"{part.name} is not read: {part.reason}{part.remedy and f'; {part.remedy}'}"
                    for part in missing
                ),
                failed={s: count for s, count, _ in parts if s in ("failed", "died", "killed")},
                power_w=heard[node].power_w if node in heard else None,
                age_s=heard[node].age_s if node in heard else None,
                last_run_wall_s=None if record is None else record.started_wall_s,
                runs=sum(count for _, count, _ in parts),
                energy_j=sum(energies_j) if energies_j else None,
            )
        )
    return found


def _reported(one: NodeNow) -> list[str]:
    faults = [*one.status.faults]
    if one.age_s > SILENT_S:
        faults.append(f"silent for {format_duration(one.age_s)}: is its agent running?")
    return faults + ([f"refused: {one.refusal}"] if one.refusal else [])
