"""Bounds of a cap search under noise: the same searches with more knowledge or more readings.

- every cap read once and judged by the finder's own model, in place of four
- curves drawn from the finder's family, so that its model is exactly right
- a search that knows the GPU's curves, and only has to identify the present one
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from bars import Table
from cap_noise import searched, share
from wattloop.cap.curve_model import CapReading, fit_curves, physical_curves
from wattloop.cap.evaluation import CLOSE, MeasuredCurve, replays, share_within, true_values
from wattloop.cap.finder import CapFinder

__all__ = ["Bound", "EveryCap", "KnowsTheCurves", "bounds_table", "family_curves"]

DRAW = 7
"""Of the family's curves that are searched; the finder believes in those of another draw."""
OUTCOMES = 64

TEXT = """
Shares within 2% of the best, readings {noise:.0f}% off. *Smallest reading*: every cap is read once,
as `exhaustive` above. *Every cap, our belief*: the same readings, but the finder's belief chooses.
*As shipped*: noise decides how many probes, as above.
*Of the family*: {drawn} curves drawn from the finder's own family with the deviations it believes
in, each with the power of one of these curves at the highest cap and searched {each} times, so that
nothing about the belief is wrong; a share has a standard error of about {error:.1f} points there.
*Knows the curves*: who has the measured curves of this very GPU, the one that is searched among
them, and with four probes, each chosen one step ahead, has only to tell which of them it is: more
than any finder can reach on a curve that it has not seen.

EDP counts time twice and so is read 11% off. Four probes do not hold the 10 points over the
smallest reading that are asked for, not even where the belief is right, and no rule for choosing
the four gained clearly more (ADR 0018). Further readings do, more so where they tell most than
spread over every cap.
"""


class Bound(NamedTuple):
    """Shares in percent for one metric."""

    name: str
    exhaustive: float
    four: float
    ours: float
    every_cap: float
    family_exhaustive: float
    family_four: float
    family_ours: float
    family_every_cap: float
    knows: float


class EveryCap(CapFinder):
    """A search that reads every cap once, from the highest down, and chooses by the finder's
    model.
    """

    def ask(self) -> float | None:
        done = len(self.probes)
        return self.caps_w[-1 - done] if done < len(self.caps_w) else None


class Best(NamedTuple):
    cap_w: float


class KnowsTheCurves:
    """Bayes over a list of known curves with a free time scale; chooses the most likely within
    2%.
    """

    def __init__(
        self,
        known: Sequence[MeasuredCurve],
        caps_w: Sequence[float],
        metric: str,
        k: float,
        noise: float,
        most_probes: int = 4,
    ) -> None:
        self.caps_w = list(caps_w)
        self.probes: list[tuple[int, float, float]] = []
        self._noise, self._most = noise, most_probes
        self._time = np.log([curve.time_s for curve in known])
        self._power = np.log([curve.power_w for curve in known])
        truths = [np.array(true_values(curve, metric, k)) for curve in known]
        self._good = np.array([truth / truth.min() - 1 <= CLOSE for truth in truths], dtype=float)
        self._draw = np.random.default_rng(0)

    def tell(self, cap_w: float, time_s: float, energy_j: float) -> None:
        index = self.caps_w.index(cap_w)
        self.probes.append((index, math.log(time_s), math.log(energy_j / time_s)))

    def best(self) -> Best:
        return Best(self.caps_w[int(np.argmax(self._weights() @ self._good))])

    def ask(self) -> float | None:
        if len(self.probes) >= self._most:
            return None
        if not self.probes:
            return self.caps_w[-1]
        time, power = self._residuals()
        truth = self._draw.choice(len(self._time), OUTCOMES, p=self._weights())
        error = self._noise * self._draw.standard_normal((2, OUTCOMES, 1))
        # Residuals of every known curve (second axis) if the next reading is that of `truth`.
        own = self._time[truth] + time.mean(axis=1)[truth, None] + error[0]
        next_time = own[:, None, :] - self._time[None]
        next_power = (self._power[truth] + error[1])[:, None, :] - self._power[None]
        count = len(self.probes) + 1
        sums = time.sum(axis=1)[None, :, None] + next_time
        squares = (time**2 + power**2).sum(axis=1)[None, :, None] + next_time**2 + next_power**2
        weights = _normal((squares - sums**2 / count) / self._noise**2, axis=1)
        right = np.einsum("ojc,jk->ock", weights, self._good).max(axis=2).mean(axis=0)
        return self.caps_w[int(np.argmax(right))]

    def _residuals(self) -> tuple[np.ndarray, np.ndarray]:
        at = [probe[0] for probe in self.probes]
        time = np.array([probe[1] for probe in self.probes]) - self._time[:, at]
        return time, np.array([probe[2] for probe in self.probes]) - self._power[:, at]

    def _weights(self) -> np.ndarray:
        time, power = self._residuals()
        time = time - time.mean(axis=1, keepdims=True)
        return _normal(((time**2).sum(axis=1) + (power**2).sum(axis=1)) / self._noise**2, axis=0)


