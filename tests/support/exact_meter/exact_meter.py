"""A meter of one package whose counter is computed when it is read.

No thread has to write a file in time, so the energy between two moments of CLOCK_MONOTONIC is
exactly `energy_j(end_s) - energy_j(begin_s)` in every process, however busy the machine is. Put
this folder on the path of a program (`environment`), and its entry point is found.
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from wattloop.core.records import Domain, DomainKind, Scope
from wattloop.meters.base import Context, Meter, Reading

LOW_W, HIGH_W, PERIOD_S = 20.0, 60.0, 2.0
"""The package changes between these every second."""


def energy_j(time_s: float) -> float:
    """Return the joules from the start of the clock to `time_s`."""
    periods, rest_s = divmod(time_s, PERIOD_S)
    high_s = periods * PERIOD_S / 2 + min(rest_s, PERIOD_S / 2)
    return LOW_W * time_s + (HIGH_W - LOW_W) * high_s


def environment(sources: Path) -> Mapping[str, str]:
    """Return the variables of a program that this meter alone measures."""
    path = os.pathsep.join((str(sources), str(Path(__file__).parent)))
    return {"PYTHONPATH": path, "WATTLOOP_METERS": "exact"}


class ExactMeter(Meter):
    """The package's counter, computed at the moment of the reading."""

    name = "exact"
    shared = True

    @property
    def domains(self) -> tuple[Domain, ...]:
        return (
            Domain(
                name="cpu:0/package",
                kind=DomainKind.COUNTER,
                scope=Scope.CPU,
                source="computed",
                resolution=1e-6,
                update_period_s=0.001,
                read_cost_s=2e-6,
            ),
        )

    def read(self) -> Sequence[Reading]:
        return [energy_j(time.monotonic())]


def detect(context: Context) -> Sequence[Meter]:
    return [ExactMeter()]
