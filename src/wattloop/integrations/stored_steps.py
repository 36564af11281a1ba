"""Steps of a stored run: the cost of each, and their totals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from wattloop.core.records import shape_fault
from wattloop.core.results import RunStatus
from wattloop.integrations.run_phases import StepTotals
from wattloop.store.database import Store
from wattloop.store.run_record import RunRecord, read_events, read_steps, runs_with_steps
from wattloop.store.runs import named_runs


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
    end_s: float


class TrackerRow(NamedTuple):
    """Numbers of a stored run for an experiment tracker, at a step and a time of day."""

    step: int
    wall_s: float
    numbers: dict[str, float]


def read_tracker_rows(store: Store, record: RunRecord) -> list[TrackerRow]:
    """Return steps, epochs, totals and phases of a run as `EnergyMeter` reports them.

    Steps have the numbers that the program's trainer gave them, also where it resumed.
    """
    found = [e for e in read_events(store, record.run_id) if e.get("type") == "trackers"]
    before = found[-1].get("steps_before") if found else 0
    before = before if isinstance(before, int) else 0
    points = read_step_points(store, record)
    totals = read_step_totals(store, record, points)

    def wall_s(time_s: float) -> float:
        return record.started_wall_s + time_s - record.started_s

    rows, ends = [], []
    for point in points:
        last = before + point.number + point.steps
        ends.append((point.end_s, last))
        numbers = {"step_s": point.time_s / point.steps}
        if point.energy_j is not None:
            numbers["step_j"] = point.energy_j / point.steps
            if point.time_s > 0:
                numbers["step_power_w"] = point.energy_j / point.time_s
            for unit, amount in (("sample", point.samples), ("token", point.tokens)):
                if amount and point.energy_j > 0:
                    numbers[f"{unit}_j"] = point.energy_j / amount
                    numbers[f"{unit}s_per_j"] = amount / point.energy_j
        if point.loss is not None:
            numbers["step_loss"] = point.loss
        rows.append(TrackerRow(last, wall_s(point.end_s), numbers))
    steps = before
    for epoch in read_steps(store, record.run_id, kind="epoch"):
        steps += int((_mapping(epoch, "metrics")).get("steps") or 0)
        rows.append(TrackerRow(steps, wall_s(epoch["end_s"]), _epoch_numbers(record, epoch)))
    end_s = record.started_s if record.ended_s is None else record.ended_s
    whole = {} if totals is None else _total_numbers(totals)
    if record.energy_j is not None:
        whole |= {"total_j": record.energy_j}
    if record.duration_s is not None:
        whole |= {"total_time_s": record.duration_s}
    rows.append(TrackerRow(ends[-1][1] if ends else before, wall_s(end_s), whole))
    return [row for row in rows if row.numbers]


def read_open_trackers(store: Store, record: RunRecord) -> list[dict[str, str]]:
    """Return the runs of trackers that the program had open: `tracker`, `into` and `uri`."""
    found = [e for e in read_events(store, record.run_id) if e.get("type") == "trackers"]
    runs = found[-1].get("runs") if found else None
    valid = runs if isinstance(runs, list) else []
    return [
        run
        for run in valid
        if isinstance(run, dict)
        and {"tracker", "into"} <= run.keys()
        and all(isinstance(value, str) for value in run.values())
    ]


def _epoch_numbers(record: RunRecord, epoch: dict[str, Any]) -> dict[str, float]:
    energy = _mapping(epoch, "energy")
    point = _point(epoch, _counted(record, [energy]))
    numbers = {"epoch_time_s": point.time_s}
    if point.energy_j is not None:
        numbers["epoch_energy_j"] = point.energy_j
        if point.time_s > 0:
            numbers["epoch_power_w"] = point.energy_j / point.time_s
    return numbers


def _total_numbers(totals: StepTotals) -> dict[str, float]:
    counts = {"steps": totals.steps, "samples": totals.samples, "tokens": totals.tokens}
    numbers = {f"total_{name}": value for name, value in (counts | totals.costs).items() if value}
    for phase in totals.phases:
        name = phase.name.replace(" ", "_").replace("-", "_")
        numbers[f"phase_{name}_s"] = phase.time_s
        if phase.energy_j is not None:
            numbers[f"phase_{name}_j"] = phase.energy_j
    return numbers


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


class PhaseSpan(NamedTuple):
    """A part of a run in one phase, on the clock of its samples."""

    name: str
    begin_s: float
    end_s: float


def read_phase_spans(store: Store, record: RunRecord) -> list[PhaseSpan]:
    """Return the longest parts of each phase in order of time; none in runs of earlier releases."""
    events = [e for e in read_events(store, record.run_id) if e.get("type") == "phases"]
    spans = events[-1].get("spans") if events else None
    # journals of other machines may hold anything
    if shape_fault(spans, dict[str, list[list[float]]]):
        return []
    found = [
        PhaseSpan(name, *span)
        for name, each in (spans or {}).items()
        for span in each
        if len(span) == 2 and all(map(math.isfinite, span))
    ]
    return sorted(found, key=lambda span: span.begin_s)


def read_step_costs(store: Store, records: Sequence[RunRecord]) -> list[dict[str, float]]:
    """Return `StepTotals.costs` of each run; empty for a run without steps."""
    totals = [read_step_totals(store, record) for record in records]
    return [{} if each is None else each.costs for each in totals]


MOST_REPEATS = 12


def read_repeats(store: Store, records: Sequence[RunRecord]) -> list[list[dict[str, float]]]:
    """Return, for each run, energy and step costs of the newest runs that did the same.

    These have its name and its command, and finished.
    """
    found = []
    for record in records:
        group = [record]
        for other in named_runs(store, record.name, 4 * MOST_REPEATS) if record.name else ():
            same = other.command == record.command and other.status is RunStatus.FINISHED
            same = same and other.counted and not other.quarantine
            if same and other.run_id != record.run_id and len(group) < MOST_REPEATS:
                group.append(other)
        # single steps are not read: there may be a million of them
        totals = [read_step_totals(store, each, points=()) for each in group]
        pairs = zip(group, totals, strict=True)
        found.append([{"energy_j": r.energy_j or 0.0, **(t.costs if t else {})} for r, t in pairs])
    return found


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
        end_s=float(point["end_s"]),
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
        end_s=float(step["end_s"]),
    )


def _mapping(step: dict[str, Any], key: str) -> dict[str, Any]:
    found = step.get(key)
    return found if isinstance(found, dict) else {}


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
