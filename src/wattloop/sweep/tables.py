"""Results of sweeps as tables: those of the literature, each row plain data.

- `point_rows`      every point with means, intervals and gains
- `best_rows`       table 1 of Koszczal et al. (Euro-Par 2023): best setting and gain per metric
- `technique_rows`  best EDP gain with its time per technique (thesis, tables 3.19 to 3.24)
- `power_rows`      baseline and best power of main and second component (3.25 to 3.27)
- `scaling_rows`    time and speed-up with the number of GPUs (figure 7)
- `synthesis_rows`  mean of the best EDP gains per technique (thesis, figure 6.6)
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattloop.analyze.repeats import Estimate
from wattloop.sweep.result import (
    COMPARED,
    EDP,
    TIME,
    Gain,
    GroupKey,
    PointResult,
    SweepGroup,
    SweepResult,
    largest_groups,
)

Row = dict[str, Any]
SECOND = {"gpu": "cpu", "cpu": "dram"}
"""Second component: the host's CPU for a GPU, the memory for a CPU."""


def point_rows(result: SweepResult) -> list[Row]:
    rows = []
    for group in result.groups:
        for point in group.points:
            gains = {c.name: group.gain(point, c) for c in COMPARED}
            rows.append(
                {
                    "group": group.label,
                    "setting": point.label,
                    "is_default": point.is_default,
                    "runs": len(point.repeated.outcomes),
                    "used": len(point.repeated.used),
                    "failures": point.repeated.failures,
                    "time_s": point.time_s,
                    "energy_j": point.energy_j(group.scope),
                    "average_w": point.average_w(group.scope),
                    "peak_w": point.peak_w(group.scope),
                    "gains": gains,
                    "gpu_cost": result.price and point.gpu_cost(result.price),
                }
            )
    return rows


def best_rows(result: SweepResult) -> list[Row]:
    """Per group and metric: the setting that is best, and what it gains."""
    rows = []
    for group in result.groups:
        if sum(bool(point.costs(group.scope)) for point in group.points) < 2:
            continue  # the default alone is the best of nothing
        for compared in COMPARED:
            found = group.best(compared)
            if found is not None and compared.metric not in ("time", "power"):
                point, gain = found
                rows.append(
                    {
                        "group": group.label,
                        "metric": compared.label,
                        "gain": gain,
                        "setting": point.label,
                        "is_default": point.is_default,
                        "time": group.gain(point, TIME),
                    }
                )
    return rows


@dataclass(frozen=True, slots=True)
class TechniqueBest:
    """The best setting of one technique alone, every other lever at its default."""

    group: SweepGroup
    technique: str
    lever: str
    point: PointResult
    edp: Gain
    time: Gain


def technique_bests(result: SweepResult) -> list[TechniqueBest]:
    """Per group and technique: lowest EDP; the default stays out, as in the thesis."""
    found: dict[tuple[GroupKey, str], TechniqueBest] = {}
    for group in result.groups:
        for axis in result.axes:
            gains = [
                (point, edp, time)
                for point in group.points
                if _alone(point, axis["name"], result)
                and (edp := group.gain(point, EDP)) is not None
                and (time := group.gain(point, TIME)) is not None
            ]
            if gains:
                best, edp, time = max(gains, key=lambda item: item[1].value_pct)
                new = TechniqueBest(group, axis["technique"], axis["name"], best, edp, time)
                # clocks of cores and of memory are one technique: its better one counts
                known = found.setdefault((group.key, new.technique), new)
                if edp.value_pct > known.edp.value_pct:
                    found[group.key, new.technique] = new
    return list(found.values())


def technique_rows(results: Sequence[SweepResult]) -> list[Row]:
    """Best EDP gain with its time: `time_pct` above 0 is longer."""
    return [
        {
            **_group_facts(result, best.group),
            "technique": best.technique,
            "edp_pct": best.edp.value_pct,
            "time_pct": -best.time.value_pct,
            "setting": best.point.facts["levels"][best.lever],
        }
        for result in results
        for best in technique_bests(result)
    ]


