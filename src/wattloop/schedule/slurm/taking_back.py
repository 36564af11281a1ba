"""What was let through and is no longer wanted; and what may be opened if that comes too late."""

import math
from collections.abc import Collection, Mapping, Sequence

from wattloop.schedule.slurm.job_record import SlurmJob
from wattloop.schedule.slurm.opened import Opened

__all__ = ["no_longer_wanted", "without_power_given_twice"]

Wanted = tuple[Opened, SlurmJob]


def no_longer_wanted(opened: Mapping[str, Opened], kept: Collection[str]) -> list[str]:
    """Keys of starts and standbys of earlier rounds that this round's plan does not have."""
    return [
        key for key, each in opened.items() if each.why in ("standby", "start") and key not in kept
    ]


def without_power_given_twice(
    wanted: Sequence[Wanted], stale: Collection[str], opened: Mapping[str, Opened], budget_w: float
) -> list[Wanted]:
    """What may be opened after an attempt to take `stale` back.

    One that is still in the notes began since we looked, with power that the plan gives to
    others: under a budget they wait for the next round.

    Args:
        wanted: of this round's plan.
        stale: what was to be taken back.
        opened: the notes after that.
        budget_w: now; infinite without one.
    """
    if math.isinf(budget_w) or not any(key in opened for key in stale):
        return list(wanted)
    return [each for each in wanted if each[0].why == "pass"]
