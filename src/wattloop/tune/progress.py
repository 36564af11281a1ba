"""What came of a segment. A training that fails, diverges or runs out of memory is a result."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from wattloop.tune.segment import known_fields


class Status(StrEnum):
    """How a segment ended."""

    PAUSED = "paused"
    """At one of its bounds; the training can go on."""
    REACHED = "reached"
    """At the quality asked for; the training can go on."""
    ENDED = "ended"
    """The training came to its own end."""
    DIVERGED = "diverged"
    """The metric or the loss is no finite number."""
    OUT_OF_MEMORY = "out_of_memory"
    NO_METRIC = "no_metric"
    """It ended well but never said how good it is."""
    FAILED = "failed"
    TIMEOUT = "timeout"
    KILLED = "killed"
    NOT_SET = "not_set"
    """A lever refused its value; nothing was run."""
    NOT_SUPPORTED = "not_supported"
    """This training cannot do what was asked (a sweep of rates); nothing was run."""

    @property
    def alive(self) -> bool:
        """Whether the training can go on."""
        return self in (Status.PAUSED, Status.REACHED)

    @property
    def good(self) -> bool:
        """Whether its numbers may be compared with those of others."""
        return self in (Status.PAUSED, Status.REACHED, Status.ENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPoint:
    """The end of one epoch, counted over all segments of the candidate that were kept.

    Attributes:
        epoch: how many were trained.
        quality: the metric; None when this epoch did not report one.
        time_s, energy_j: of the candidate so far, in the scope of the search.
    """

    epoch: float
    quality: float | None
    time_s: float
    energy_j: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapFound:
    """The cap that was found inside a segment.

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
    """What one segment took and gave.

    Attributes:
        time_s, energy_j, uncertainty_j: of this segment alone, cap probes and sweeps included, in
            the scope of the search; energy None when nothing could be read.
        epochs: the candidate has been trained for so many in all.
        quality: the metric at the end; best: the best of the candidate so far.
        curve: the ends of epochs in this segment.
        cap: what a search for a cap found.
        rates: what a sweep of rates found.
        metrics: everything else that was reported, last values.
        provenance: of the energy.
        run_id: the measured run.
        message: what went wrong, for people.
        error: the uncertainty taken apart, as `EnergyError.to_dict` has it; None when not known.
        repeated_s, repeated_j: what it took, beside this, to train again what a search that was
            killed had trained before; None when the energy could not be read.
        idle_s, idle_j: of devices that were held for the search and waited, charged with this
            segment and no part of its own cost; None when the energy could not be read.
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
        """Plain data for the store."""
        return asdict(self) | {"status": self.status.value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Progress":
        """Inverse of `to_dict`; fields of later versions are left out."""
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
