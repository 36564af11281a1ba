"""Power over time in equal bins, and the allocation of each GPU over time."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.engine.event_log import EventKind
from wattloop.schedule.engine.machines import Machines
from wattloop.schedule.engine.power_ledger import PowerLedger
from wattloop.schedule.engine.result import SimulationResult
from wattloop.schedule.engine.settings import EngineSettings
from wattloop.schedule.engine.sleep import Sleepers
from wattloop.schedule.estimates.oracle import Oracle

Floats = NDArray[np.float64]


class PowerCurve(NamedTuple):
    """Power of the whole cluster in bins of equal length.

    Attributes:
        mean_w: energy of the bin divided by its length.
        max_w: highest power in the bin, so that short violations of a budget are visible.
        budget_w: lowest budget at its edges.
    """

    times_s: Floats
    mean_w: Floats
    max_w: Floats
    budget_w: Floats


def power_curve(result: SimulationResult, bins: int = 500) -> PowerCurve:
    """Compute power over a simulation; empty when no time passed."""
    none = np.empty(0)
    if result.end_s <= 0 or not len(result.power_times_s):
        return PowerCurve(none, none, none, none)
    edges_s = np.linspace(0.0, result.end_s, bins + 1)
    changes_s, power_w = result.power_times_s, result.power_w
    lengths_s = np.diff(np.append(changes_s, result.end_s))
    sums_j = np.concatenate(([0.0], np.cumsum(power_w * lengths_s)))
    # Energy up to a time is linear between changes of power, so interpolation is exact.
    at_edges_j = np.interp(edges_s, np.append(changes_s, result.end_s), sums_j)
    inside = np.clip(np.searchsorted(changes_s, edges_s, side="right") - 1, 0, None)
    max_w = np.array(
        [power_w[first : last + 1].max() for first, last in _within(inside, edges_s, changes_s)]
    )
    budget_w = [result.budget_w.least(a, b) for a, b in pairwise(edges_s)]
    mean_w = np.diff(at_edges_j) / np.diff(edges_s)
    return PowerCurve(edges_s[:-1], mean_w, max_w, np.array(budget_w))


def _within(inside: NDArray[np.int64], edges_s: Floats, changes_s: Floats) -> list[tuple[int, int]]:
    """Return the first and last interval of constant power in each bin, excluding its end."""
    found = []
    for number in range(len(edges_s) - 1):
        last = int(inside[number + 1])
        if changes_s[last] >= edges_s[number + 1]:
            last -= 1
        found.append((int(inside[number]), max(last, int(inside[number]))))
    return found


ENDS = {
    EventKind.FINISH: "finished",
    EventKind.PREEMPT: "preempted",
    EventKind.INTERRUPT: "node died",
    EventKind.RESIZE: "resized",
}


class GpuAllocation(NamedTuple):
    """Allocation of one GPU to one job.

    Attributes:
        node, gpu: number of the node, and of the GPU within it.
        end: `finished`, `preempted`, `node died`, `resized` or `still running`.
    """

    job: int
    node: int
    gpu: int
    begin_s: float
    end_s: float
    end: str


def gpu_allocations(result: SimulationResult, truth: Oracle) -> list[GpuAllocation]:
    """Reconstruct allocations by replaying a simulation's events on the same machines.

    `truth` is the simulation's oracle, for the shape of each option.
    """
    machines, sleepers = Machines(result.cluster, emptiest=result.isolates), None
    if result.asleep_gpu_s:  # GPUs that sleep are allocated last
        ledger = PowerLedger(result.cluster, EngineSettings())
        sleepers = machines.order = Sleepers(result.cluster, machines, ledger, [])
    shapes = [truth.options(kind).shapes() for kind in result.jobs.kinds]
    kinds = result.jobs.kind.tolist()
    held: dict[int, tuple[float, tuple[tuple[int, int], ...]]] = {}
    found: list[GpuAllocation] = []
    for event in result.log:
        now_s = event.time_s
        if event.what in ENDS:
            begin_s, nodes = held.pop(event.job)
            machines.give(nodes)
            if sleepers is not None:
                sleepers.give(now_s, nodes)
            found += _of(event.job, nodes, begin_s, now_s, ENDS[event.what])
        if event.what in (EventKind.START, EventKind.RESIZE):
            nodes = machines.take(shapes[kinds[event.job]][event.detail])
            held[event.job] = (now_s, nodes)
            if sleepers is not None:
                sleepers.take(now_s, nodes)
        elif event.what in (EventKind.NODE_DOWN, EventKind.NODE_UP):
            is_up = event.what is EventKind.NODE_UP
            (machines.set_up if is_up else machines.set_down)(event.detail)
            if sleepers is not None:
                sleepers.move_node(now_s, event.detail, is_up=is_up)
    for job, (begin_s, nodes) in held.items():
        found += _of(job, nodes, begin_s, result.end_s, "still running")
    return found


def _of(
    job: int, nodes: tuple[tuple[int, int], ...], begin_s: float, end_s: float, end: str
) -> list[GpuAllocation]:
    return [
        GpuAllocation(job, node, gpu, begin_s, end_s, end)
        for node, mask in nodes
        for gpu in range(mask.bit_length())
        if mask >> gpu & 1
    ]
