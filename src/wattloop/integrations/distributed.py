"""Several processes, possibly on several nodes, measured as one job."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol

from wattloop.core.records import Scope
from wattloop.core.results import RunStatus
from wattloop.integrations.training_meter import TrainingMeter
from wattloop.measure.session import RunResult

PATIENCE_S = 120.0
"""A rank that has not come after so long has died; the others go on without it."""
POLL_S = 0.002


class Ranks(Protocol):
    """The processes of a job, seen from one of them."""

    rank: int
    size: int

    def barrier(self) -> None:
        """Wait for the others; raises when one of them does not come."""
        ...

    def gather(self, item: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Every rank's item, in order, on rank 0; None on the others."""
        ...


def current_ranks() -> Ranks:
    """Return the ranks of torch.distributed, else of MPI, else a single process.

    Every rank must call this, since a group of its own may have to be made.
    """
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return TorchRanks(distributed)
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        return MpiRanks(mpi)
    return AloneRanks()


class AloneRanks:
    """A job of one process."""

    rank = 0
    size = 1

    def barrier(self) -> None:
        """Return at once: a single process has no other ranks."""

    def gather(self, item: dict[str, Any]) -> list[dict[str, Any]] | None:
        return [item]


class TorchRanks:
    """torch.distributed, over a group on the CPU so that no GPU has to work for it."""

    def __init__(self, distributed: Any, patience_s: float = PATIENCE_S) -> None:
        self._distributed = distributed
        self.rank = int(distributed.get_rank())
        self.size = int(distributed.get_world_size())
        self._group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=patience_s))

    def barrier(self) -> None:
        self._distributed.barrier(group=self._group)

    def gather(self, item: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Every rank's item on rank 0."""
        items: list[Any] | None = [None] * self.size if self.rank == 0 else None
        self._distributed.gather_object(item, items, dst=0, group=self._group)
        return items


class MpiRanks:
    """MPI, over a duplicate of the world's communicator so that no message meets the program's."""

    def __init__(self, mpi: Any, patience_s: float = PATIENCE_S) -> None:
        self._world = mpi.COMM_WORLD.Dup()
        self._patience_s = patience_s
        self.rank = int(self._world.Get_rank())
        self.size = int(self._world.Get_size())

    def barrier(self) -> None:
        """Wait for the others without burning a core."""
        request = self._world.Ibarrier()
        limit_s = time.monotonic() + self._patience_s
        while not request.Test():
            if time.monotonic() > limit_s:
                raise TimeoutError(f"a rank did not come within {self._patience_s:g} s")
            time.sleep(POLL_S)

    def gather(self, item: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Every rank's item on rank 0."""
        items: list[dict[str, Any]] | None = self._world.gather(item, root=0)
        return items


PACKAGE, MEMORY = "Pkg (J)", "RAM (J)"
NOT_READ = "-"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node: joules per column of the table, its total, its time.

    `ranks` is how many processes ran there; `missing` names parts that could not be read.
    """

    node: str
    ranks: int
    columns: Mapping[str, float]
    energy_j: float | None
    uncertainty_j: float
    duration_s: float
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankTable:
    """All nodes of a job, each device counted once."""

    nodes: tuple[NodeRow, ...]
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, reports: Sequence[Mapping[str, Any]]) -> RankTable:
        """From one report per rank; only those that count have energies."""
        by_node: dict[str, list[Mapping[str, Any]]] = {}
        for report in reports:
            by_node.setdefault(report["node"], []).append(report)
        nodes = tuple(_node(name, by_node[name]) for name in sorted(by_node))
        return cls(nodes, tuple(w for node in nodes for w in node.warnings))

    @property
    def energy_j(self) -> float | None:
        """Joules of all nodes; None when none could be read."""
        parts = [n.energy_j for n in self.nodes if n.energy_j is not None]
        return sum(parts) if parts else None

    @property
    def uncertainty_j(self) -> float:
        """Half-width of `energy_j`; sensors of different nodes are independent."""
        return math.sqrt(sum(n.uncertainty_j**2 for n in self.nodes))

    @property
    def duration_s(self) -> float:
        """Seconds of the node that took longest."""
        return max((n.duration_s for n in self.nodes), default=0.0)

    @property
    def complete(self) -> bool:
        """Return True when every known part of every node was read."""
        return all(n.energy_j is not None and not n.missing for n in self.nodes)

    def table(self) -> str:
        """A row per node and one for the total; what was not read is `-`, never 0."""
        names = sorted({c for n in self.nodes for c in n.columns}, key=_column_order)
        rows = [["Node", *names, "Time (s)", "Total (J)"]]
        for node in self.nodes:
            values = [_number(node.columns.get(name)) for name in names]
            rows.append([node.node, *values, _number(node.duration_s), _number(node.energy_j)])
        sums = [_number(_sum(n.columns.get(name) for n in self.nodes)) for name in names]
        rows.append(["Total", *sums, _number(self.duration_s), _number(self.energy_j)])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        notes = [f"not read on {n.node}: {', '.join(n.missing)}" for n in self.nodes if n.missing]
        return "\n".join([*lines, *notes, *self.warnings])

    def to_dict(self) -> dict[str, Any]:
        return {
            "energy_j": self.energy_j,
            "uncertainty_j": self.uncertainty_j,
            "duration_s": self.duration_s,
            "complete": self.complete,
            "nodes": [
                {**asdict(node, dict_factory=_without_warnings), "missing": list(node.missing)}
                for node in self.nodes
            ],
            "warnings": list(self.warnings),
        }


def _without_warnings(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in fields if name != "warnings"}


def _node(name: str, reports: Sequence[Mapping[str, Any]]) -> NodeRow:
    counting = sorted(
        (r for r in reports if r["counted"]), key=lambda r: r["duration_s"], reverse=True
    )
    longest_s = max(r["duration_s"] for r in reports)
    warnings = []
    if not counting:
        warnings.append(f"{name}: no rank counted its devices; another run there does")
        return NodeRow(name, len(reports), {}, None, 0.0, longest_s, (), tuple(warnings))
    if len(counting) > 1:
        warnings.append(f"{name}: {len(counting)} ranks counted; the one that ran longest is used")
    counted = counting[0]
    read = [d for d in counted["domains"] if d["in_total"] and d["energy_j"] is not None]
    columns: dict[str, float] = {}
    for domain in read:
        column = _column(domain)
        columns[column] = columns.get(column, 0.0) + domain["energy_j"]
    return NodeRow(
        name,
        len(reports),
        columns,
        sum(columns.values()) if columns else None,
        math.sqrt(sum(d["uncertainty_j"] ** 2 for d in read)),
        longest_s,
        tuple(counted["missing"]),
        tuple(warnings),
    )


def _column(domain: Mapping[str, Any]) -> str:
    if domain["scope"] == Scope.CPU.value:
        return PACKAGE
    if domain["scope"] == Scope.DRAM.value:
        return MEMORY
    if domain["scope"] == Scope.GPU.value:
        return f"GPU {domain['name'].removeprefix('gpu:')} (J)"
    return f"{domain['name']} (J)"


def _column_order(name: str) -> tuple[int, int, str]:
    if name == PACKAGE:
        return (0, 0, name)
    if name.startswith("GPU "):
        number = name.split()[1]
        return (1, int(number) if number.isdigit() else 1_000, name)
    return (2 if name == MEMORY else 3, 0, name)


def _number(value: float | None) -> str:
    return NOT_READ if value is None else f"{value:.1f}"


def _sum(values: Any) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


# Several processes, perhaps on several nodes, measured as one job.
#
#     with measured_together(EnergyMeter()) as job:
#         train(job.meter)
#     if job.energy is not None:          # on rank 0
#         print(job.energy.table())
#
# Works under `torchrun`, `mpirun` and `srun`: ranks begin and end together, each device is counted
# once per node, and rank 0 gets a table of all nodes.

_log = logging.getLogger("wattloop")


def measured_together(meter: TrainingMeter, ranks: Ranks | None = None) -> MeasuredJob:
    """A context manager that begins and ends `meter` at the same time in every rank."""
    return MeasuredJob(meter, ranks)


def gather(run: RunResult, node: str, ranks: Ranks | None = None) -> RankTable | None:
    """Energies of every rank's run, by node; on rank 0, None elsewhere. Called by every rank."""
    items = (ranks or current_ranks()).gather(_report(run, node))
    return None if items is None else RankTable.of(items)


class MeasuredJob:
    """This process's part in a job.

    Attributes:
        meter: this rank's meter.
        energy: after the end, on rank 0: the energy of all nodes.
    """

    def __init__(self, meter: TrainingMeter, ranks: Ranks | None = None) -> None:
        self.meter = meter
        self.energy: RankTable | None = None
        self._ranks: Ranks = ranks or AloneRanks()
        self._find_ranks = ranks is None

    def __enter__(self) -> MeasuredJob:
        if self._find_ranks:
            self._ranks = current_ranks()
        self._together()
        self.meter.begin()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is not None:  # the others will not come to a rank that failed
            self.meter.end(RunStatus.FAILED)
            return
        self._together()
        # The rank that counts the node's devices ends last, so that no other takes over the count.
        session = self.meter.session
        counts = session is None or session.role.counts
        if not counts:
            self.meter.end()
        self._together()
        self.meter.end()
        self._gather()

    def _together(self) -> None:
        try:
            self._ranks.barrier()
        except Exception as error:  # noqa: BLE001 - each backend has its own; a dead rank
            self._ranks = AloneRanks()
            _log.warning("the ranks of this job do not end together: %s", error)

    def _gather(self) -> None:
        run, session = self.meter.run, self.meter.session
        if session is None:
            return
        if run is None:
            _log.warning("a run is still open around this job; its nodes are not gathered")
        try:
            report = {} if run is None else _report(run, session.host.name)
            items = self._ranks.gather(report)
            if items is not None:
                self.energy = RankTable.of([item for item in items if item])
        except Exception as error:  # noqa: BLE001 - each backend has its own; a dead rank
            _log.warning("the energies of this job's ranks could not be gathered: %s", error)


def _report(run: RunResult, node: str) -> dict[str, Any]:
    return {
        "node": node,
        "run_id": run.run_id,
        "counted": run.counted,
        "duration_s": run.result.duration_s,
        "domains": [
            {
                "name": d.name,
                "scope": d.scope.value,
                "energy_j": d.energy_j,
                "uncertainty_j": d.uncertainty_j,
                "in_total": d.in_total,
            }
            for d in run.result.domains
            if run.counted
        ],
        "missing": [m.name for m in run.missing] if run.counted else [],
    }
