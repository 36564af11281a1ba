"""Figures of now held against a baseline: what is judged, what is only shown, what is said."""

from dataclasses import dataclass
from typing import Any

from wattloop.check.baselines import Baseline, NotComparable
from wattloop.check.figures import Kind, Series
from wattloop.check.machine import Machine
from wattloop.check.verdict import Judgement, Verdict, judged

__all__ = ["Comparison", "compared"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The judged figure, the others beside it, and what a reader should know."""

    name: str
    judged: Judgement
    others: tuple[Judgement, ...]
    provenance: str
    parts: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """That of the judged figure."""
        return self.judged.verdict

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "judged": self.judged.to_dict(),
            "shown": [one.to_dict() for one in self.others],
            "provenance": self.provenance,
            "parts": list(self.parts),
            "notes": list(self.notes),
        }


def compared(
    name: str,
    baseline: Baseline,
    now: dict[Kind, Series],
    kind: Kind,
    *,
    machine: Machine,
    tolerance: float,
    chosen: bool = False,
) -> Comparison:
    """Judge `kind`, and put the other figures beside it.

    Args:
        name: of the test or command.
        baseline: what was found before.
        now: what was found now.
        kind: the figure to judge.
        machine: where `now` was found.
        tolerance: the share that may be lost.
        chosen: whether somebody asked for this kind; without, it must be the baseline's.

    Raises:
        NotComparable: the baseline has another kind of figure, or one of other sensors.
    """
    if not chosen and kind is not baseline.judged:
        raise NotComparable(
            f"the baseline of {name!r} judges {baseline.judged.words}, and here it would be "
            f"{kind.words}: take one here with --update, or choose --figure {kind.value}"
        )
    if kind not in baseline.series:
        raise NotComparable(f"the baseline of {name!r} has no {kind.words}; take it with --update")
    before = baseline.series[kind]
    if (before.parts, before.provenance) != (now[kind].parts, now[kind].provenance):
        raise NotComparable(
            f"the baseline of {name!r} is {_described(before)}, and here it would be "
            f"{_described(now[kind])}: take one here with --update"
        )
    return Comparison(
        name=name,
        judged=judged(before, now[kind], tolerance),
        others=tuple(
            judged(baseline.series[other], series, tolerance)
            for other, series in now.items()
            if other is not kind
            and other in baseline.series
            and baseline.series[other].parts == series.parts
        ),
        provenance=now[kind].provenance,
        parts=now[kind].parts,
        notes=tuple(_notes(baseline.machine, machine)),
    )


def _notes(before: Machine, now: Machine) -> list[str]:
    if before.kind != now.kind:
        return [f"compared with another kind of machine: {before.words}; here: {now.words}"]
    if before.specimen != now.specimen:
        return ["the baseline is of another machine of the same kind; such differ by some percent"]
    return []


def _described(series: Series) -> str:
    of = f" of {', '.join(series.parts)}" if series.parts else ""
    return f"{series.provenance} {series.kind.words}{of}"
