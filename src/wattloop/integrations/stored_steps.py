"""Steps of a stored run: the cost of each, and their totals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from wattloop.core.records import shape_fault
from wattloop.integrations.phases import StepTotals
from wattloop.store.database import Store
from wattloop.store.run_record import RunRecord, read_events, read_steps, runs_with_steps


class StepPoint(NamedTuple):
    """A stored step, or several steps in a row that a long run wrote as one.

    `energy_j` and `time_s` are those of all of its `steps`; None is not known.
    """

    number: int
    steps: int
    time_s: float
    energy_j: float | None
    loss: float | None
    samples: float | None
    tokens: float | None


def read_step_points(store: Store, record: RunRecord) -> list[StepPoint]:
    """Return the steps of a run in the order in which they were recorded, without epochs.

    Of a run with thousands of steps these are means of neighbouring steps, which the store has
    in addition to the steps.
    """
    curve = [e for e in read_events(store, record.run_id) if e.get("type") == "step_curve"]
    if curve and (points := _curve_points(curve[-1], record)):
        return points
    steps = [step for step in read_steps(store, record.run_id) if step.get("kind") == "step"]
    names = _counted(record, (_mapping(step, "energy") for step in steps))
    points = [_point(step, names) for step in steps]
    return [point for point in points if math.isfinite(point.time_s)]


def _counted(record: RunRecord, energies: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the domains whose sum counts no joule twice, of those that steps were read of."""
    read = {name for energy in energies for name in energy}
    counted = () if record.result is None else record.result.counted
    return [domain.name for domain in counted if domain.name in read]


def read_step_totals(
    store: Store, record: RunRecord, points: Sequence[StepPoint] | None = None
) -> StepTotals | None:
    """Return steps and phases that `wattloop run` noticed, or the steps that the program recorded.

    None for a run without steps. `points` are its steps, where the caller has read them already.
    """
    events = [e for e in read_events(store, record.run_id) if e.get("type") == "phases"]
    # journals of other machines may hold anything
    if events and not shape_fault(events[-1], StepTotals):
        totals = StepTotals.from_dict(events[-1])
        return totals if _is_finite(totals) else None
    points = read_step_points(store, record) if points is None else points
    if not points:
        return None
    steps = sum(point.steps for point in points)
    known = [(point.energy_j, point.steps) for point in points if point.energy_j is not None]
    totals = StepTotals(
        steps=steps,
        step_s=sum(point.time_s for point in points) / steps,
        step_j=sum(joules for joules, _ in known) / sum(n for _, n in known) if known else None,
        samples=_sum(point.samples for point in points),
        tokens=_sum(point.tokens for point in points),
    )
    return totals if _is_finite(totals) else None


def read_step_costs(store: Store, records: Sequence[RunRecord]) -> list[dict[str, float]]:
    """Return `StepTotals.costs` of each run; empty for a run without steps."""
    totals = [read_step_totals(store, record) for record in records]
    return [{} if each is None else each.costs for each in totals]


def read_run_totals(store: Store, records: Sequence[RunRecord]) -> dict[str, dict[str, Any]]:
    """Return `StepTotals.to_dict` by run, of the runs that have steps."""
    stepped = runs_with_steps(store)
    found = {r.run_id: read_step_totals(store, r) for r in records if r.run_id in stepped}
    return {run_id: t.to_dict() for run_id, t in found.items() if t is not None and t.steps}


def _is_finite(totals: StepTotals) -> bool:
    numbers = [totals.step_s, totals.step_j, totals.samples, totals.tokens]
    numbers += [number for phase in totals.phases for number in (phase.time_s, phase.energy_j)]
    return all(number is None or math.isfinite(number) for number in numbers)


def _sum(values: Iterable[float | None]) -> float | None:
    whole = 0.0
    for value in values:
        if value is None:
            return None
        whole += value
    return whole


def _curve_points(event: dict[str, Any], record: RunRecord) -> list[StepPoint]:
    """Return the points of a downsampled curve; none if it is not valid."""
    try:
        found = list(event["points"])
        names = _counted(record, (point["energy"] for point in found))
        points = [_curve_point(point, names) for point in found]
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return []  # journals of other machines may hold anything
    valid = all(point.steps > 0 and math.isfinite(point.time_s) for point in points)
    return points if valid else []


def _curve_point(point: Mapping[str, Any], names: Sequence[str]) -> StepPoint:
    steps = int(point["steps"])
    read = [point["energy"].get(name) for name in names]
    # steps that were not read count as the mean of those next to them
    means_j = [_finite(pair[0] / pair[1]) for pair in read if pair]
    known_j = [mean for mean in means_j if mean is not None]
    return StepPoint(
        number=int(point["number"]),
        steps=steps,
        time_s=float(point["time_s"]),
        energy_j=sum(known_j) * steps if known_j and len(known_j) == len(names) else None,
        loss=_finite(point["loss"]),
        samples=_finite(point["samples"]),
        tokens=_finite(point["tokens"]),
    )


def _point(step: dict[str, Any], names: Sequence[str]) -> StepPoint:
    energy, metrics = _mapping(step, "energy"), _mapping(step, "metrics")
    pairs = [energy.get(name) for name in names]
    energies_j = [_finite(pair[0]) for pair in pairs if isinstance(pair, list) and pair]
    known_j = [joules for joules in energies_j if joules is not None]
    count = step.get("count")
    steps = count if isinstance(count, int) and count > 0 else 1
    return StepPoint(
        number=int(step["index"]),
        steps=steps,
        time_s=float(step["end_s"]) - float(step["begin_s"]),
        energy_j=sum(known_j) if known_j and len(known_j) == len(names) else None,
        loss=_finite(metrics.get("loss")),
        # a row for several steps has the samples of the last of them only
        samples=_finite(metrics.get("samples")) if steps == 1 else None,
        tokens=_finite(metrics.get("tokens")) if steps == 1 else None,
    )


def _mapping(step: dict[str, Any], key: str) -> dict[str, Any]:
    found = step.get(key)
    return found if isinstance(found, dict) else {}


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
