"""Noisy oracle: estimates with a bounded random error (thesis 5.3.2.3).

The exact oracle gives the true time and power of a job. A policy gets

    estimate = truth x (1 + u),    u uniform in [-share, share]

drawn separately for each job, placement, time and power. u is a hash of seed, job and placement, so
it does not depend on the order of queries or on the other placements of the kind.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.schedule.estimates.oracle import Factors, Oracle, PlacementOptions
from wattloop.schedule.jobs.kind import JobKind

Words = NDArray[np.uint64]
WEYL = np.uint64(0x9E3779B97F4A7C15)
FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
TO_53_BITS = np.uint64(11)


class NoisyOracle(Oracle):
    """Oracle with errors up to `share`; estimated power never exceeds the placement's limit.

    Args:
        share: largest error, as a share of the true value.
    """

    name = "noisy"

    def __init__(self, exact: Oracle, *, seed: int, share: float = 0.1) -> None:
        if not 0 <= share < 1:
            raise ConfigError(f"noise {share:g}: a share of the truth, from 0 to below 1")
        self.exact = exact
        self.share = share
        self._seed = _mixed(np.array([seed], dtype=np.int64).view(np.uint64))
        self._jobs: Words = np.empty(0, dtype=np.uint64)
        self._last: tuple[int, JobKind, Factors] | None = None
        self._kinds: dict[JobKind, tuple[Words, NDArray[np.float64]]] = {}

    def options(self, kind: JobKind) -> PlacementOptions:
        return self.exact.options(kind)

    def fingerprint(self, kind: JobKind) -> Sequence[str] | None:
        return self.exact.fingerprint(kind)

    def factors(self, job: int, kind: JobKind) -> Factors | None:
        if not self.share:
            return None
        # cached: policy and engine ask repeatedly for the same job
        if self._last is None or self._last[0] != job or self._last[1] is not kind:
            self._last = job, kind, self._factors(self._words(job + 1)[job], kind)
        return self._last[2]

    def factors_of(self, jobs: Sequence[int], kind: JobKind) -> Factors | None:
        if not self.share:
            return None
        numbers = np.array(jobs, dtype=np.int64)
        return self._factors(self._words(int(numbers.max()) + 1)[numbers, None], kind)

    @property
    def power_error(self) -> float:
        """With the lowest possible estimate."""
        return 1.0 / (1.0 - self.share) - 1.0

    @property
    def time_error(self) -> float:
        return 1.0 / (1.0 - self.share) - 1.0

    def _factors(self, jobs: Words, kind: JobKind) -> Factors:
        if kind not in self._kinds:
            self._kinds[kind] = self._prepared(kind)
        salts, room = self._kinds[kind]
        words = _mixed(jobs ^ salts)
        scale = 2.0 * self.share * 2.0**-53
        factors = (words >> TO_53_BITS).astype(np.float64) * scale + (1.0 - self.share)
        half = len(room)
        return Factors(factors[..., :half], np.minimum(factors[..., half:], room))

    def _words(self, count: int) -> Words:
        """Return a hash word for each job, for at least `count` jobs."""
        if count > len(self._jobs):
            numbers = np.arange(max(count, 2 * len(self._jobs), 1024), dtype=np.uint64)
            self._jobs = _mixed(numbers ^ self._seed)
        return self._jobs

    def _prepared(self, kind: JobKind) -> tuple[Words, NDArray[np.float64]]:
        """Return hash words of each placement's time and power, and the largest power factor."""
        options = self.exact.options(kind)
        columns = (options.type_index, options.gpus, options.spread, options.batch, options.cap_w)
        names = [
            f"{type_index}/{gpus}/{spread}/{batch}/{cap_w:.3f}"
            for type_index, gpus, spread, batch, cap_w in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]
        salts = [_word(f"{what}:{name}") for what in ("time", "power") for name in names]
        # a GPU may exceed a low limit at its lowest clock; then the limit does not bound the
        # estimate
        room = np.maximum(options.cap_w * options.gpus / options.power_w, 1.0)
        return np.array(salts, dtype=np.uint64), room


def _word(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _mixed(words: Words) -> Words:
    """Apply SplitMix64's output function (Steele, Lea, Flood 2014)."""
    words = words + WEYL
    words = (words ^ (words >> SHIFTS[0])) * FACTORS[0]
    words = (words ^ (words >> SHIFTS[1])) * FACTORS[1]
    return words ^ (words >> SHIFTS[2])