def power_rows(results: Sequence[SweepResult]) -> list[Row]:
    """Average power of main and second component at the default and at each technique's best."""
    rows = []
    for result in results:
        main, second = main_scopes(result)
        bests = technique_bests(result)
        for group in result.groups:
            reference = group.reference
            if reference is None:
                continue
            row: Row = {
                **_group_facts(result, group),
                "main": main,
                "second": second,
                "kinds": {s: result.provenance_of(s) for s in filter(None, (main, second))},
                "baseline": _powers(reference, main, second),
            }
            for best in bests:
                if best.group.key == group.key:
                    row[best.technique] = _powers(best.point, main, second)
            rows.append(row)
    return rows


def scaling_rows(result: SweepResult) -> list[Row]:
    """Time at each number of GPUs, and speed-up over the smallest, per setting."""
    rows = []
    counted = [group for group in result.groups if group.key[2] is not None]
    for group in counted:
        smallest = min(
            (g for g in counted if g.key[:2] == group.key[:2]), key=lambda g: g.key[2] or 0
        )
        for point in group.points:
            base = next((p for p in smallest.points if p.label == point.label), None)
            if base is None or base.time_s is None or point.time_s is None:
                continue
            rows.append(
                {
                    "workload": group.key[0],
                    "library": group.key[1],
                    "setting": point.label,
                    "is_default": point.is_default,
                    "gpus": group.key[2],
                    "time_s": point.time_s,
                    "energy_j": point.energy_j(group.scope),
                    "gpu_cost": result.price and point.gpu_cost(result.price),
                    "speed_up": base.time_s.mean / point.time_s.mean,
                }
            )
    settings = list(dict.fromkeys((r["workload"], r["library"], r["setting"]) for r in rows))
    rows.sort(key=lambda r: settings.index((r["workload"], r["library"], r["setting"])))
    return rows


def synthesis_rows(results: Sequence[SweepResult]) -> list[Row]:
    """Mean over workloads of the best EDP gain, per machine, library and technique.

    Each workload counts once, with the most GPUs it ran on.
    """
    gathered: dict[tuple[str, str, str], list[float]] = {}
    for result in results:
        largest = {group.key for group in largest_groups(result.groups)}
        for best in technique_bests(result):
            if best.group.key not in largest:
                continue
            key = (_platform(result), best.group.key[1], best.technique)
            gathered.setdefault(key, []).append(best.edp.value_pct)
    return [
        {
            "platform": platform,
            "library": library,
            "technique": technique,
            "edp_pct": statistics.fmean(gains),
            "workloads": len(gains),
        }
        for (platform, library, technique), gains in gathered.items()
    ]


def main_scopes(result: SweepResult) -> tuple[str, str | None]:
    """Return the scope of the component that does the work, and of the second one."""
    seen = {s for p in result.points for o in p.repeated.used for s in o.scopes}
    main = "gpu" if "gpu" in seen else "cpu" if "cpu" in seen else "node"
    second = SECOND.get(main)
    return main, second if second in seen else None


def _group_facts(result: SweepResult, group: SweepGroup) -> Row:
    workload, library, gpus = group.key
    name = workload or result.experiment.name or "command"
    return {"workload": name, "library": library, "gpus": gpus}


def _alone(point: PointResult, axis: str, result: SweepResult) -> bool:
    """Return True if only this lever is away from its default."""
    defaults = {a["name"]: a["default"] for a in result.axes}
    levels = point.facts["levels"]
    return all((levels[name] == defaults[name]) != (name == axis) for name in levels)


def _powers(point: PointResult, main: str, second: str | None) -> dict[str, Estimate | None]:
    powers = {"main": point.average_w(main)}
    if second is not None:
        powers["second"] = point.average_w(second)
    return powers


def _platform(result: SweepResult) -> str:
    """Maker's name of the main device, else the host."""
    main, _ = main_scopes(result)
    for point in result.points:
        for outcome in point.repeated.used:
            for domain in outcome.domains:
                if domain["scope"] == main and domain.get("device"):
                    return str(domain["device"])
    return str(result.experiment.facts.get("host", ""))
