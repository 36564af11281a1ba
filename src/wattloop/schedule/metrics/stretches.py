"""Who had which GPUs from when to when, worked out from the events alone."""

from typing import NamedTuple

from wattloop.schedule.engine.log import What
from wattloop.schedule.engine.machines import Machines
from wattloop.schedule.engine.result import Result
from wattloop.schedule.oracle.oracle import Oracle

__all__ = ["GpuStretch", "gpu_stretches"]

ENDS = {What.FINISH: "finished", What.PREEMPT: "preempted", What.INTERRUPT: "node died"}


class GpuStretch(NamedTuple):
    """One GPU with one job.

    Attributes:
        job: its number.
        node, gpu: number of the node, and of the GPU within it.
        begin_s, end_s: when the job had it.
        end: `finished`, `preempted`, `node died` or `still running`.
    """

    job: int
    node: int
    gpu: int
    begin_s: float
    end_s: float
    end: str


def gpu_stretches(result: Result, truth: Oracle) -> list[GpuStretch]:
    """Replay a simulation's events on the same machines, which choose GPUs by the same rule.

    Args:
        result: of the simulation.
        truth: the oracle it was run with, which says what each option needs.
    """
    machines = Machines(result.cluster)
    shapes = [truth.options(kind).shapes() for kind in result.jobs.kinds]
    kinds = result.jobs.kind.tolist()
    held: dict[int, tuple[float, tuple[tuple[int, int], ...]]] = {}
    found: list[GpuStretch] = []
    for event in result.log:
        if event.what is What.START:
            nodes = machines.take(shapes[kinds[event.job]][event.detail])
            held[event.job] = (event.time_s, nodes)
        elif event.what in ENDS:
            begin_s, nodes = held.pop(event.job)
            machines.give(nodes)
            found += _of(event.job, nodes, begin_s, event.time_s, ENDS[event.what])
        elif event.what is What.NODE_DOWN:
            machines.put_down(event.detail)
        elif event.what is What.NODE_UP:
            machines.put_up(event.detail)
    for job, (begin_s, nodes) in held.items():
        found += _of(job, nodes, begin_s, result.end_s, "still running")
    return found


def _of(
    job: int, nodes: tuple[tuple[int, int], ...], begin_s: float, end_s: float, end: str
) -> list[GpuStretch]:
    return [
        GpuStretch(job, node, gpu, begin_s, end_s, end)
        for node, mask in nodes
        for gpu in range(mask.bit_length())
        if mask >> gpu & 1
    ]
