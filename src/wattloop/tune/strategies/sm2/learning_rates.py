"""The largest learning rate at which the loss stays calm (Geißler et al., 4.2 and figure 1).

The second derivative of the loss over the rates is its curvature. A window slides over the
rates; windows are sorted by their mean curvature and then, among the calm ones, by their mean rate.
The largest rate of the window that comes out first is the one to train with. What the document does
not say is decided in ADR 0024.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.tune.progress import RateLoss

WIDTH = 5
CALM_SHARE = 0.5
"""The calmer half of the windows counts as having a low curvature."""
SAME = 0.01
"""Curvatures that differ by less, in parts of the range of losses, are the same."""
ROOM = 0.1
"""How much higher than in the best window the loss may be, in parts of the range."""


@dataclass(frozen=True, slots=True)
class RateWindow:
    """Some neighbouring rates.

    Attributes:
        curvature: mean size of the second derivative of the loss.
        sound: whether the loss there is about as low as in the best window.
    """

    low: float
    high: float
    mean_rate: float
    curvature: float
    loss: float
    sound: bool


@dataclass(frozen=True, slots=True)
class RatePick:
    """The rate to train with, and how it was found.

    Attributes:
        rate: the largest of its window.
        windows: all of them, from low rates to high.
        at_edge: whether the window is the last one: a wider range may hold a better rate.
    """

    rate: float
    window: RateWindow
    windows: tuple[RateWindow, ...]
    at_edge: bool


def stable_rate(losses: Sequence[RateLoss], *, width: int = WIDTH) -> RatePick | None:
    """The largest stable rate; None when fewer than three rates have a finite loss.

    Args:
        losses: of a sweep. Those that are infinite broke the training: rates from the lowest of
            them on are not looked at.
        width: rates in a window; smaller where there are fewer rates.

    Raises:
        ConfigError: the width is below 2.
    """
    if width < 2:
        raise ConfigError(f"a window of {width} rates has no curvature; use 2 or more")
    tried = sorted(losses, key=lambda point: point.rate)
    whole = [point for point in tried if point.rate > 0]
    broken = next((i for i, p in enumerate(whole) if not math.isfinite(p.loss)), len(whole))
    whole = whole[:broken]
    if len(whole) < 3:
        return None
    windows = _windows(whole, min(width, len(whole)))
    sound = [window for window in windows if window.sound]
    # Sorted by curvature, then by mean rate: the calm ones first, the largest of them foremost.
    ordered = sorted(sound, key=lambda window: window.curvature)
    middle = ordered[max(1, math.ceil(CALM_SHARE * len(ordered))) - 1].curvature
    spread = max(p.loss for p in whole) - min(p.loss for p in whole)
    calm = [window for window in ordered if window.curvature <= middle + SAME * spread]
    best = max(calm, key=lambda window: window.mean_rate)
    return RatePick(best.high, best, tuple(windows), best.high >= tried[-1].rate)


def _windows(points: Sequence[RateLoss], width: int) -> list[RateWindow]:
    rates = np.array([point.rate for point in points])
    values = np.array([point.loss for point in points])
    spread = float(values.max() - values.min()) or 1.0
    # d2L/dx2 over x = log10(rate): the rates lie evenly there.
    places = np.log10(rates)
    curvature = np.abs(np.gradient(np.gradient(values, places), places))
    slices = [slice(first, first + width) for first in range(len(points) - width + 1)]
    most = min(float(values[part].mean()) for part in slices) + ROOM * spread
    return [
        RateWindow(
            low=float(rates[part][0]),
            high=float(rates[part][-1]),
            mean_rate=float(rates[part].mean()),
            curvature=float(curvature[part].mean()),
            loss=float(values[part].mean()),
            sound=bool(values[part].mean() <= most),
        )
        for part in slices
    ]
