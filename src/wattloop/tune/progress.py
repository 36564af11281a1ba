"""Progress of a segment: status, cost and quality. A failed training is a result, too."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from wattloop.tune.segment import known_fields


class Status(StrEnum):
    """Status of a segment that has ended."""

    PAUSED = "paused"
    """At one of its bounds; the training can resume."""
    REACHED = "reached"
    """At the target quality; the training can resume."""
    ENDED = "ended"
    """The training came to its own end."""
    DIVERGED = "diverged"
    """The metric or the loss is not finite."""
    OUT_OF_MEMORY = "out_of_memory"
    NO_METRIC = "no_metric"
    """It ended well but never reported the metric."""
    FAILED = "failed"
    TIMEOUT = "timeout"
    KILLED = "killed"
    NOT_SET = "not_set"
    """A lever refused its value; nothing was run."""
    NOT_SUPPORTED = "not_supported"
    """The training does not support the request (a sweep of rates); nothing was run."""

    @property
    def alive(self) -> bool:
        return self in (Status.PAUSED, Status.REACHED)

    @property
    def good(self) -> bool:
        """Return whether its numbers may be compared with those of others."""
        return self in (Status.PAUSED, Status.REACHED, Status.ENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPoint:
    """End of one epoch, counted over all kept segments of the candidate.

    Attributes:
        quality: the metric; None when this epoch did not report one.
        time_s, energy_j: of the candidate so far, in the scope of the search.
    """

    epoch: float
    quality: float | None
    time_s: float
    energy_j: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapFound:
    """Result of a search for a cap inside a segment.

    Attributes:
        cap_w: per device; None when none could be set, `reason` says why.
        energy_ratio, time_ratio: per unit of work, against the highest cap.
        probes: (cap_w, time_s, energy_j) of each, for one unit of work.
        uncertainty: relative, of the ratios.
        too_short: whether a longer segment may find one.
    """

    cap_w: float | None
    energy_ratio: float = 1.0
    time_ratio: float = 1.0
    probes: tuple[tuple[float, float, float], ...] = ()
    uncertainty: float = 0.0
    reason: str = ""
    too_short: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLoss:
    """Loss after the steps at one learning rate; may be infinite."""

    rate: float
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Cost and quality of one segment.

    Attributes:
        time_s, energy_j, uncertainty_j: of this segment alone, cap probes and sweeps included, in
            the scope of the search; energy None when nothing could be read.
        epochs: the candidate has been trained for so many in all.
        quality: the metric at the end; best: the best of the candidate so far.
        metrics: everything else that was reported, last values.
        error: components of the uncertainty, as in `EnergyError.to_dict`; None when unknown.
        repeated_s, repeated_j: additional cost of retraining what a killed search had trained; None
            when the energy could not be read.
        idle_s, idle_j: of reserved devices that were idle, charged with this segment but not part
            of its own cost; None when the energy could not be read.
    """

    status: Status
    time_s: float = 0.0
    energy_j: float | None = None
    uncertainty_j: float = 0.0
    epochs: float = 0.0
    quality: float | None = None
    best: float | None = None
    curve: tuple[EpochPoint, ...] = ()
    cap: CapFound | None = None
    rates: tuple[RateLoss, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    provenance: str = ""
    run_id: str | None = None
    message: str = ""
    repeated_s: float = 0.0
    repeated_j: float | None = 0.0
    idle_s: float = 0.0
    idle_j: float | None = 0.0
    error: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"status": self.status.value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Progress":
        """Inverse of `to_dict`; fields of later versions are ignored."""
        known = known_fields(cls, data)
        known["status"] = Status(known["status"])
        known["curve"] = tuple(
            EpochPoint(
                epoch=point["epoch"],
                quality=point["quality"],
                time_s=point["time_s"],
                energy_j=point["energy_j"],
            )
            for point in known.get("curve", ())
        )
        known["rates"] = tuple(
            RateLoss(**known_fields(RateLoss, rate)) for rate in known.get("rates", ())
        )
        if known.get("cap"):
            cap = known_fields(CapFound, known["cap"])
            known["cap"] = CapFound(**{**cap, "probes": tuple(map(tuple, cap["probes"]))})
        return cls(**known)
