"""What no machine can have used.

Negative or endless energy, more than its devices can draw, a time that has not come yet.
"""

import math
from collections.abc import Iterator

from wattloop.core.plausible import highest_power_w
from wattloop.core.results import DomainEnergy
from wattloop.store.run_record import RunRecord

__all__ = ["reasons_to_doubt"]

MARGIN = 1.25
"""Over the limit x time: GPUs exceed theirs for moments, sensors are off by some percent."""
SLACK_S = 2.0
FUTURE_S = 120.0
EARLIEST_WALL_S = 946_684_800.0  # the year 2000: no GPU that anybody measures is older


def reasons_to_doubt(record: RunRecord, now_wall_s: float) -> list[str]:
    """Why the figures of a run cannot be; empty when they can."""
    return [*_times(record, now_wall_s), *_energies(record)]


def _times(record: RunRecord, now_wall_s: float) -> Iterator[str]:
    begin_s = record.started_wall_s
    if begin_s > now_wall_s + FUTURE_S:
        yield f"begins {begin_s - now_wall_s:.0f} s in the future"
    if begin_s < EARLIEST_WALL_S:
        yield "begins before the year 2000"
    duration_s = record.duration_s
    if duration_s is None:
        return
    if not math.isfinite(duration_s) or duration_s < 0:
        yield f"lasts {duration_s:g} s"
    elif begin_s + duration_s > now_wall_s + FUTURE_S >= begin_s:
        yield f"ends {begin_s + duration_s - now_wall_s:.0f} s in the future"


def _energies(record: RunRecord) -> Iterator[str]:
    if record.result is None:
        return
    for domain in record.result.domains:
        energy_j = domain.energy_j
        if energy_j is None:
            continue
        if not math.isfinite(energy_j) or not math.isfinite(domain.uncertainty_j):
            yield f"{domain.name}: {energy_j:g} J"
        elif energy_j < 0:
            yield f"{domain.name}: negative energy, {energy_j:.4g} J"
        else:
            limit_w = _limit_w(domain)
            most_j = limit_w * MARGIN * (max(0.0, record.result.duration_s) + SLACK_S)
            if energy_j > most_j:
                yield (
                    f"{domain.name}: {energy_j:.4g} J in {record.result.duration_s:.4g} s is more "
                    f"than {limit_w:.0f} W x time allow ({most_j:.4g} J)"
                )


def _limit_w(domain: DomainEnergy) -> float:
    """What the device may draw: its TDP where that is stated, below what any such device draws.

    A limit that is enforced may have been another before: the ceiling is taken then.
    """
    ceiling_w = highest_power_w(domain.scope)
    stated_w = domain.tdp_w
    if stated_w is None or not 0 < stated_w < ceiling_w or "enforced" in domain.tdp_note:
        return ceiling_w
    return stated_w
