"""A virtual training job: phases on each card, and its scaling over cards.

t_compute(n) = gpu_s / n                data parallel: each card computes its part
t_comm(n)    = comm_s (n / 2)^growth    exchanging gradients, waiting for the slowest; n > 1
t_host       = host_s                   what no card speeds up
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.virtual.gpu import IDLE, Activity


class JobPhase(NamedTuple):
    """A part of a job on each card: what occupies it, and for how long at the highest clocks."""

    activity: Activity
    duration_s: float


COPYING = Activity(0.2, 1.0, 1.0)
"""Moving gradients: memory is busy, arithmetic hardly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A data-parallel training.

    Attributes:
        gpu_s: time of all computation on one card at its highest clocks.
        comm_s: time of all communication between two cards.
        comm_growth: exponent with which that grows with the number of cards.
        host_s: time in which cards wait for the host.
    """

    name: str
    gpu_s: float
    activity: Activity
    comm_s: float = 0.0
    comm_growth: float = 0.5
    comm_activity: Activity = COPYING
    host_s: float = 0.0
    source: str = ""

    def phases(self, gpus: int) -> list[JobPhase]:
        """What each of `gpus` cards does, once through."""
        phases = [JobPhase(self.activity, self.gpu_s / gpus)]
        if gpus > 1 and self.comm_s > 0:
            duration_s = self.comm_s * (gpus / 2) ** self.comm_growth
            phases.append(JobPhase(self.comm_activity, duration_s))
        if self.host_s > 0:
            phases.append(JobPhase(IDLE, self.host_s))
        return phases

    def shortened(self, factor: float) -> "TrainingJob":
        """The same job with `1 / factor` of its work."""
        return replace(
            self,
            gpu_s=self.gpu_s / factor,
            comm_s=self.comm_s / factor,
            host_s=self.host_s / factor,
        )


JOBS: dict[str, TrainingJob] = {
    "cnn": TrainingJob(
        name="cnn",
        gpu_s=120.0,
        activity=Activity(1.0, 0.5, 1.0, overlap=0.0),
        comm_s=5.0,
        source="assumed: layers bound by arithmetic and by memory take turns, two to one",
    ),
    "matmul": TrainingJob(
        name="matmul",
        gpu_s=120.0,
        activity=Activity(1.0, 0.3, 1.0),
        comm_s=5.0,
        source="assumed: large matrix products, bound by arithmetic; every cap costs time",
    ),
    "memory": TrainingJob(
        name="memory",
        gpu_s=120.0,
        activity=Activity(0.35, 1.0, 1.0),
        comm_s=5.0,
        source="assumed: bound by memory; moderate caps cost no time",
    ),
    "starved": TrainingJob(
        name="starved",
        gpu_s=40.0,
        activity=Activity(1.0, 0.5, 1.0, overlap=0.0),
        host_s=80.0,
        source="assumed: the cards wait for their data two thirds of the time",
    ),
}


def job_named(name: str) -> TrainingJob:
    """The job called `name`. Raises ConfigError: there is none."""
    job = JOBS.get(name)
    if job is None:
        raise ConfigError(f"no virtual job called '{name}'; known are {', '.join(JOBS)}")
    return job
