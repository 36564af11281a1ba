"""A job as the batch system describes it, and jobs of known duration."""

from dataclasses import dataclass, replace

import numpy as np

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.oracle import PlacementOptions, placements_of
from wattloop.schedule.jobs.kind import JobKind


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """A job as its user submitted it. Every text is the user's own and may be anything.

    Attributes:
        job_id: of the batch system, for messages.
        name, user, account, partition: as Slurm shows them.
        script: path of the batch script, or the command.
        comment: of `--comment`.
        gpus: GPUs it asked for, all nodes together; 0 for none.
        gpu_type: name of the GPU type it asked for; empty is any.
        time_limit_s: after which the batch system ends it; None without a limit.
        deadline_s: seconds after submission of the batch system's own `--deadline`; None without.
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


"""No comment can name such a model: it has no colon in its alphabet."""


def timed_model(gpu_w: float | None = None) -> str:
    """The model of a kind whose work is seconds; each of its GPUs draws `gpu_w` without a cap."""
    return PREFIX if gpu_w is None else f"{PREFIX}{gpu_w:.1f}W"


def is_timed(kind: JobKind) -> bool:
    """Whether the work of such jobs is seconds."""
    return kind.model.startswith(PREFIX)


def timed_options(kind: JobKind, cluster: Cluster) -> PlacementOptions:
    """Placements of a timed kind.

    With a known power, a cap slows the job as it slows a typical program of that power. Without
    one, it is taken to draw all that its GPUs may, and to take all the time it has: neither budget
    nor deadline then rests on a guess that was too low.
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