def _normal(squares: np.ndarray, axis: int) -> np.ndarray:
    weights = np.exp(-0.5 * (squares - squares.min(axis=axis, keepdims=True)))
    shares: np.ndarray = weights / weights.sum(axis=axis, keepdims=True)
    return shares


def family_curves(like: Sequence[MeasuredCurve], each: int) -> list[MeasuredCurve]:
    """Draw responsive curves of the family, with the caps of `like` and their power at the
    highest.
    """
    family, found = physical_curves(seed=DRAW), []
    for number, curve in enumerate(like):
        last = len(curve.caps_w) - 1
        reading = CapReading(last, 0.0, math.log(curve.power_w[last]), 1e-3)
        belief = fit_curves(family, np.array(curve.caps_w), [reading], seed=DRAW + number)
        drawn = (
            MeasuredCurve(curve.key, curve.caps_w, tuple(np.exp(time)), tuple(np.exp(power)))
            for time, power in zip(belief.sampled_time, belief.sampled_power, strict=True)
        )
        responsive = (made for made in drawn if made.responsive)
        found += [made for made, _ in zip(responsive, range(each), strict=False)]
    return found


def bounds_table(
    responsive: dict[str, list[MeasuredCurve]],
    metrics: dict[str, tuple[str, float]],
    noise: float,
    seeds: int,
    each: int,
) -> Table:
    """Table of all bounds for each metric."""
    family = family_curves([c for found in responsive.values() for c in found], each)
    again = max(1, seeds // 4)
    rows = [
        list(_bound(name, metric, k, responsive, family, noise, seeds, again))
        for name, (metric, k) in metrics.items()
    ]
    return Table(
        f"What {100 * noise:.0f}% noise leaves to be found",
        [
            "metric",
            "smallest reading %",
            "4 probes %",
            "as shipped %",
            "every cap, our belief %",
            "of the family: smallest reading %",
            "of the family: 4 probes %",
            "of the family: as shipped %",
            "of the family: every cap %",
            "knows the curves, 4 probes %",
        ],
        rows,
        TEXT.format(
            noise=100 * noise,
            drawn=len(family),
            each=again,
            error=100 * math.sqrt(0.25 / (len(family) * again)),
        ),
    )


def _bound(
    name: str,
    metric: str,
    k: float,
    responsive: dict[str, list[MeasuredCurve]],
    family: Sequence[MeasuredCurve],
    noise: float,
    seeds: int,
    again: int,
) -> Bound:
    every = tuple(curve for found in responsive.values() for curve in found)

    def all_caps(curve: MeasuredCurve) -> CapFinder:
        return EveryCap(curve.caps_w, metric, k, noise=noise)

    def knows(curve: MeasuredCurve) -> CapFinder:
        own = next(found for found in responsive.values() if curve in found)
        known = [other for other in own if other.caps_w == curve.caps_w]
        return KnowsTheCurves(known, curve.caps_w, metric, k, noise)  # type: ignore[return-value] # same interface

    ours = searched(every, metric, k, noise, seeds)
    drawn = searched(tuple(family), metric, k, noise, again)
    return Bound(
        name=name,
        exhaustive=_share(r.exhaustive_regret for r in ours),
        four=share(searched(every, metric, k, noise, seeds, 4)),
        ours=share(ours),
        every_cap=_share(
            r.regret for r in replays(every, metric, k, noise, seeds=seeds, make=all_caps)
        ),
        family_exhaustive=_share(r.exhaustive_regret for r in drawn),
        family_four=share(searched(tuple(family), metric, k, noise, again, 4)),
        family_ours=share(drawn),
        family_every_cap=_share(
            r.regret for r in replays(family, metric, k, noise, seeds=again, make=all_caps)
        ),
        knows=_share(r.regret for r in replays(every, metric, k, noise, seeds=seeds, make=knows)),
    )


def _share(regrets: Iterable[float]) -> float:
    return 100 * (share_within(list(regrets)) or 0.0)
