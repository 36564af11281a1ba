"""Segment of training that a strategy asks for, its progress, and decoding of stored ones."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from wattloop.control.lever import Setting
from wattloop.core.errors import StoreError
from wattloop.core.records import from_plain, to_plain


def unreadable_trial(key: str, error: Exception) -> StoreError:
    return StoreError(
        f"trial {key!r} cannot be understood ({type(error).__name__}: {error}); a newer Wattloop "
        "wrote it, or something else changed it: upgrade with 'pip install -U wattloop', or "
        "restore the store from a copy"
    )


@contextmanager
def without_gc() -> Iterator[None]:
    """Disable the garbage collector: it would take a third of the time of reading."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# A *candidate* is one configuration being trained. Its training is a chain of segments: it may be
# paused after each of them and resumed later, under another power cap.

Value = float | int | str | bool | None
"""Value of a parameter."""
CAP_LEVER = "power_limit"
"""Name of the power cap among `Segment.levers`, also where caps are searched inside segments and
the space has no such parameter.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """End of a segment: the first end of an epoch at which one of these holds.

    Attributes:
        epochs: the candidate has been trained for so many epochs in all.
        anywhere: stop for energy, time or a fraction of an epoch also between two steps, where the
            executor can; `Progress.epochs` then has a fraction. Elsewhere it is the end of the
            epoch.
        most_j, most_s: remaining budget of the search, repetitions included: the segment ends
            there, also within an epoch, as soon as the executor can.
    """

    epochs: float | None = None
    energy_j: float | None = None
    time_s: float | None = None
    at_target: bool = True
    anywhere: bool = False
    most_j: float | None = None
    most_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapRequest:
    """Search for the best power cap inside the segment, in ordinary steps of the training.

    Attributes:
        metric, k: those of the cap finder.
        caps_w: those that may be set; empty for what the device offers.
    """

    metric: str = "energy"
    k: float = 2.0
    caps_w: tuple[float, ...] = ()
    longest_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSweep:
    """Sweep of learning rates, from low to high on a logarithmic scale.

    Attributes:
        steps_each: optimizer steps at each rate before its loss counts.
        data_share: part of an epoch's data that is used at most; None for as much as is needed.
        cyclic: one batch per rate, round and round until the data ends (Geißler et al.), in place
            of `steps_each` steps at one rate after the other.
    """

    low: float
    high: float
    count: int
    steps_each: int = 1
    data_share: float | None = None
    cyclic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Unit of training that a strategy asks for.

    Attributes:
        key: unique within its search; the same segment planned again has the same key, by which a
            resumed search finds its finished segments.
        candidate: names the configuration. The first segment of a candidate begins a training.
        parameters: the configuration without its hardware parameters (`Space.split`), linked ones
            included.
        levers: value for each hardware parameter, by its name in the space: watts, MHz, a share
            such as `80%`, the name of a choice, or a number of GPUs.
        until: when to pause; everything None means until the training ends by itself.
        keep: whether the training continues from here; if not, model, optimizer and data order are
            restored (an exploration leaves no trace).
        rates: sweep learning rates in place of ordinary training.
        learning_rate: the rate from here on, where a sweep has found a better one.
    """

    key: str
    candidate: str
    parameters: Mapping[str, Value]
    levers: Mapping[str, Setting] = field(default_factory=dict)
    until: Until = Until()
    seed: int = 0
    keep: bool = True
    cap: CapRequest | None = None
    rates: RateSweep | None = None
    learning_rate: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return to_plain(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Segment":
        return from_plain(cls, data)


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
        metrics: everything else that was reported, as it was at the end of the epoch.
    """

    epoch: float
    quality: float | None
    time_s: float
    energy_j: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)


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
        return to_plain(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Progress":
        return from_plain(cls, data)
