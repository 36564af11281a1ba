"""What is believed of a job, and why."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from wattloop.schedule.estimates.history import PastRuns
from wattloop.schedule.jobs.kind import JobKind


class EstimateSource(StrEnum):
    """Where time and power of a job come from, the best first."""

    STATED = "stated"
    """Whoever asks named the model; an oracle predicts it."""
    COMMENT = "comment"
    """The user named the model; an oracle predicts it."""
    RULES = "rules"
    """The operator's file named the model; an oracle predicts it."""
    HISTORY = "history"
    """Measured: earlier runs of the same user and job name."""
    TIME_LIMIT = "time-limit"
    """Nothing is known: it takes as long as it may, at the GPUs' power limit."""
    NONE = "none"
    """It asks for no GPU: not ours to judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEstimate:
    """Ready for an oracle: `oracle.options(kind)`, each taking `work * sample_s` seconds.

    Attributes:
        kind: what it trains and how it may run; None when it asks for no GPU.
        work: samples to train on, or seconds where only a time is known.
        deadline_s: seconds after submission; infinite without one.
        low_power: the user asks for it to run under a low cap.
        source: where the estimate comes from.
        provenance: the same in words, with what was assumed.
        refusals: what was not understood or not believed, and why; for log and user.
        past: the runs an estimate from history rests on.
    """

    kind: JobKind | None
    work: float = 0.0
    deadline_s: float = math.inf
    low_power: bool = False
    source: EstimateSource = EstimateSource.NONE
    provenance: str = ""
    refusals: tuple[str, ...] = ()
    past: PastRuns | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        kind = self.kind
        return {
            "model": None if kind is None else kind.model,
            "label": None if kind is None else kind.label,
            "precision": None if kind is None else kind.precision or None,
            "gpus": None if kind is None else list(kind.gpus),
            "batches": None if kind is None else list(kind.batches),
            "caps": None if kind is None else list(kind.caps),
            "types": None if kind is None else list(kind.types),
            "sequence": None if kind is None else kind.sequence,
            "work": self.work,
            "deadline_s": self.deadline_s if math.isfinite(self.deadline_s) else None,
            "low_power": self.low_power,
            "source": self.source.value,
            "provenance": self.provenance,
            "refusals": list(self.refusals),
            "past": None if self.past is None else self.past.to_dict(),
        }
