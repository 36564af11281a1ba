"""How good the cap finder is on measured curves, beside trying every cap."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from wattloop.analyze.metrics import Point, objective
from wattloop.characterize.cap_finder import CapFinder
from wattloop.characterize.cap_table import MeasuredCurve

__all__ = ["Evaluation", "Replayed", "evaluate", "exhaustive_choice", "replays", "share_within"]

CLOSE = 0.02
SEEDS = 10
"""Draws of noise per curve."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One search on one curve. Regrets are of true values: 0.02 is 2% worse than the best cap."""

    curve: MeasuredCurve
    cap_w: float
    probes: int
    regret: float
    exhaustive_regret: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Shares and the worst are of the responsive curves; on flat ones any cap is right."""

    metric: str
    k: float | None
    noise_pct: float
    seeds: int
    curves: int
    responsive_curves: int
    within_2pct_share: float | None
    median_probes: float | None
    mean_probes: float | None
    worst_regret_pct: float | None
    exhaustive_within_2pct_share: float | None
    flat_lowest_share: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


Finder = Callable[[MeasuredCurve], CapFinder]


def evaluate(
    curves: Sequence[MeasuredCurve],
    metric: str,
    k: float = 2.0,
    noise: float = 0.0,
    *,
    seeds: int = SEEDS,
    advance: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Replay the finder on every curve, with several draws of noise where there is noise.

    `noise` is the relative standard deviation of every reading of time and of power; `advance` is
    called after each search.
    """
    done: list[Replayed] = []
    for replayed in replays(curves, metric, k, noise, seeds=seeds):
        done.append(replayed)
        advance()
    responsive = [r for r in done if r.curve.responsive]
    flat = [r for r in done if not r.curve.responsive]
    return Evaluation(
        metric=metric,
        k=k if metric == "eds" else None,
        noise_pct=100 * noise,
        seeds=seeds if noise else 1,
        curves=len(curves),
        responsive_curves=sum(curve.responsive for curve in curves),
        within_2pct_share=share_within([r.regret for r in responsive]),
        median_probes=median(r.probes for r in responsive) if responsive else None,
        mean_probes=fmean(r.probes for r in responsive) if responsive else None,
        worst_regret_pct=100 * max(r.regret for r in responsive) if responsive else None,
        exhaustive_within_2pct_share=share_within([r.exhaustive_regret for r in responsive]),
        flat_lowest_share=(
            sum(r.cap_w == r.curve.caps_w[0] for r in flat) / len(flat) if flat else None
        ),
    )


def replays(
    curves: Sequence[MeasuredCurve],
    metric: str,
    k: float,
    noise: float,
    *,
    seeds: int = SEEDS,
    make: Finder | None = None,
) -> Iterator[Replayed]:
    """Every search; `make` builds another finder than the default one."""
    for number, curve in enumerate(curves):
        truth = true_values(curve, metric, k)
        for seed in range(seeds if noise else 1):
            draw = np.random.default_rng([number, seed])
            # Noise of its own, so that it is the same however many probes the finder makes.
            others = np.random.default_rng([number, seed, 1])
            finder = (
                CapFinder(curve.caps_w, metric, k, noise=noise) if make is None else make(curve)
            )
            while (cap_w := finder.ask()) is not None:
                index = curve.caps_w.index(cap_w)
                time_s, power_w = _read(curve, index, noise, draw)
                finder.tell(cap_w, time_s, time_s * power_w)
            cap_w = finder.best().cap_w
            yield Replayed(
                curve,
                cap_w,
                len(finder.probes),
                truth[curve.caps_w.index(cap_w)] / min(truth) - 1,
                truth[exhaustive_choice(curve, metric, k, noise, others)] / min(truth) - 1,
            )


def exhaustive_choice(
    curve: MeasuredCurve, metric: str, k: float, noise: float, draw: np.random.Generator
) -> int:
    """What trying every cap once would choose: the smallest reading."""
    readings = [_read(curve, index, noise, draw) for index in range(len(curve.caps_w))]
    seen = MeasuredCurve(
        curve.key, curve.caps_w, tuple(t for t, _ in readings), tuple(p for _, p in readings)
    )
    values = true_values(seen, metric, k)
    return values.index(min(values))


def true_values(curve: MeasuredCurve, metric: str, k: float) -> list[float]:
    """The metric at every cap; those that need a reference take the highest cap."""
    points = [Point(t, t * p) for t, p in zip(curve.time_s, curve.power_w, strict=True)]
    small = objective(metric, points[-1], k)
    values = [small(point) for point in points]
    # Gain minus loss is a difference; as 2 (1 - EDS(2)) it has a regret in per cent.
    return [1 + value / 200 for value in values] if metric == "gain_minus_loss" else values


def share_within(regrets: Sequence[float], close: float = CLOSE) -> float | None:
    """Share of regrets of at most `close`."""
    return sum(regret <= close for regret in regrets) / len(regrets) if regrets else None


def _read(
    curve: MeasuredCurve, index: int, noise: float, draw: np.random.Generator
) -> tuple[float, float]:
    """Time and power as an instrument with relative noise shows them."""
    factors = np.exp(noise * draw.standard_normal(2))
    return curve.time_s[index] * float(factors[0]), curve.power_w[index] * float(factors[1])
