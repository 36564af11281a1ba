"""Steps and phases of a run: start-up, compilation, training, waiting for data, and pauses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from wattloop.core.units import (
    format_duration,
    format_energy,
    format_number,
    format_share,
    short_energy,
)
from wattloop.measure.run_journal import PHASES

Span = tuple[float, float]

PRIORITY = (
    "compilation",
    "checkpoint",
    "evaluation",
    "waiting for data",
    "pause",
    "training",
)
"""Where spans overlap, the first of these counts the time."""

ORDER = PHASES
PER_UNIT = ("sample_j", "samples_per_j", "token_j", "tokens_per_j")
"""Joules per sample and per token; samples and tokens per joule, which is per second and watt."""
SAMPLED_SPANS, LIVE_SPANS = 1_000, 16
"""Of more spans than this, the energy of evenly spread ones is scaled by time: at the end of a run,
and of those since the last look at a run that goes on."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Time and energy of all parts of a run that did the same; the energies add up to the run's."""

    name: str
    time_s: float
    energy_j: float | None
    parts: int


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Steps of a run that its hook noticed, and the phases of the run.

    Attributes:
        steps: optimizer steps, of one rank where several step together.
        step_s: mean time of a step, waiting for its data included.
        step_j: mean energy of a step, of everything that is measured.
        samples: samples of all steps; None where a loader does not tell the size of its batches.
        tokens: tokens, as the trainer counts them.
        processes: processes that stepped.
        notes: why steps may be missing.
        inferred: whether the phases are inferred from GPU signals, because no step was seen.
    """

    steps: int
    step_s: float | None = None
    step_j: float | None = None
    samples: float | None = None
    tokens: float | None = None
    processes: int = 0
    phases: tuple[Phase, ...] = ()
    notes: tuple[str, ...] = ()
    inferred: bool = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepTotals:
        """Return the totals of a journal's event `phases`."""
        names = {f.name for f in fields(cls)}
        given = {name: value for name, value in data.items() if name in names}
        columns = [f.name for f in fields(Phase)]
        given["phases"] = tuple(Phase(*map(p.get, columns)) for p in data.get("phases", ()))
        given["notes"] = tuple(data.get("notes", ()))
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with energy per sample and per token and their inverses."""
        return asdict(self) | {name: self.costs.get(name) for name in PER_UNIT}

    @property
    def costs(self) -> dict[str, float]:
        """Joules per step (`step_j`), sample and token, samples and tokens per joule, and seconds
        per step, as far as known.
        """
        all_j = None if self.step_j is None else self.step_j * self.steps
        known = {
            "step_j": self.step_j,
            "step_s": self.step_s,
            "sample_j": _ratio(all_j, self.samples),
            "samples_per_j": _ratio(self.samples, all_j),
            "token_j": _ratio(all_j, self.tokens),
            "tokens_per_j": _ratio(self.tokens, all_j),
        }
        return {
            name: value
            for name, value in known.items()
            if value is not None and math.isfinite(value)
        }


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def format_totals(totals: StepTotals) -> list[str]:
    """Return the lines that a summary shows: a step's cost, the phases' shares of the energy."""
    notes = [f"steps may be missing: {note}" for note in totals.notes]
    if not totals.steps:
        shares = _format_shares(totals)
        return [f"inferred from GPU signals: {shares}", *notes] if shares else notes
    costs = [] if totals.step_j is None else [format_energy(totals.step_j)]
    costs += [] if totals.step_s is None else [format_duration(totals.step_s)]
    line = f"{totals.steps:,} step{'s' * (totals.steps != 1)}"
    line += f" of {' and '.join(costs)}" if costs else ""
    for unit in ("sample", "token"):
        if f"{unit}_j" in totals.costs:
            line += f", {format_energy(totals.costs[f'{unit}_j'])} per {unit}"
        if (rate := totals.costs.get(f"{unit}s_per_j")) is not None:
            line += f" ({format_number(rate, 3)} {unit}s/s/W)"
    shares = _format_shares(totals)
    return [line, *([shares] if shares else [])]


def _format_shares(totals: StepTotals) -> str:
    """Return shares of the energy, or of the time of a run whose energy is not known throughout."""
    energies_j = [phase.energy_j for phase in totals.phases if phase.energy_j is not None]
    whole_j, whole_s = sum(energies_j), sum(phase.time_s for phase in totals.phases)
    if len(energies_j) == len(totals.phases) and whole_j > 0:
        shares = [(phase, (phase.energy_j or 0.0) / whole_j) for phase in totals.phases]
    else:
        shares = [(phase, phase.time_s / whole_s) for phase in totals.phases if whole_s > 0]
    shown = sorted((each for each in shares if each[1] >= 0.005), key=lambda each: -each[1])
    line = ", ".join(
        f"{phase.name} {format_share(share, 0)}"
        + ("" if phase.energy_j is None else f" ({short_energy(phase.energy_j, whole_j)})")
        for phase, share in shown
    )
    return line if len(energies_j) == len(totals.phases) or not line else f"of the time: {line}"


def split_run(
    run: Span, training: Sequence[Span], spans: dict[str, list[Span]]
) -> dict[str, list[Span]]:
    """Return the disjoint spans of each phase, which together are the whole run.

    Args:
        run: begin and end of the run.
        training: from the beginning of the first step to the end of the last, per training.
        spans: compilations, checkpoints, evaluations and waits, which may overlap.
    """
    named = {name: merge(spans.get(name, ())) for name in PRIORITY[:-1]}
    named["training"] = merge(training)
    taken: list[Span] = []
    found: dict[str, list[Span]] = {}
    for name in PRIORITY:
        inside = [
            (max(a, run[0]), min(b, run[1])) for a, b in named[name] if b > run[0] and a < run[1]
        ]
        found[name] = subtract(inside, taken)
        taken = merge([*taken, *inside])
    rest = subtract([run], taken)
    first_s = min((a for a, _ in training), default=run[1])
    last_s = max((b for _, b in training), default=run[1])
    found["start-up"] = [(a, b) for a, b in rest if b <= first_s]
    found["tail"] = [(a, b) for a, b in rest if a >= last_s and b > first_s]
    between = [span for span in rest if span not in found["start-up"] + found["tail"]]
    found["pause"] = sorted([*found["pause"], *between])
    return {name: found[name] for name in ORDER if found[name]}


def phase_energies(
    parts: dict[str, list[Span]],
    energy_between: Callable[[float, float], float | None],
    total_j: float | None,
    rest: str = "training",
    most: int = SAMPLED_SPANS,
) -> list[Phase]:
    """Return the energy of each phase; `rest` has what the others leave of the total.

    Of more spans than `most` in a phase, evenly spread ones are looked at.
    """
    phases: list[Phase] = []
    for name, spans in parts.items():
        time_s = sum(b - a for a, b in spans)
        energy_j = None if name == rest else _energy_j(spans, time_s, energy_between, most)
        phases.append(Phase(name, time_s, energy_j, len(spans)))
    known_j = [p.energy_j for p in phases if p.name != rest]
    if total_j is None or any(j is None for j in known_j):
        return phases
    rest_j = total_j - sum(j for j in known_j if j is not None)
    return [
        Phase(p.name, p.time_s, max(rest_j, 0.0), p.parts) if p.name == rest else p for p in phases
    ]


PATIENCE_S = 60.0


class PhaseTotals:
    """Time and energy of each phase of a run that goes on: they only grow.

    Time is added up to the end of a step or of a span. What comes after belongs to a phase that is
    known when it ends. A span that is reported later than the next step is left out.

    Attributes:
        time_s: phase -> seconds up to `until_s`.
        energy_j: phase -> joules; None once they could not be read.
    """

    def __init__(self, begin_s: float, *, measured: bool = True) -> None:
        self.until_s = begin_s
        self.time_s = dict.fromkeys(ORDER, 0.0)
        self.energy_j: dict[str, float | None] = dict.fromkeys(ORDER, 0.0 if measured else None)
        self._patience_s = PATIENCE_S if measured else 0.0
        self._stepped = False

    def add(
        self,
        until_s: float,
        training: Sequence[Span],
        spans: Mapping[str, Sequence[Span]],
        energy_between: Callable[[float, float], float | None],
        *,
        ended: bool = False,
    ) -> None:
        """Add the time up to `until_s`; `training` and `spans` are those of the whole run."""
        if until_s <= self.until_s:
            return
        window = (self.until_s, until_s)
        whole_j = energy_between(*window)
        if whole_j is None and not ended and until_s - self.until_s < self._patience_s:
            return  # a slow sensor: a longer time will have a reading
        steps = _ending_after(training, window[0])
        recent = {name: _ending_after(each, window[0]) for name, each in spans.items()}
        parts = split_run(window, steps, recent)
        between = "tail" if ended and not steps else "pause"
        if self._stepped and "start-up" in parts:
            parts[between] = merge([*parts.get(between, ()), *parts.pop("start-up")])
        if not ended and "tail" in parts:
            parts["pause"] = merge([*parts.get("pause", ()), *parts.pop("tail")])
        for phase in phase_energies(parts, energy_between, whole_j, most=LIVE_SPANS):
            self.time_s[phase.name] += phase.time_s
            before_j = self.energy_j[phase.name]
            known = before_j is not None and phase.energy_j is not None
            self.energy_j[phase.name] = before_j + phase.energy_j if known else None  # type: ignore[operator]  # both are numbers
        self.until_s = until_s
        self._stepped = self._stepped or bool(steps)


def _ending_after(spans: Sequence[Span], time_s: float) -> list[Span]:
    """Return the last spans of a list in order of time."""
    i = len(spans)
    while i and spans[i - 1][1] > time_s:
        i -= 1
    return list(spans[i:])


MOST_DRAWN = 60


def drawn_spans(parts: Mapping[str, Sequence[Span]]) -> dict[str, list[Span]]:
    """Return the longest spans of each phase in order of time: bands for a chart of the run."""
    return {
        name: sorted(sorted(spans, key=lambda span: span[0] - span[1])[:MOST_DRAWN])
        for name, spans in parts.items()
    }


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return the union of `spans` as disjoint spans in order of time."""
    merged: list[Span] = []
    for a, b in sorted(spans):
        if b <= a:
            continue
        if merged and a <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], b))
        else:
            merged.append((a, b))
    return merged


def subtract(spans: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    """Return `spans` without `taken`; both are disjoint and in order."""
    left: list[Span] = []
    i = 0
    for a, b in spans:
        while i < len(taken) and taken[i][1] <= a:
            i += 1
        j, begin_s = i, a
        while j < len(taken) and taken[j][0] < b:
            if taken[j][0] > begin_s:
                left.append((begin_s, taken[j][0]))
            begin_s = max(begin_s, taken[j][1])
            j += 1
        if begin_s < b:
            left.append((begin_s, b))
    return left


def _energy_j(
    spans: Sequence[Span],
    time_s: float,
    energy_between: Callable[[float, float], float | None],
    most: int,
) -> float | None:
    every = max(1, len(spans) // most)
    sampled = spans[::every]
    energies_j = [energy_between(a, b) for a, b in sampled]
    if any(j is None for j in energies_j):
        return None
    sampled_s = sum(b - a for a, b in sampled)
    total_j = sum(j for j in energies_j if j is not None)
    return total_j * time_s / sampled_s if sampled_s > 0 else 0.0
