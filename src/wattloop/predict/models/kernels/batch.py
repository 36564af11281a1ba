"""Profiles and placements as arrays."""

from collections.abc import Sequence

import numpy as np

from wattloop.predict.communication import Ring, exchange, ring_of
from wattloop.predict.models.kernels.profile import StepProfile
from wattloop.predict.models.kernels.step import Steps
from wattloop.predict.models.kernels.table import Floats
from wattloop.predict.placement import Placement

__all__ = ["all_pairs"]


def all_pairs(profiles: Sequence[StepProfile], placements: Sequence[Placement]) -> Steps:
    """Every profile on every placement, placements running fastest."""

    def of_profile(values: list[float]) -> Floats:
        return np.repeat(np.array(values, dtype=np.float64), len(placements))

    def of_placement(values: list[float]) -> Floats:
        return np.tile(np.array(values, dtype=np.float64), len(profiles))

    sums = [_sums(profile) for profile in profiles]
    columns = [of_profile([row[i] for row in sums]) for i in range(5)]
    compute_s, memory_s, host_s, compute_j, memory_j = columns
    samples = of_profile([float(p.batch * p.accumulate) for p in profiles])
    host_speed = of_placement([p.host_speed for p in placements])
    loader = of_placement([p.samples_s if p.samples_s else np.inf for p in placements])
    return Steps(
        compute_s=compute_s,
        memory_s=memory_s,
        host_s=host_s / host_speed,
        compute_j=compute_j,
        memory_j=memory_j,
        communication_s=_exposed_s(profiles, placements),
        data_s=samples / loader,
        cap_w=of_placement([p.cap_w or p.gpu.tdp_w for p in placements]),
        clock_share=of_placement(
            [
                min(p.clock_mhz / p.gpu.boost_clock_mhz, 1.0) if p.clock_mhz else 1.0
                for p in placements
            ]
        ),
    )


def _sums(profile: StepProfile) -> tuple[float, ...]:
    """Passes and optimizer of a step together."""
    times, one, last = profile.accumulate, profile.passes, profile.optimizer
    return (
        times * one.compute_s + last.compute_s,
        times * one.memory_s + last.memory_s,
        times * one.host_s + last.host_s,
        times * one.compute_j + last.compute_j,
        times * one.memory_j + last.memory_j,
    )


def _exposed_s(profiles: Sequence[StepProfile], placements: Sequence[Placement]) -> Floats:
    """Exchange of gradients that backward does not hide, profiles by placements in a row."""
    backward_s = np.array([p.backward_s for p in profiles])
    gradient_bytes = np.array([p.gradient_bytes for p in profiles])
    exposed_s = np.zeros((len(profiles), len(placements)))
    rings: dict[Ring, list[int]] = {}
    for index, placement in enumerate(placements):
        if placement.gpus > 1:
            rings.setdefault(ring_of(placement), []).append(index)
    for ring, indices in rings.items():
        exposed_s[:, indices] = exchange(gradient_bytes, backward_s, ring).exposed_s[:, None]
    return exposed_s.ravel()
