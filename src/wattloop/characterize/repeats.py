"""When a point has been repeated often enough."""

from collections.abc import Sequence
from dataclasses import dataclass

from wattloop.analyze.intervals import Estimate, estimate, is_outlier, t_975
from wattloop.characterize.sweep_spec import Repeats
from wattloop.trials.outcome import Outcome

__all__ = ["Repeated", "repeated"]

FAILURES_LIMIT = 2
"""A point that failed this often, and more often than it worked, is not tried again: some settings
do not work on some machines."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The repeats of one point so far, in the order in which they ran.

    Attributes:
        outcomes: all of them.
        outlying: which ones lie too far from the others in time or energy.
    """

    outcomes: tuple[Outcome, ...]
    outlying: tuple[bool, ...]
    scope: str | None

    @property
    def used(self) -> tuple[Outcome, ...]:
        """Those that ran to their end and belong to the others."""
        pairs = zip(self.outcomes, self.outlying, strict=True)
        return tuple(outcome for outcome, out in pairs if outcome.ok and not out)

    @property
    def failures(self) -> int:
        """How many did not run to their end."""
        return sum(not outcome.ok for outcome in self.outcomes)

    @property
    def time_s(self) -> Estimate | None:
        """Mean time."""
        return estimate([o.time_s for o in self.used if o.time_s is not None])

    @property
    def energy_j(self) -> Estimate | None:
        """Mean energy of the scope."""
        if self.scope is None:
            return None
        found = (o.energy_j(self.scope) for o in self.used)
        return estimate([joules for joules in found if joules is not None])

    @property
    def given_up(self) -> bool:
        """Whether trying on is no use."""
        return self.failures >= FAILURES_LIMIT and self.failures > len(self.used)

    def missing(self, rule: Repeats) -> int:
        """How many more repeats it takes, as far as can be foreseen; 0 when there are enough."""
        if self.given_up:
            return 0
        done = len(self.used)
        # An outlier is replaced, but a point that has nothing else is not run for ever.
        left = min(rule.most - done, rule.most + max(1, rule.most // 2) - len(self.outcomes))
        if left <= 0:
            return 0
        if done < rule.least:
            return min(left, rule.least - done)
        if rule.target_pct is None:
            return left
        return min(left, max(self._more_for(e, rule.target_pct) for e in self._judged()))

    def _judged(self) -> list[Estimate | None]:
        return [self.time_s] if self.scope is None else [self.time_s, self.energy_j]

    @staticmethod
    def _more_for(known: Estimate | None, target_pct: float) -> int:
        """Repeats until the half-width would be within the target, if the spread stays."""
        if known is None or known.relative is None or known.sd is None:
            return 1
        target = target_pct / 100
        if known.relative <= target:
            return 0
        relative_sd = abs(known.sd / known.mean)
        n = known.n
        while t_975(n - 1) * relative_sd / n**0.5 > target and n < known.n + 100:
            n += 1
        return max(1, n - known.n)


def repeated(outcomes: Sequence[Outcome], scope: str | None) -> Repeated:
    """The repeats with those marked that do not belong, judged by time and by energy."""
    outlying = [False] * len(outcomes)
    good = [i for i, outcome in enumerate(outcomes) if outcome.ok]
    columns = [[outcomes[i].time_s for i in good]]
    if scope is not None:
        columns.append([outcomes[i].energy_j(scope) for i in good])
    for column in columns:
        known = [value for value in column if value is not None]
        if len(known) == len(good):
            for i, out in zip(good, is_outlier(known), strict=True):
                outlying[i] = outlying[i] or out
    return Repeated(tuple(outcomes), tuple(outlying), scope)
