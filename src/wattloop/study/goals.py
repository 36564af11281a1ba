"""Goals of KPIs, their significance test, and the decision tree (thesis, figure 6.8)."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wattloop.analyze.repeats import estimate, t_975
from wattloop.core.errors import ConfigError
from wattloop.core.units import format_number

Values = Mapping[int | str, float]
"""Seed or run -> the figure."""
CONFIDENCE = "95%"


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of a KPI.

    Attributes:
        text: as written.
        kind: `change` (relative to the baseline), `spread` (no worse than so many standard
            deviations of the baseline) or `limit` (an absolute one).
        sign: -1 when the figure must be at most this, 1 when at least.
        amount: share, number of deviations, or the limit itself.
    """

    text: str
    kind: str
    sign: int
    amount: float

    @classmethod
    def parse(cls, text: str, *, less_is_better: bool) -> "Goal":
        """`-10%`, `+5%`, `<= 1%`, `>= 10`, `no worse`, `no worse than 1 sd`, `no worse than 5%`.

        Raises:
            ConfigError: none of these.
        """
        plain = " ".join(text.lower().split())
        change = re.fullmatch(r"([+-])\s*([\d.]+)\s*%", plain)
        if change:
            sign = -1 if change[1] == "-" else 1
            return cls(text, "change", sign, sign * float(change[2]) / 100)
        limit = re.fullmatch(r"(<=|>=|<|>)\s*([\d.]+)\s*(%?)", plain)
        if limit:
            amount = float(limit[2]) / (100 if limit[3] else 1)
            return cls(text, "limit", -1 if limit[1][0] == "<" else 1, amount)
        worse = re.fullmatch(r"no worse(?: than ([\d.]+)\s*(sd|%))?", plain)
        if worse:
            sign = -1 if less_is_better else 1
            if worse[2] == "sd":
                return cls(text, "spread", sign, float(worse[1]))
            return cls(text, "change", sign, -sign * float(worse[1] or 0.0) / 100)
        raise ConfigError(
            f"goal {text!r}: write -10%, +5%, <= 1%, >= 10, 'no worse', 'no worse than 1 sd'"
        )


@dataclass(frozen=True, slots=True)
class GoalVerdict:
    """A goal compared with measured values.

    Attributes:
        metric, goal: what was asked.
        before, after: means.
        change: relative; None when the baseline is zero.
        met: with confidence.
        why: in words.
    """

    metric: str
    goal: str
    before: float
    after: float
    change: float | None
    met: bool
    why: str

    @property
    def word(self) -> str:
        return "SUCCESS" if self.met else "FAIL"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.word}


def judge(metric: str, goal: Goal, before: Values, after: Values) -> GoalVerdict:
    """Whether the goal is met: its bound must hold at the end of the 95% interval, not only in
    the mean. Seeds that both have are compared pairwise, other values as two groups.

    Raises:
        ConfigError: there are no values.
    """
    if not before or not after:
        raise ConfigError(f"{metric}: not measured; check the name of the KPI")
    old, new = _mean(before), _mean(after)
    change = (new - old) / old if old else None
    if goal.kind == "limit":
        value, half = new, _half([*after.values()])
        bound = goal.amount
        shown = f"{format_number(new)} ± {format_number(half, 2)}"
    else:
        value, half = _difference(before, after)
        bound = goal.amount * old
        if goal.kind == "spread":
            bound = -goal.sign * goal.amount * _sd([*before.values()])
        allowed = "at most" if goal.sign < 0 else "at least"
        shown = f"{_signed(value)} ± {format_number(half, 2)}, allowed {allowed} {_signed(bound)}"
    rounding = 1e-12 * max(abs(old), abs(new), 1e-300)
    in_mean = goal.sign * (value - bound) >= -rounding
    met = goal.sign * (value - bound) >= half - rounding if half else in_mean
    why = shown if met or not in_mean else f"{shown}: met in the mean, not beyond chance"
    return GoalVerdict(metric, goal.text, old, new, change, met, why)


def _difference(before: Values, after: Values) -> tuple[float, float]:
    """After minus before with its half-width (95%)."""
    both = [key for key in before if key in after]
    if len(both) >= 2 and len(both) == len(before) == len(after):
        pairs = [after[key] - before[key] for key in both]
        return _mean(dict(enumerate(pairs))), _half(pairs)
    value = _mean(after) - _mean(before)
    return value, _welch([*before.values()], [*after.values()])


def _welch(a: Sequence[float], b: Sequence[float]) -> float:
    """Half-width of the difference of two means with different spreads (Welch 1947)."""
    if len(a) < 2 or len(b) < 2:
        return 0.0
    va, vb = _sd(a) ** 2 / len(a), _sd(b) ** 2 / len(b)
    if va + vb == 0:
        return 0.0
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return t_975(max(1, math.floor(freedom))) * math.sqrt(va + vb)


def _mean(values: Values) -> float:
    return sum(values.values()) / len(values)


def _half(values: Sequence[float]) -> float:
    found = estimate(values)
    return 0.0 if found is None or found.half_width is None else found.half_width


def _sd(values: Sequence[float]) -> float:
    found = estimate(values)
    return 0.0 if found is None or found.sd is None else found.sd


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else ''}{format_number(value)}"


TREE = {
    "energy and performance": ("zeus", "least energy-delay product"),
    "fairness": ("hades", "energy-delay product, users who had little first"),
    "deadlines": ("aurachronos", "slack first, preempting where a deadline is in danger"),
    "power budget": ("charon", "starts jobs only while they fit under the budget"),
}
"""Primary objective -> the policy the tree names, and why."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to deploy; empty when no candidate meets all goals."""

    choice: str
    reasons: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"choice": self.choice, "reasons": list(self.reasons)}


def decide(
    objective: str, verdicts: Mapping[str, tuple[GoalVerdict, ...]], energy: Mapping[str, float]
) -> Decision:
    """The tree's policy where it meets all goals, else the one that does with least energy.

    Args:
        objective: the primary one.
        verdicts: candidate -> its verdicts in the simulation.
        energy: candidate -> mean energy, to choose among those that meet all goals.
    """
    named, why = TREE[objective]
    good = [name for name, found in verdicts.items() if all(v.met for v in found)]
    reasons = [f"for {objective} the tree names {named}: {why}"]
    for name, found in verdicts.items():
        failed = [v for v in found if not v.met]
        told = "; ".join(f"{v.metric} {v.goal}: {v.why}" for v in failed)
        reasons.append(f"{name} meets all goals" if not failed else f"{name} fails {told}")
    if not good:
        reasons.append("no candidate meets all goals: back to step 3, or other candidates or goals")
        return Decision("", tuple(reasons))
    if named in good:
        best = min(good, key=lambda name: energy.get(name, float("inf")))
        if best != named:
            reasons.append(f"{best} meets them, too, with less energy")
            return Decision(best, tuple(reasons))
        return Decision(named, tuple(reasons))
    best = min(good, key=lambda name: energy.get(name, float("inf")))
    tried = "was not among the candidates" if named not in verdicts else "does not meet them"
    reasons.append(f"{named} {tried}; {best} meets all with least energy")
    return Decision(best, tuple(reasons))
