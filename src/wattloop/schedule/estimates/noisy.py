"""An oracle that is wrong by a known measure, as any is in practice (thesis 5.3.2.3).

What a job really takes and draws is the exact oracle's figure; what a policy is told is

    estimate = truth x (1 + u),    u uniform in [-share, share]

drawn anew for each job, placement, time and power. Draws are counted, not dealt: u is a hash of
seed, job and placement, so that it is the same whoever asks, in whatever order, and for
whichever
other placements the kind may have.
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
    """Estimates off by up to `share`; power never believed above the placement's limit.

    Args:
        exact: knows the truth.
        seed: of the draws.
        share: most that an estimate is off, as a share of the truth.
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
        """The exact oracle's, whose options these are."""
        return self.exact.fingerprint(kind)

    def factors(self, job: int, kind: JobKind) -> Factors | None:
        """What the estimates for this job are, relative to the truth."""
        if not self.share:
            return None
        # who places a job asks more than once, and then the engine does
        if self._last is None or self._last[0] != job or self._last[1] is not kind:
            self._last = job, kind, self._factors(self._words(job + 1)[job], kind)
        return self._last[2]

    def factors_of(self, jobs: Sequence[int], kind: JobKind) -> Factors | None:
        """The same for many jobs of the kind, a row each."""
        if not self.share:
            return None
        numbers = np.array(jobs, dtype=np.int64)
        return self._factors(self._words(int(numbers.max()) + 1)[numbers, None], kind)

    @property
    def power_error(self) -> float:
        """When the estimate was as low as it may be."""
        return 1.0 / (1.0 - self.share) - 1.0

    @property
    def time_error(self) -> float:
        """When the estimate was as low as it may be."""
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
        """A word for each job, for at least so many of them."""
        if count > len(self._jobs):
            numbers = np.arange(max(count, 2 * len(self._jobs), 1024), dtype=np.uint64)
            self._jobs = _mixed(numbers ^ self._seed)
        return self._jobs

    def _prepared(self, kind: JobKind) -> tuple[Words, NDArray[np.float64]]:
        """A word for time and for power of each placement, and how far power may be overrated."""
        options = self.exact.options(kind)
        columns = (options.type_index, options.gpus, options.spread, options.batch, options.cap_w)
        names = [
            f"{type_index}/{gpus}/{spread}/{batch}/{cap_w:.3f}"
            for type_index, gpus, spread, batch, cap_w in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]
        salts = [_word(f"{what}:{name}") for what in ("time", "power") for name in names]
        # a limit that the card itself exceeds, at its lowest clock, is no bound on what is believed
        room = np.maximum(options.cap_w * options.gpus / options.power_w, 1.0)
        return np.array(salts, dtype=np.uint64), room


def _word(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _mixed(words: Words) -> Words:
    """SplitMix64's output function (Steele, Lea, Flood 2014): a bit in flips half the bits out."""
    words = words + WEYL
    words = (words ^ (words >> SHIFTS[0])) * FACTORS[0]
    words = (words ^ (words >> SHIFTS[1])) * FACTORS[1]
    return words ^ (words >> SHIFTS[2])
