"""Verdicts: figures against a baseline or limit, beyond noise and tolerance."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from wattloop.analyze.repeats import is_outlier, t_975
from wattloop.check.baselines import Baseline, Machine, NotComparable
from wattloop.check.figures import FigureKind, FigureSeries

# Whether a figure got worse: beyond the noise of both series, and beyond a tolerance.
#
#     half-width = t(0.975, n + m - 2) s sqrt(1/n + 1/m), s the pooled standard deviation
#
# and with the sensors' own uncertainty added in quadrature. One spread for both series, so that a
# single new reading can be held against a baseline of several.
#
# "The same" is a finding as well: the interval of the change must exclude a loss beyond the
# tolerance. Where it does not, the verdict is "unclear", with the number of repeats that
# would decide.

MOST_REPEATS = 1_000
"""More are not suggested."""


class EnergyVerdict(StrEnum):
    """Result of a comparison."""

    REGRESSION = "regression"
    IMPROVED = "improved"
    SAME = "same"
    """No loss beyond the tolerance, and the noise is small enough to say so."""
    UNCLEAR = "unclear"
    """The noise could hide a loss beyond the tolerance."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Before and now.

    Attributes:
        change: fraction of the mean before; None where that is 0.
        noise: half-width of the 95% interval of the change, as such a fraction; None where a
            single reading of each leaves it unknown.
        notes: what a reader should know before believing it.
    """

    kind: FigureKind
    before: float
    now: float
    change: float | None
    noise: float | None
    tolerance: float
    verdict: EnergyVerdict
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "figure": self.kind.value,
            "unit": self.kind.unit,
            "baseline": self.before,
            "now": self.now,
            "change": self.change,
            "noise": self.noise,
            "tolerance": self.tolerance,
            "verdict": self.verdict.value,
            "notes": list(self.notes),
        }


def judge(before: FigureSeries, now: FigureSeries, tolerance: float) -> Judgement:
    old, new = _belonging(before.values), _belonging(now.values)
    old_mean, new_mean = statistics.fmean(old), statistics.fmean(new)
    difference = new_mean - old_mean
    half_width = _half_width(old, new)
    sensors = math.hypot(
        before.uncertainty / math.sqrt(len(old)), now.uncertainty / math.sqrt(len(new))
    )
    noise = math.hypot(half_width or 0.0, sensors)
    notes = []
    left_out = len(before.values) + len(now.values) - len(old) - len(new)
    if left_out:
        notes.append(f"{left_out} outlying repeat(s) left out")
    if half_width is None:
        notes.append("one repeat of each: how much they scatter is not known; use --repeats 5")
    verdict, allowed = EnergyVerdict.SAME, tolerance * abs(old_mean)
    if abs(difference) > noise and abs(difference) > allowed:
        verdict = EnergyVerdict.REGRESSION if difference > 0 else EnergyVerdict.IMPROVED
    elif difference + noise > allowed:
        verdict = EnergyVerdict.UNCLEAR
        enough = allowed - difference if difference < allowed else difference
        notes.append(_remedy(old_mean, noise, tolerance, _repeats_for(enough, old, new, before)))
    unknown = half_width is None and not sensors
    return Judgement(
        kind=now.kind,
        before=old_mean,
        now=new_mean,
        change=difference / old_mean if old_mean else None,
        noise=None if unknown or not old_mean else noise / old_mean,
        tolerance=tolerance,
        verdict=verdict,
        notes=tuple(notes),
    )


def mean_and_noise(series: FigureSeries) -> tuple[float, float]:
    """The mean without outliers, and the half-width of its 95% interval."""
    values = _belonging(series.values)
    n = len(values)
    scatter = t_975(n - 1) * statistics.stdev(values) / math.sqrt(n) if n > 1 else 0.0
    return statistics.fmean(values), math.hypot(scatter, series.uncertainty / math.sqrt(n))


def against_limit(series: FigureSeries, value: float) -> tuple[bool, str]:
    """Compare a series with the limit `value`; return the result and a remark if it is unclear."""
    mean, noise = mean_and_noise(series)
    if mean - noise > value:
        return False, ""
    if mean > value:
        return True, "above, but not beyond its noise"
    return True, ""


def _half_width(old: Sequence[float], new: Sequence[float]) -> float | None:
    freedom = len(old) + len(new) - 2
    if freedom < 1:
        return None
    squares = sum((value - statistics.fmean(part)) ** 2 for part in (old, new) for value in part)
    spread = math.sqrt(squares / freedom)
    return t_975(freedom) * spread * math.sqrt(1 / len(old) + 1 / len(new))


def _repeats_for(
    half_width: float, old: Sequence[float], new: Sequence[float], series: FigureSeries
) -> int | None:
    """Repeats of baseline and command that bring the noise down to a half-width; None for too many.

    The smallest n with t(0.975, 2 n - 2) s sqrt(2 / n) and the sensors' part below it.
    """
    found = _half_width(old, new)
    one = 0.0 if found is None else found / math.sqrt(1 / len(old) + 1 / len(new))
    spread = one / t_975(max(1, len(old) + len(new) - 2))
    for repeats in range(2, MOST_REPEATS + 1):
        scatter = t_975(2 * repeats - 2) * spread
        if math.hypot(scatter, series.uncertainty) * math.sqrt(2 / repeats) <= half_width:
            return repeats
    return None


def _remedy(mean: float, noise: float, tolerance: float, repeats: int | None) -> str:
    scatters = f"scatters by ±{noise / mean:.1%}" if mean else "scatters"
    said = f"{scatters}: cannot tell whether {tolerance:.0%} more is used"
    if repeats is None:
        return f"{said}; a longer command or a quieter machine would show it, repeats would not"
    return (
        f"{said}; about {repeats} repeats would, of the baseline as well: "
        f"--repeats {repeats} --update, then --repeats {repeats}"
    )


def _belonging(values: Sequence[float]) -> list[float]:
    return [v for v, out in zip(values, is_outlier(values), strict=True) if not out]


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """The judged figure, the other figures, and notes for the reader."""

    name: str
    judged: Judgement
    others: tuple[Judgement, ...]
    provenance: str
    parts: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> EnergyVerdict:
        return self.judged.verdict

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "judged": self.judged.to_dict(),
            "shown": [one.to_dict() for one in self.others],
            "provenance": self.provenance,
            "parts": list(self.parts),
            "notes": list(self.notes),
        }


def compare(
    name: str,
    baseline: Baseline,
    now: dict[FigureKind, FigureSeries],
    kind: FigureKind,
    *,
    machine: Machine,
    tolerance: float,
    chosen: bool = False,
) -> BaselineComparison:
    """Judge `kind` (`chosen`, or the baseline's) and list the others. Raises NotComparable."""
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
    return BaselineComparison(
        name=name,
        judged=judge(before, now[kind], tolerance),
        others=tuple(
            judge(baseline.series[other], series, tolerance)
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


def _described(series: FigureSeries) -> str:
    of = f" of {', '.join(series.parts)}" if series.parts else ""
    return f"{series.provenance} {series.kind.words}{of}"
