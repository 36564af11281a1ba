"""Shares of a device: the energy of a card divided among the processes or instances that use it.

    P_i = idle + sum over p of c_p u_pi             mean power in interval i, u_p the use of p
    E_p = sum over i of idle dt_i / n_i + (E_i - idle dt_i) c_p u_pi / sum over q of c_q u_qi

Idle power is divided evenly among the n_i processes that are present, so by time; instances of a
card that is split pay by their slices. The rest follows
the use of each, weighted by the power c that a full use of it costs. Utilisation alone takes all c
as equal: a kernel that waits for memory and one that multiplies matrices both count as busy. Here
they are fitted to the card's own power as loads come and go (ridge regression, prior: equal c with
a spread of half). Where nothing varies the prior remains, and its spread is the stated error.

At its power limit a card lowers its clock, and costs no longer add up: four processes that would
draw 850 W draw 700. Such an interval says only that the sum is not below the limit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

PRIOR_SPREAD = 0.5
"""Spread of the power that programs draw per second of SM use. A board of 80 W idle and 700 W
limit runs busy kernels between about 250 and 700 W: +-50% of the middle."""
IDLE_OF_LIMIT, IDLE_SPREAD = 0.11, 0.04
"""Idle power as a part of the limit where it is unknown: 8 to 14% on the five shipped cards."""
LEAST_NOISE = 0.01
MOST_FITTED = 12
"""Processes with a coefficient of their own; those of least use share one."""
LEAST_COST = 0.05
AT_LIMIT = 0.97
"""Part of the power limit from which on a card is taken to lower its clock."""
ROUNDING = 0.01 / math.sqrt(12)
"""Standard deviation of a utilisation in whole percents, taken as the same in every interval."""


MOST_STEPS = 128
REMEMBERED_S = 1_800.0
FIT_EVERY_S, FIT_AGAIN = 30.0, 0.2
"""A fit is renewed after so long, or after this part of the time that is remembered."""
FIT_ENDED_S = 10.0
"""While a user that has ended may still be corrected, a fit is renewed as often as this."""
PAID_BACK = 0.5
"""Part of a step's energy that corrects earlier ones, so that power stays near the truth."""
SETTLE_S, SETTLE_MOST_S = 20.0, 120.0
"""Time with the same users after which the device's power has told what one that has ended cost,
and the longest time to wait for that."""
SETTLED = 0.01
"""What a user that has ended may be given too little or too much, as a part of its energy."""
LEAST_MERGED = 0.75


class UseInterval(NamedTuple):
    """Energy of a device in an interval, and its users.

    Attributes:
        use: user -> part of the time in which it used the device, 0 to 1; None where that is
            unknown. Idle users that hold memory are listed with 0.
        weight: user -> what stands for its use where that is unknown: memory, or slices.
        idle: user -> its part in idle power where that is not even: slices.
        idle_share: part of idle power that belongs to these users; the rest is booked to others.
    """

    duration_s: float
    energy_j: float
    use: Mapping[Hashable, float | None]
    weight: Mapping[Hashable, float] = {}
    idle: Mapping[Hashable, float] = {}
    idle_share: float = 1.0

    def idle_part(self, users: Collection[Hashable]) -> float:
        """Return the part of some users in idle power, 0 to 1."""
        whole = math.fsum(self.idle.values())
        if whole <= 0:
            return sum(user in users for user in self.use) / len(self.use)
        return math.fsum(part for user, part in self.idle.items() if user in users) / whole

    def without(self, booked: Mapping[Hashable, float]) -> UseInterval:
        """Return what some users, whose joules are booked, leave to the others."""
        if not booked or not self.use:
            return self
        left = [user for user in self.use if user not in booked]
        return self._replace(
            energy_j=max(0.0, self.energy_j - math.fsum(booked.values())),
            use={user: self.use[user] for user in left},
            idle={user: part for user, part in self.idle.items() if user in left},
            idle_share=self.idle_share * self.idle_part(left),
        )


def merged(intervals: Sequence[UseInterval]) -> UseInterval:
    """Return neighbouring intervals as one, with the mean use of each user."""
    lengths_s = [max(each.duration_s, 1e-9) for each in intervals]  # none of them may count for 0
    users = dict.fromkeys(user for each in intervals for user in each.use)
    unknown = {user for each in intervals for user, use in each.use.items() if use is None}

    def mean(column: int, user: Hashable) -> float:
        found = zip(lengths_s, (each[column].get(user) for each in intervals), strict=True)  # type: ignore[union-attr]  # columns 2 to 4 are mappings
        return math.fsum(part_s * (value or 0.0) for part_s, value in found) / math.fsum(lengths_s)

    return UseInterval(
        math.fsum(each.duration_s for each in intervals),
        math.fsum(each.energy_j for each in intervals),
        {user: None if user in unknown else mean(2, user) for user in users},
        {user: mean(3, user) for user in users} if any(i.weight for i in intervals) else {},
        {user: mean(4, user) for user in users} if any(i.idle for i in intervals) else {},
    )


