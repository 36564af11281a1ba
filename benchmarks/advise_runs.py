"""Runs with known faults, and healthy ones that look suspicious, for judging advice.

Each is a script of virtual cards (`support.virtual_runs`). A power cap that is too high is not a
matter of opinion: the physical model of the card gives the saving of the best cap.
"""

import random
from dataclasses import dataclass, replace

from advise_faults import FAULTS
from advise_healthy import HEALTHY
from support.virtual_runs import RunScript

__all__ = ["Case", "cases"]


@dataclass(frozen=True)
class Case:
    """A run and its fault: the name of a rule, or empty."""

    kind: str
    fault: str
    script: RunScript


def cases(seed: int, faulty: int = 40, healthy: int = 40) -> list[Case]:
    """Return cases of every kind as evenly as possible; the same for the same seed."""
    draw = random.Random(seed)
    found = []
    for makers, count in ((FAULTS, faulty), (HEALTHY, healthy)):
        names = list(makers)
        for number in range(count):
            kind = names[number % len(names)]
            script = makers[kind](draw)
            run_id = f"{kind}-{seed}-{number}"
            fault = kind if makers is FAULTS else ""
            found.append(Case(kind, fault, replace(script, run_id=run_id)))
    return found
