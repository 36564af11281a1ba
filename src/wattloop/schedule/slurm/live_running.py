"""Jobs on their machines, as far as Slurm and our own notes tell."""

import math
from collections.abc import Callable

import numpy as np

from wattloop.schedule.engine.machines import Nodes
from wattloop.schedule.oracle.options import Options
from wattloop.schedule.running import Running
from wattloop.schedule.slurm.admin_comment import notes_in
from wattloop.schedule.slurm.job_record import SlurmJob
from wattloop.schedule.slurm.known_nodes import KnownNodes
from wattloop.schedule.view import Loss

__all__ = ["loss_of", "noted_cap_w", "running_of"]


def running_of(
    options: Options,
    number: int,
    job: SlurmJob,
    nodes: Nodes,
    cap_w: float | None,
    work: float,
    known: KnownNodes,
    now_s: float,
) -> Running:
    """A job on its machines, by the option that is most like what it has."""
    type_index = known.cluster.node_types[nodes[0][0]] if nodes else int(options.type_index[0])
    gpus = sum(mask.bit_count() for _, mask in nodes) or int(options.gpus[0])
    mine = np.flatnonzero((options.type_index == type_index) & (options.gpus == gpus))
    if not len(mine):
        mine = np.arange(len(options))
    option = int(mine[np.argmax(options.cap_w[mine])])
    if cap_w is not None:
        option = int(mine[np.argmin(np.abs(options.cap_w[mine] - cap_w))])
    started_s = job.start_s or now_s
    power_w = float(options.power_w[option])
    believed_s = work * float(options.sample_s[option])
    if job.time_limit_s is not None:
        believed_s = min(believed_s, job.time_limit_s)
    return Running(
        number, option, type_index, gpus, nodes, started_s, power_w, started_s + believed_s, work
    )


def noted_cap_w(job: SlurmJob) -> float | None:
    """The power limit that a driver wrote for the job; None for none."""
    found = notes_in(job.admin_comment).get("cap_w")
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < 1e5:
        return None
    return float(found)


def loss_of(untouchable: frozenset[int], now_s: float) -> Callable[[Running], Loss]:
    """Slurm's requeue begins a job anew: all that it has done is lost."""

    def loss(running: Running) -> Loss:
        if running.job in untouchable:
            return Loss(math.inf, math.inf)
        passed_s = max(now_s - running.started_s, 0.0)
        whole_s = max(running.expected_end_s - running.started_s, 1e-9)
        share = min(passed_s / whole_s, 1.0)
        return Loss(running.work_at_start * share, running.power_w * passed_s)

    return loss