class SharePart(NamedTuple):
    """Part of a device's energy, and the half-width of its interval."""

    energy_j: float
    uncertainty_j: float


class PowerFit(NamedTuple):
    """Idle power of a device and the power that a full use by each user costs, with covariance.

    `columns` has the number of each user in `costs_w`; number 0 is the idle power.
    """

    idle_w: float
    costs_w: tuple[float, ...]
    columns: Mapping[Hashable, int]
    covariance: Sequence[Sequence[float]]

    def cost_w(self, user: Hashable) -> float:
        return self.costs_w[self.columns.get(user, -1)]


class DeviceDivision:
    """Division of a device's energy among its users; the parts add up to the device.

    Args:
        intervals: of the time to divide.
        fit: from these intervals or a longer time; None where the use is unknown.
    """

    def __init__(self, intervals: Sequence[UseInterval], fit: PowerFit | None) -> None:
        self._intervals = [each for each in intervals if each.duration_s > 0]
        self._fit = fit

    @property
    def users(self) -> list[Hashable]:
        return list(dict.fromkeys(user for each in self._intervals for user in each.use))

    def parts(self) -> dict[Hashable | None, SharePart]:
        """Return the part of each user, and of None what was used while there was no user."""
        parts: dict[Hashable | None, SharePart] = {u: self.part([u]) for u in self.users}
        unused_j = math.fsum(each.energy_j for each in self._intervals if not each.use)
        if unused_j > 0:
            parts[None] = SharePart(unused_j, 0.0)
        if parts:  # the largest takes what rounding leaves
            most = max(parts, key=lambda user: parts[user].energy_j)
            others = [-part.energy_j for user, part in parts.items() if user != most]
            left_j = math.fsum([*(each.energy_j for each in self._intervals), *others])
            parts[most] = parts[most]._replace(energy_j=left_j)
        return parts

    def part(self, users: Collection[Hashable]) -> SharePart:
        """Return the part of some users together."""
        fit = self._fit
        own_j = others_j = 0.0
        slopes = [0.0] * (len(fit.covariance) if fit else 1)
        use_slopes_j: dict[Hashable, float] = {}
        for each in self._intervals:
            if not each.use:
                continue
            idle_j = _idle_j(each, fit)
            present = each.idle_part(users)
            weights = _weights(each, fit)
            total = math.fsum(weights.values())
            share = math.fsum(w for user, w in weights.items() if user in users) / total
            dynamic_j = each.energy_j - idle_j
            own_j += idle_j * present + dynamic_j * share
            others_j += idle_j * (1 - present) + dynamic_j * (1 - share)
            slopes[0] += each.duration_s * (present - share)
            for user, use in each.use.items() if fit else ():
                if use and fit and user in fit.columns:
                    slope_j = dynamic_j / total * ((user in users) - share)
                    slopes[fit.columns[user]] += slope_j * use
                    use_slopes_j[user] = use_slopes_j.get(user, 0.0) + slope_j * fit.cost_w(user)
        if fit is None:
            whole_j = own_j + others_j
            return SharePart(own_j, own_j * others_j / whole_j if whole_j > 0 else 0.0)
        variance = _dot(slopes, [_dot(row, slopes) for row in fit.covariance])
        variance += sum((ROUNDING * slope_j) ** 2 for slope_j in use_slopes_j.values())
        return SharePart(own_j, 2 * math.sqrt(max(0.0, variance)))


def energies_j(each: UseInterval, fit: PowerFit | None) -> dict[Hashable, float]:
    """Return the joules of each user of one interval; they add up to its energy."""
    if not each.use:
        return {}
    idle_j, weights = _idle_j(each, fit), _weights(each, fit)
    dynamic_j, total = each.energy_j - idle_j, math.fsum(weights.values())
    return {
        user: idle_j * each.idle_part([user]) + dynamic_j * weight / total
        for user, weight in weights.items()
    }


def _idle_j(each: UseInterval, fit: PowerFit | None) -> float:
    return min(fit.idle_w * each.idle_share * each.duration_s, each.energy_j) if fit else 0.0


