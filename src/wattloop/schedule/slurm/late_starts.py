"""Jobs that were let through and have not begun: whether their GPUs are still there for them."""

from collections.abc import Mapping, Sequence

from wattloop.schedule.engine.machines import Nodes
from wattloop.schedule.slurm.job_record import SlurmJob
from wattloop.schedule.slurm.opened import Opened
from wattloop.schedule.slurm.seats import Seats

__all__ = ["seat_coming"]


def seat_coming(
    jobs: Sequence[SlurmJob],
    opened: Mapping[str, Opened],
    seats: Seats,
    seated: dict[str, Nodes],
) -> tuple[list[SlurmJob], list[SlurmJob]]:
    """Jobs about to start that have their GPUs, and those whose GPUs another got before them.

    The latter wait again: Slurm would start older jobs on those GPUs for ever.

    Args:
        jobs: about to start.
        opened: where each of them was let through to.
        seats: what is free; changed.
        seated: gets the nodes of those that have their GPUs.
    """
    coming: list[SlurmJob] = []
    late: list[SlurmJob] = []
    for job in jobs:
        wanted = opened.get(job.key)
        nodes = seats.reserve(wanted.nodes, wanted.gpus) if wanted is not None else ()
        if wanted is not None and sum(mask.bit_count() for _, mask in nodes) == wanted.gpus:
            seated[job.key] = nodes
            coming.append(job)
        else:
            seats.give(nodes)
            late.append(job)
    return coming, late
