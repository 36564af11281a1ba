"""Energy of a job by node, as a table for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattloop.core.records import Scope

__all__ = ["JobTable", "NodeRow"]

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
class JobTable:
    """All nodes of a job, each device counted once."""

    nodes: tuple[NodeRow, ...]
    warnings: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, reports: Sequence[Mapping[str, Any]]) -> JobTable:
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
        """Whether every known part of every node was read."""
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
        """Plain data for JSON."""
        return {
            "energy_j": self.energy_j,
            "uncertainty_j": self.uncertainty_j,
            "duration_s": self.duration_s,
            "complete": self.complete,
            "nodes": [
                {
                    "node": n.node,
                    "ranks": n.ranks,
                    "columns": dict(n.columns),
                    "energy_j": n.energy_j,
                    "uncertainty_j": n.uncertainty_j,
                    "duration_s": n.duration_s,
                    "missing": list(n.missing),
                }
                for n in self.nodes
            ],
            "warnings": list(self.warnings),
        }


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
