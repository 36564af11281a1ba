"""What a baseline shows at a glance: idle or unbalanced devices, peaks, over-use of the fastest."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.study.figures_of import Figures

__all__ = ["symptoms_of_cluster", "symptoms_of_runs"]

UNEVEN = 0.15
"""Utilisations of GPU types that differ by more than this are out of balance."""
IDLE = 0.10
PEAK = 0.85


def symptoms_of_cluster(found: Figures, cluster: Cluster) -> list[str]:
    """From the means of a simulation."""
    rows = list(found.rows.values())
    said = []
    used = {
        kind.name: _mean([row["utilisation"].get(kind.name) for row in rows])
        for kind in cluster.types
    }
    known = {name: value for name, value in used.items() if value is not None}
    if len(known) > 1:
        most, least = max(known, key=lambda n: known[n]), min(known, key=lambda n: known[n])
        if known[most] - known[least] > UNEVEN:
            said.append(
                f"over-use of {most}: busy {known[most]:.0%} of the time, "
                f"{least} {known[least]:.0%}"
            )
    full_w = sum(g.nodes * g.gpus_per_node * _tdp_w(cluster, g.type_name) for g in cluster.groups)
    peak_w = _mean([row.get("peak_power_w") for row in rows])
    if peak_w is not None and full_w and peak_w > PEAK * full_w:
        said.append(f"peaks of {peak_w:,.0f} W, {peak_w / full_w:.0%} of all GPUs at their limit")
    idle = _mean([row.get("idle_share") for row in rows])
    if idle is not None and idle > IDLE:
        said.append(f"{idle:.0%} of the energy goes into GPUs with nothing to do")
    misses = _mean([row.get("miss_rate") for row in rows])
    if misses is not None and misses > 0.01:
        said.append(f"{misses:.0%} of the deadlines are missed")
    wasted, energy = (_mean([row.get(n) for row in rows]) for n in ("wasted_kwh", "energy_kwh"))
    if wasted and energy and wasted / energy > 0.01:
        said.append(f"{wasted / energy:.0%} of the energy is lost to work that was stopped")
    return said


def symptoms_of_runs(found: Figures) -> list[str]:
    """From the insights that measured runs carry."""
    counts: Counter[str] = Counter()
    texts: dict[str, str] = {}
    for record in found.records:
        insights: list[Mapping[str, Any]] = (record.accounting or {}).get("insights") or []
        for insight in insights:
            if str(insight.get("severity")) == "warning":
                counts[str(insight["code"])] += 1
                texts.setdefault(str(insight["code"]), str(insight["text"]))
    runs = len(found.records)
    return [f"{texts[code]} ({count} of {runs} runs)" for code, count in counts.most_common()]


def _tdp_w(cluster: Cluster, type_name: str) -> float:
    return next(kind.tdp_w for kind in cluster.types if kind.name == type_name)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
