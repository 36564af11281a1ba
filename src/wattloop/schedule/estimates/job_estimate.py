"""Submitted job of a batch system, and the estimate of its time and power."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.history import PastRuns
from wattloop.schedule.estimates.oracle import PlacementOptions, placements_of
from wattloop.schedule.jobs.kind import JobKind


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """Job as submitted. All texts come from the user and are not trusted.

    Attributes:
        job_id: identifier in the batch system, for messages.
        name, user, account, partition: as Slurm shows them.
        script: path of the batch script, or the command.
        comment: text of `--comment`.
        gpus: requested GPUs, all nodes together; 0 for none.
        gpu_type: requested GPU type; empty for any.
        time_limit_s: time limit of the batch system; None without a limit.
        deadline_s: the batch system's `--deadline`, in seconds after submission; None without one.
    """

    job_id: str = ""
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    script: str = ""
    comment: str = ""
    gpus: int = 0
    gpu_type: str = ""
    time_limit_s: float | None = None
    deadline_s: float | None = None


PREFIX = "timed:"
"""Prefix of timed models; comments cannot name them, because they may not contain a colon."""


def timed_model(gpu_w: float | None = None) -> str:
    """Return the model name of a kind whose work is in seconds, with `gpu_w` per GPU uncapped."""
    return PREFIX if gpu_w is None else f"{PREFIX}{gpu_w:.1f}W"


def is_timed(kind: JobKind) -> bool:
    """Return True if the work of the kind is in seconds."""
    return kind.model.startswith(PREFIX)


def timed_options(kind: JobKind, cluster: Cluster) -> PlacementOptions:
    """Return the placements of a timed kind.

    With a known power, a cap slows the job like a typical program of that power. Without one, the
    job is assumed to draw the power limit for its whole time limit, so that neither a budget nor a
    deadline depends on an estimate that is too low.
    """
    rows = placements_of(replace(kind, batches=(1,)), cluster)
    said = kind.model.removeprefix(PREFIX).removesuffix("W")
    stretch, power_w = np.ones(len(rows)), rows.cap_w.copy()
    if said:
        from wattloop.predict.cap_curve import cap_curve

        for number in np.unique(rows.type_index).tolist():
            mine = rows.type_index == number
            gpu_type = cluster.types[number]
            own_w = min(max(float(said), gpu_type.idle_w), gpu_type.cap_w(1.0))
            curve = cap_curve(1.0, own_w, rows.cap_w[mine], gpu_type.gpu)
            stretch[mine] = np.maximum(curve.step_s.ravel(), 1.0)
            power_w[mine] = curve.power_w.ravel()
    return PlacementOptions(
        type_index=rows.type_index,
        gpus=rows.gpus,
        batch=rows.batch,
        cap_w=rows.cap_w,
        spread=rows.spread,
        sample_s=stretch,
        power_w=power_w * rows.gpus,
        step_s=stretch,
        source=f"measured: {said} W per GPU" if said else "time limit at the GPUs' power limit",
    )


class EstimateSource(StrEnum):
    """Sources of a job's estimate, the best first."""

    STATED = "stated"
    """The caller named the model; an oracle predicts it."""
    COMMENT = "comment"
    """The user named the model; an oracle predicts it."""
    RULES = "rules"
    """The operator's file named the model; an oracle predicts it."""
    HISTORY = "history"
    """Measured: earlier runs of the same user and job name."""
    TIME_LIMIT = "time-limit"
    """Unknown job: its time limit at the GPUs' power limit."""
    NONE = "none"
    """The job asks for no GPU and has no estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEstimate:
    """Estimate of a job: `oracle.options(kind)`, each taking `work * sample_s` seconds.

    Attributes:
        kind: model and allowed placements; None when the job asks for no GPU.
        work: samples to train on, or seconds where only a time is known.
        deadline_s: seconds after submission; infinite without one.
        low_power: the user asks for a low cap.
        source: source of the estimate.
        provenance: source and assumptions, for people.
        refusals: rejected settings of the job, and why; for log and user.
        past: earlier runs behind an estimate from history.
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
