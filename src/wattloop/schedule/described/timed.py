"""Jobs of which a time is known, and perhaps a power: their work is in seconds."""

from dataclasses import replace

import numpy as np

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.oracle.options import Options
from wattloop.schedule.oracle.placements import placements_of

__all__ = ["is_timed", "timed_model", "timed_options"]

PREFIX = "timed:"
"""No comment can name such a model: it has no colon in its alphabet."""


def timed_model(gpu_w: float | None = None) -> str:
    """The model of a kind whose work is seconds; each of its GPUs draws `gpu_w` without a cap."""
    return PREFIX if gpu_w is None else f"{PREFIX}{gpu_w:.1f}W"


def is_timed(kind: JobKind) -> bool:
    """Whether the work of such jobs is seconds."""
    return kind.model.startswith(PREFIX)


def timed_options(kind: JobKind, cluster: Cluster) -> Options:
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
    return Options(
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
