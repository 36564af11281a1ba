"""Other ways to find a cap, with the interface of `CapFinder`."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wattloop.accounting.energy_delay import Point, objective
from wattloop.cap.curve_model import LOG_CAPS, CurveFamily
from wattloop.cap.evaluation import MeasuredCurve
from wattloop.cap.finder import CapFinder

__all__ = ["GaussianProcess", "GoldenSection", "LearnedElsewhere", "RandomCaps"]


class Best(NamedTuple):
    cap_w: float


class Rival:
    """Base of rivals, which chooses the smallest reading."""

    def __init__(self, caps_w: Sequence[float], metric: str, k: float, most_probes: int) -> None:
        self.caps_w = list(caps_w)
        self.metric, self.k, self.most_probes = metric, k, most_probes
        self.probes: list[tuple[float, Point]] = []

    def tell(self, cap_w: float, time_s: float, energy_j: float) -> None:
        self.probes.append((cap_w, Point(time_s, energy_j)))

    def values(self) -> dict[float, float]:
        small = objective(self.metric, dict(self.probes)[self.caps_w[-1]], self.k)
        return {cap: small(point) for cap, point in self.probes}

    def best(self) -> Best:
        values = self.values()
        return Best(min(values, key=lambda cap: values[cap]))


class RandomCaps(Rival):
    """The reference, then random caps."""

    def __init__(
        self, caps_w: Sequence[float], metric: str, k: float, most_probes: int, seed: int
    ) -> None:
        super().__init__(caps_w, metric, k, most_probes)
        others = np.random.default_rng(seed).permutation(self.caps_w[:-1])
        self._order = [self.caps_w[-1], *map(float, others)][:most_probes]

    def ask(self) -> float | None:
        done = len(self.probes)
        return self._order[done] if done < len(self._order) else None


class GoldenSection(Rival):
    """A search that narrows an interval of caps by the golden ratio; the reference counts as a
    probe.
    """

    def ask(self) -> float | None:
        known = dict(self.probes)
        if self.caps_w[-1] not in known:
            return self.caps_w[-1]
        values = self.values()
        low, high = 0, len(self.caps_w) - 1
        while high - low > 1 and len(self.probes) < self.most_probes:
            left = high - max(1, round((high - low) * 0.618))
            right = low + max(1, round((high - low) * 0.618))
            left = max(low, min(left, right - 1))
            for index in (left, right):
                if self.caps_w[index] not in known:
                    return self.caps_w[index]
            if values[self.caps_w[left]] <= values[self.caps_w[right]]:
                high = right if right < high else high - 1
            else:
                low = left if left > low else low + 1
        return None


class GaussianProcess(Rival):
    """A Gaussian process over caps without physics: expected improvement, then smallest mean."""

    def __init__(
        self, caps_w: Sequence[float], metric: str, k: float, most_probes: int, noise: float
    ) -> None:
        super().__init__(caps_w, metric, k, most_probes)
        self._noise = noise

    def ask(self) -> float | None:
        if len(self.probes) >= self.most_probes:
            return None
        if not self.probes:
            return self.caps_w[-1]
        if len(self.probes) == 1:
            return self.caps_w[len(self.caps_w) // 3]
        mean, spread = self._posterior()
        tried = {self.caps_w.index(cap) for cap, _ in self.probes}
        gap = min(mean[i] for i in tried) - mean
        z = gap / np.maximum(spread, 1e-9)
        normal = np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in z])
        improvement = gap * normal + spread * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        improvement[list(tried)] = -1
        return self.caps_w[int(np.argmax(improvement))]

    def best(self) -> Best:
        return Best(self.caps_w[int(np.argmin(self._posterior()[0]))])

    def _posterior(self) -> tuple[np.ndarray, np.ndarray]:
        x = np.log(self.caps_w)
        values = self.values()
        at = [self.caps_w.index(cap) for cap in values]
        y = np.log(list(values.values())) if min(values.values()) > 0 else np.zeros(len(values))
        kernel = 0.3**2 * np.exp(-0.5 * ((x[:, None] - x[None, :]) / 0.35) ** 2)
        noise = (2 * self._noise**2 + 1e-6) * np.eye(len(at))
        inverse = np.linalg.inv(kernel[np.ix_(at, at)] + noise)
        mean = y.mean() + kernel[:, at] @ inverse @ (y - y.mean())
        spread = np.diag(kernel - kernel[:, at] @ inverse @ kernel[at, :])
        return mean, np.sqrt(np.maximum(spread, 0.0))


class LearnedElsewhere(CapFinder):
    """The finder with curves of another GPU and other workloads in place of physics."""

    def __init__(self, known: tuple[MeasuredCurve, ...], *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type] # the benchmark's own call
        self._known = known

    def family(self) -> CurveFamily:
        return _family(self._known)


@lru_cache(maxsize=64)
def _family(known: tuple[MeasuredCurve, ...], copies: int = 60) -> CurveFamily:
    """Return measured curves relative to their power at the highest cap, stretched a little."""
    draw = np.random.default_rng(0)
    times, powers = [], []
    for curve in known:
        for _ in range(copies):
            unit_w = curve.power_w[-1] * math.exp(0.1 * draw.standard_normal())
            caps = np.log(np.array(curve.caps_w) / unit_w)
            bend = 1 + 0.15 * draw.standard_normal()
            times.append(bend * np.interp(LOG_CAPS, caps, np.log(curve.time_s)))
            powers.append(np.interp(LOG_CAPS, caps, np.log(np.array(curve.power_w) / unit_w)))
    return CurveFamily(LOG_CAPS, np.array(times), np.array(powers), np.full(len(times), 0.2))
