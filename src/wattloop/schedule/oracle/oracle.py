"""What every oracle answers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.oracle.options import Options

__all__ = ["Factors", "Oracle"]


class Factors(NamedTuple):
    """What an oracle's answer for one job is off by, per option."""

    time: NDArray[np.float64]
    power: NDArray[np.float64]


class Oracle(ABC):
    """(kind of job, placement) -> time and power, for all placements of the kind at once."""

    name: str = ""

    @abstractmethod
    def options(self, kind: JobKind) -> Options:
        """Every placement of the kind on this oracle's cluster; the same object every time.

        An empty table when there is none: the kind fits no GPU of the cluster.

        Raises:
            ConfigError: the oracle knows nothing of this kind; the message says what it knows.
        """

    def factors(self, job: int, kind: JobKind) -> Factors | None:
        """By what estimates for this very job differ from `options`; None for not at all."""
        del job, kind
        return None

    def factors_of(self, jobs: Sequence[int], kind: JobKind) -> Factors | None:
        """The same for many jobs of one kind: arrays (jobs, options)."""
        found = [each for job in jobs if (each := self.factors(job, kind)) is not None]
        if not found:
            return None
        return Factors(np.stack([f.time for f in found]), np.stack([f.power for f in found]))

    def fingerprint(self, kind: JobKind) -> Sequence[str] | None:
        """All that determines `options`, for a cache on disk; None when it cannot be told."""
        del kind
        return None

    @property
    def power_error(self) -> float:
        """Most that true power may exceed the estimate, as a share of the estimate."""
        return 0.0

    @property
    def time_error(self) -> float:
        """Most that true time may exceed the estimate, as a share of the estimate."""
        return 0.0
