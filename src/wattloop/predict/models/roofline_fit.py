"""Fitting the roofline: exact sums by intensity, a search over two shares."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Intensities", "fit_powers", "fit_shares"]

Array = NDArray[np.float64]

ZOOMS = 12
POINTS = 25
SHARES = (1e-3, 1.0)


class Intensities:
    """Operations of one step, sorted by the share ratio at which bytes stop to bind them.

    With c and m the shares of peak and bandwidth, an operation of f and b seconds at the peaks
    takes max(f / c, b / m): FLOPs bind it where b / f <= m / c. Sums over the sorted operations
    make the step's time one look-up for any pair of shares.
    """

    def __init__(self, compute_s: Sequence[float], memory_s: Sequence[float]) -> None:
        f, b = np.asarray(compute_s, float), np.asarray(memory_s, float)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(f > 0, b / f, np.inf)
        order = np.argsort(ratio, kind="stable")
        self._ratio = ratio[order]
        self._compute_below = np.concatenate([[0.0], np.cumsum(f[order])])
        self._memory_above = np.concatenate([np.cumsum(b[order][::-1])[::-1], [0.0]])
        self.compute_s = float(f.sum())
        self.memory_s = float(b.sum())

    def halves(self, compute_share: float, memory_share: float) -> tuple[float, float]:
        """Seconds of the operations bound by FLOPs, and of those bound by bytes."""
        compute, memory = self._halves(np.float64(compute_share), np.float64(memory_share))
        return float(compute), float(memory)

    def times(self, compute_share: Array, memory_share: Array) -> Array:
        """Seconds of the step for arrays of shares."""
        compute, memory = self._halves(compute_share, memory_share)
        return compute + memory

    def _halves(
        self, compute_share: Array | np.float64, memory_share: Array | np.float64
    ) -> tuple[Array, Array]:
        below = np.searchsorted(self._ratio, memory_share / compute_share, side="right")
        return (
            self._compute_below[below] / compute_share,
            self._memory_above[below] / memory_share,
        )


def fit_shares(
    steps: Sequence[Intensities], precisions: Sequence[str], step_s: Sequence[float]
) -> tuple[dict[str, float], float]:
    """Shares of the peak by precision and of the bandwidth with the least mean relative error.

    Given the share of bandwidth, precisions do not meet, so each has a search of its own over a
    grid that closes in on the best point.
    """
    kinds = sorted(set(precisions))
    rows = {
        kind: [(steps[i], step_s[i]) for i, of in enumerate(precisions) if of == kind]
        for kind in kinds
    }
    span, spans = SHARES, dict.fromkeys(kinds, SHARES)
    best: tuple[float, float, dict[str, float]] = (np.inf, 1.0, {})
    for _ in range(ZOOMS):
        memory = np.geomspace(*span, POINTS)
        error = np.zeros(POINTS)
        chosen: dict[str, Array] = {}
        for kind in kinds:
            compute = np.geomspace(*spans[kind], POINTS)
            errors = _error(rows[kind], compute[:, None], memory[None, :])
            chosen[kind] = compute[errors.argmin(axis=0)]
            error += errors.min(axis=0)
        at = int(error.argmin())
        if error[at] < best[0]:
            best = (error[at], memory[at], {kind: chosen[kind][at] for kind in kinds})
        span = _closer(span, best[1])
        spans = {kind: _closer(spans[kind], best[2][kind]) for kind in kinds}
    return {kind: float(share) for kind, share in best[2].items()}, float(best[1])


def fit_powers(
    halves: Sequence[tuple[float, float]], power_shares: Sequence[float | None]
) -> tuple[float, float]:
    """Two wattages, as shares of the limit, whose time-weighted mean is nearest relatively."""
    known = [
        (compute / (compute + memory), share)
        for (compute, memory), share in zip(halves, power_shares, strict=True)
        if share
    ]
    if not known:
        return 1.0, 1.0
    bound, share = (np.array(column) for column in zip(*known, strict=True))
    computing = moving = SHARES
    best = (np.inf, 1.0, 1.0)
    for _ in range(ZOOMS):
        c = np.geomspace(*computing, POINTS)[:, None, None]
        m = np.geomspace(*moving, POINTS)[None, :, None]
        errors = abs((c * bound + m * (1 - bound)) / share - 1).sum(axis=2)
        row, column = np.unravel_index(errors.argmin(), errors.shape)
        if errors[row, column] < best[0]:
            best = (errors[row, column], c[row, 0, 0], m[0, column, 0])
        computing, moving = _closer(computing, best[1]), _closer(moving, best[2])
    return float(best[1]), float(best[2])


def _error(rows: Sequence[tuple[Intensities, float]], compute: Array, memory: Array) -> Array:
    total = np.zeros(np.broadcast_shapes(compute.shape, memory.shape))
    for step, true_s in rows:
        total += abs(step.times(compute, memory) / true_s - 1)
    return total


def _closer(span: tuple[float, float], at: float) -> tuple[float, float]:
    """A third of the span around the best point, on a logarithmic scale and within SHARES."""
    half = (span[1] / span[0]) ** (1 / 6)
    return max(at / half, SHARES[0]), min(at * half, SHARES[1])