def _weights(each: UseInterval, fit: PowerFit | None) -> dict[Hashable, float]:
    if fit is not None:
        weights = {user: fit.cost_w(user) * (use or 0.0) for user, use in each.use.items()}
    else:
        weights = {user: each.weight.get(user, 0.0) for user in each.use}
    return weights if math.fsum(weights.values()) > 0 else dict.fromkeys(each.use, 1.0)


def fit_power(
    intervals: Sequence[UseInterval],
    *,
    idle_w: float | None = None,
    seen_w: float | None = None,
    limit_w: float | None = None,
) -> PowerFit | None:
    """Fit idle power and the cost of each user's use to the device's power.

    None where the use of some user is unknown: memory and time then divide the energy.

    Args:
        intervals: of a time with one set of users or several.
        idle_w: idle power of the device, if known; else that of intervals without a user.
        seen_w: its power at an earlier time without a user, if there was one.
        limit_w: its power limit. Intervals at the limit do not tell what a use costs. Idle power
            is a part of it, where nothing else tells it.
    """
    rows = [each for each in intervals if each.use and each.duration_s > 0]
    if not rows or any(use is None for each in rows for use in each.use.values()):
        return None
    time_s = math.fsum(each.duration_s for each in rows)
    mean_w = max(math.fsum(each.energy_j for each in rows) / time_s, 1e-6)
    quiet_w = sorted(e.energy_j / e.duration_s for e in intervals if e.duration_s > 0 and not e.use)
    seen_w = quiet_w[len(quiet_w) // 2] if quiet_w else seen_w
    if idle_w is not None:
        idle_spread_w = 0.05 * idle_w
    elif limit_w is not None:  # as uncertain where seen: some cards draw less without a context
        idle_w, idle_spread_w = seen_w or IDLE_OF_LIMIT * limit_w, IDLE_SPREAD * limit_w
    else:
        idle_w, idle_spread_w = seen_w or 0.2 * mean_w, 0.1 * mean_w
    idle_w = min(idle_w, mean_w)
    used_s: dict[Hashable, float] = {}
    for each in rows:
        for user, use in each.use.items():
            used_s[user] = used_s.get(user, 0.0) + each.duration_s * (use or 0.0)
    ranked = sorted(used_s, key=lambda user: -used_s[user])
    columns = {user: min(i, MOST_FITTED) + 1 for i, user in enumerate(ranked)}
    total_s = math.fsum(used_s.values())
    cost_w = max((mean_w - idle_w) * time_s / total_s if total_s > 0 else 0.0, 1e-3)
    size = max(columns.values()) + 1
    means = [idle_w, *[cost_w] * (size - 1)]
    spreads = [idle_spread_w, *[PRIOR_SPREAD * cost_w] * (size - 1)]
    table = [[1.0, *[0.0] * (size - 1)] for _ in rows]
    for row, each in zip(table, rows, strict=True):
        for user, use in each.use.items():
            row[columns[user]] += use or 0.0
    powers_w = [each.energy_j / each.duration_s for each in rows]
    weights = [each.duration_s * len(rows) / time_s for each in rows]
    found, covariance = means, _scaled(_identity(size), spreads)
    noise_w = 0.05 * mean_w
    held = [limit_w is not None and power_w >= AT_LIMIT * limit_w for power_w in powers_w]
    for _ in range(3 + 3 * any(held)):  # each is judged by the fit before: noise, rows at the limit
        used = [
            0.0 if at_limit and _dot(row, found) >= power_w else weight
            for row, power_w, weight, at_limit in zip(table, powers_w, weights, held, strict=True)
        ]
        found, covariance = _ridge(table, powers_w, used, means, spreads, noise_w)
        squares = math.fsum(
            weight * (power_w - _dot(row, found)) ** 2
            for row, power_w, weight in zip(table, powers_w, used, strict=True)
        )
        degrees = max(1, sum(weight > 0 for weight in used) - size)
        noise_w = max(LEAST_NOISE * mean_w, math.sqrt(squares / degrees))
    costs_w = (max(cost, LEAST_COST * cost_w) for cost in found[1:])
    return PowerFit(min(max(found[0], 0.0), *powers_w), (0.0, *costs_w), columns, covariance)


def _ridge(
    table: Sequence[Sequence[float]],
    powers_w: Sequence[float],
    weights: Sequence[float],
    means: Sequence[float],
    spreads: Sequence[float],
    noise_w: float,
) -> tuple[list[float], list[list[float]]]:
    """Return the posterior mean and covariance of a linear model with independent priors."""
    size = len(means)
    matrix, right = _identity(size), [0.0] * size
    for row, power_w, weight in zip(table, powers_w, weights, strict=True):
        scaled = [x * spread / noise_w for x, spread in zip(row, spreads, strict=True)]
        error = (power_w - _dot(row, means)) / noise_w
        for i, left in enumerate(scaled):
            if left:
                right[i] += weight * left * error
                for k, other in enumerate(scaled):
                    matrix[i][k] += weight * left * other
    inverse = _inverse(matrix)
    found = [
        mean + spread * _dot(line, right)
        for mean, spread, line in zip(means, spreads, inverse, strict=True)
    ]
    return found, _scaled(inverse, spreads)


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Invert a symmetric positive definite matrix (Gauss-Jordan; no pivot is below 1)."""
    size = len(matrix)
    work = [[*row, *unit] for row, unit in zip(matrix, _identity(size), strict=True)]
    for i in range(size):
        pivot = work[i][i]
        work[i] = [x / pivot for x in work[i]]
        for k in range(size):
            if k != i and (factor := work[k][i]):
                work[k] = [x - factor * y for x, y in zip(work[k], work[i], strict=True)]
    return [row[size:] for row in work]


def _identity(size: int) -> list[list[float]]:
    return [[float(i == k) for k in range(size)] for i in range(size)]


def _scaled(matrix: Sequence[Sequence[float]], by: Sequence[float]) -> list[list[float]]:
    return [[x * by[i] * by[k] for k, x in enumerate(row)] for i, row in enumerate(matrix)]


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(left, right, strict=True))


class RunningDivision:
    """Division of a device's energy step by step, where what a running user got is not taken back.

        x_u = p_u + a_u,   sum of a_u = 0,   |a_u| <= PAID_BACK p_u

    p_u is the part of user u in a step, by the present fit. The fit knows more with every step, so
    that earlier parts were too large or too small; a_u pays that back from the energy of this step.
    The parts of each step add up to it, and no sum of a running user ever falls. What a program
    costs often shows only when it is gone, so users that have ended take part for a while: their
    a_u has no bound.

    Args:
        idle_w, seen_w, limit_w: as for `fit_power`.
        state: of `to_state`, of an earlier process.
    """

    def __init__(
        self,
        idle_w: float | None = None,
        seen_w: float | None = None,
        limit_w: float | None = None,
        state: Mapping[str, Any] | Sequence[Sequence[Any]] = (),
    ) -> None:
        self._known = {"idle_w": idle_w, "seen_w": seen_w, "limit_w": limit_w}
        # an earlier version had the steps alone, with the joules that were given
        saved: Mapping[str, Any] = (
            state if isinstance(state, Mapping) else {"steps": state, "owed": {}}
        )
        self._steps = [
            (UseInterval(row[0], row[1], dict(row[2]), idle=dict(*row[4:])), dict(row[3]))
            for row in saved["steps"]
        ]  # with the joules of each user by the last fit, or as booked when it was closed
        self._owed: dict[Hashable, float] = dict(saved["owed"])
        """Joules by the last fit less those that were given; the sum is 0."""
        self._fit: PowerFit | None = None
        self._unfitted_s = math.inf

    @property
    def is_shared(self) -> bool:
        """Return True if several users had the device at a time that is remembered."""
        return any(len(each.use) > 1 for each, _ in self._steps)

    @property
    def users(self) -> set[Hashable]:
        """Return the users at a time that is remembered."""
        return {user for each, _ in self._steps for user in each.use}

    def divide(
        self, step: UseInterval, ended: Collection[Hashable] = ()
    ) -> dict[Hashable, SharePart]:
        """Return the part of each user in the next step, and what is corrected of those that ended.

        The parts add up to the step's energy, to nothing where it has no user.

        Args:
            step: energy and users of the time since the last step.
            ended: users that left and are not closed yet; their corrections may be below zero.
        """
        self._steps.append((step, {}))
        if len(self._steps) > MOST_STEPS:
            self._merge()
        self._unfitted_s += step.duration_s
        length_s = math.fsum(each.duration_s for each, _ in self._steps)
        renewed_s = min(FIT_ENDED_S if ended else FIT_EVERY_S, FIT_AGAIN * length_s)
        if self._fit is None or self._unfitted_s >= renewed_s:
            self._refit({*step.use, *ended})
        parts_j = energies_j(step, self._fit)
        self._steps[-1] = (step, parts_j)
        given_j = self._corrected(parts_j, ended)
        division = DeviceDivision([step], self._fit)
        return {
            user: SharePart(own_j, division.part([user]).uncertainty_j if user in step.use else 0.0)
            for user, own_j in given_j.items()
        }

    def is_settled(self, user: Hashable) -> bool:
        """Return True when the time since a user ended has told what it cost, and it has that."""
        if user not in self.users:
            return True
        now = self._steps[-1][0].use.keys()
        since = itertools.takewhile(lambda one: one[0].use.keys() == now, reversed(self._steps))
        alike_s = math.fsum(each.duration_s for each, _ in since)
        owed_j = abs(self._owed.get(user, 0.0))
        return alike_s >= SETTLE_S and owed_j <= SETTLED * self._remembered_j(user)

    def close(self, user: Hashable) -> None:
        """Take what a user was given as its own from now on; the others divide the rest."""
        owed_j, own_j = self._owed.pop(user, 0.0), self._remembered_j(user)
        if own_j > 0:
            for _, parts_j in self._steps:
                if user in parts_j:
                    parts_j[user] *= max(0.0, 1 - owed_j / own_j)
            self._unfitted_s = math.inf

    def to_state(self) -> dict[str, Any]:
        steps = [
            [
                round(each.duration_s, 6),
                round(each.energy_j, 3),
                {user: round(use or 0.0, 4) for user, use in each.use.items()},
                {user: round(own_j, 3) for user, own_j in parts_j.items()},
                *(
                    [{user: round(part, 4) for user, part in each.idle.items()}]
                    if each.idle
                    else ()
                ),
            ]
            for each, parts_j in self._steps
        ]
        return {"steps": steps, "owed": {user: round(j, 3) for user, j in self._owed.items()}}

    def _remembered_j(self, user: Hashable) -> float:
        return math.fsum(parts_j.get(user, 0.0) for _, parts_j in self._steps)

    def _merge(self) -> None:
        """Halve the steps before the last: only those of the same users, unless that is too few.

        Where users come and go, the edges tell what each of them costs.
        """
        *steps, last = self._steps
        halved = _halved(steps, lambda one, two: one.use.keys() == two.use.keys())
        if len(halved) > LEAST_MERGED * MOST_STEPS:
            halved = _halved(steps, lambda _one, _two: True)
        length_s = math.fsum(each.duration_s for each, _ in (*halved, last))
        while length_s > REMEMBERED_S and halved:
            length_s -= halved.pop(0)[0].duration_s
        self._steps = [*halved, last]

    def _refit(self, users: Collection[Hashable]) -> None:
        """Fit what is remembered, and compute what each of the users was given too little of it."""
        self._unfitted_s = 0.0
        self._fit = fit_power([each for each, _ in self._steps], **self._known)
        for each, parts_j in self._steps[:-1]:
            booked = {user: joules for user, joules in parts_j.items() if user not in users}
            for user, own_j in energies_j(each.without(booked), self._fit).items():
                more_j = own_j - parts_j.get(user, 0.0)
                self._owed[user] = self._owed.get(user, 0.0) + more_j
                parts_j[user] = own_j

    def _corrected(
        self, parts_j: Mapping[Hashable, float], ended: Collection[Hashable]
    ) -> dict[Hashable, float]:
        """Return the parts with what is paid back in this step."""
        bounds = {**dict.fromkeys(ended, math.inf)} | {u: PAID_BACK * j for u, j in parts_j.items()}
        change_j = {
            user: math.copysign(min(abs(owed_j), bounds[user]), owed_j)
            for user, owed_j in self._owed.items()
            if user in bounds and owed_j
        }
        missing_j = math.fsum(joules for joules in change_j.values() if joules > 0)
        taken_j = -math.fsum(joules for joules in change_j.values() if joules < 0)
        moved_j = min(missing_j, taken_j)
        found = dict(parts_j)
        for user, joules in change_j.items() if moved_j > 0 else ():
            moved = joules * moved_j / (missing_j if joules > 0 else taken_j)
            self._owed[user] -= moved
            found[user] = found.get(user, 0.0) + moved
        return found


_Step = tuple[UseInterval, dict[Hashable, float]]


def _halved(
    steps: Sequence[_Step], alike: Callable[[UseInterval, UseInterval], bool]
) -> list[_Step]:
    """Return neighbouring steps merged in pairs, where two are alike."""
    found: list[_Step] = []
    i = 0
    while i < len(steps):
        (one, left_j), (two, right_j) = steps[i], steps[min(i + 1, len(steps) - 1)]
        if i + 1 < len(steps) and alike(one, two):
            users = left_j | right_j
            parts_j = {user: left_j.get(user, 0.0) + right_j.get(user, 0.0) for user in users}
            found.append((merged([one, two]), parts_j))
            i += 2
        else:
            found.append(steps[i])
            i += 1
    return found
