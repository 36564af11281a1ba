"""How a driver goes about its work."""

from dataclasses import dataclass

from wattloop.core.errors import ConfigError

__all__ = ["DriverSettings"]


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """Times and bounds.

    Attributes:
        interval_s: between two rounds; they follow each other sooner while jobs come and go.
        lease_s: how long Slurm is kept from starting jobs by itself after the driver died.
        patience_s: how long a job that was let through may wait before it is taken back.
        prediction_s: how long a job waits for the first prediction of its model.
        most_faults: failures of the policy in a row after which the driver steps back.
        nodes_every_s: how often nodes are asked for.
        standby: let jobs through ahead of time, for GPUs that may become free between rounds.
        most_openings: jobs let through in one round; the rest follows in the next.
    """

    interval_s: float = 1.0
    lease_s: float = 20.0
    patience_s: float = 45.0
    prediction_s: float = 15.0
    most_faults: int = 5
    nodes_every_s: float = 10.0
    standby: bool = True
    most_openings: int = 100

    def __post_init__(self) -> None:
        if not 0.05 <= self.interval_s <= 3600:
            raise ConfigError(f"--interval {self.interval_s:g}: give 0.05 to 3600 seconds")
        if not max(5.0, 3 * self.interval_s) <= self.lease_s <= 3600:
            raise ConfigError(
                f"--lease {self.lease_s:g}: give at least 5 s and three intervals, and at most "
                "3600 s; that long Slurm waits if the driver dies"
            )
