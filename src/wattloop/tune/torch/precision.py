"""Energy windows that go on until their error is small enough.

A sensor that changes ten times a second says little of half a second. The device then goes on with
the same steps, which count for nothing, until the sum is known to the error that is asked for.
"""

import functools
from collections.abc import Sequence

from wattloop.tune.metering import Joules
from wattloop.tune.torch.candidate import Candidate
from wattloop.tune.torch.energy import EnergySource, relative_error
from wattloop.tune.torch.epochs import Stretch, joined, trained_epoch
from wattloop.tune.torch.training import Training

__all__ = ["sharpened", "summed"]

LEAST_GAIN = 0.9
"""A window twice as long whose error fell by less has an error that time does not make smaller."""
FIRST_S = 0.25
FIRST_ORDER = 500_000_000
"""These steps take their data in orders that neither epochs nor explorations have."""


def sharpened(
    training: Training,
    candidate: Candidate,
    batch_size: int,
    energy: EnergySource,
    stretches: Sequence[Stretch],
    *,
    error: float,
    longest_s: float,
) -> list[Stretch]:
    """Stretches to add until the energy of all is sure; the candidate is changed by it.

    Args:
        training: what it is made of.
        candidate: what goes on.
        batch_size: samples in a batch.
        energy: who is asked.
        stretches: what there is already.
        error: relative half-width that is good enough.
        longest_s: give up after this long.
    """
    added: list[Stretch] = []
    begin_s = energy.now_s()
    last = _error(energy, stretches)
    while last is not None and last > error and energy.now_s() - begin_s < longest_s:
        known_s = sum(s.time_s for s in (*stretches, *added))
        left_s = longest_s - (energy.now_s() - begin_s)
        until_s = energy.now_s() + min(left_s, max(FIRST_S, known_s))
        parts: list[Stretch] = []
        while energy.now_s() < until_s and (not parts or parts[-1].finite):
            number = FIRST_ORDER + 1_000 * len(added) + len(parts)
            parts.append(
                trained_epoch(
                    training,
                    candidate,
                    batch_size,
                    energy,
                    number=number,
                    stop=functools.partial(_late, energy, until_s),
                )
            )
        # One window over all of them: each edge has an error of its own.
        added.append(joined(parts))
        if not parts[-1].finite:
            break
        now = _error(energy, (*stretches, *added))
        if now is None or now > LEAST_GAIN * last:
            break
        last = now
    return added


def summed(parts: Sequence[Joules]) -> Joules:
    """Of stretches that do not overlap; None when one of them was not read.

    Errors are added as they are: part of each is the sensor's own and the same in all.
    """
    if not parts or any(part.energy_j is None for part in parts):
        return Joules(None)
    return Joules(
        sum(part.energy_j or 0.0 for part in parts),
        sum(part.uncertainty_j for part in parts),
        parts[0].provenance,
    )


def _late(energy: EnergySource, until_s: float, steps: int) -> bool:
    """Whether the host is past this moment; it runs ahead of the device."""
    return energy.now_s() >= until_s


def _error(energy: EnergySource, stretches: Sequence[Stretch]) -> float | None:
    energy.settle(stretches[-1].end_s)
    return relative_error(summed([energy.between(s.begin_s, s.end_s) for s in stretches]))
