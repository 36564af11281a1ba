"""The host's part of a fit: prices of calls, and how quick the host of each sitting was.

Prices are factors on what they were: some shared by a phase, then each its own. A step says only
how long all of them take together, and only where the GPU waits; where a phase's own dispatch time
was measured (`Point.host_s`), it says so for every step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattloop.predict.models.kernels.host import phase_of
from wattloop.predict.models.kernels.profile import Prepared
from wattloop.predict.models.kernels.table import Floats
from wattloop.predict.models.kernels.values import Values
from wattloop.predict.models.model import Point
from wattloop.predict.workload.operation import Phase
from wattloop.predict.workload.workload import Workload

__all__ = ["QUEUE", "HostFit"]

PRIOR_ONE = 0.5
"""Standard deviation, in logarithms, of a single price beside the others of its phase."""
PRIOR_SHARED = 0.6
"""How far all prices of a phase may be off together: hosts differ."""
PRIOR_SPEED = 0.3
"""Of another sitting's speed."""
PHASES = tuple(Phase)
QUEUE = 1000
"""Kernels that can wait on the GPU: for more of them, the host may have waited too."""


@dataclass(frozen=True, slots=True)
class HostFit:
    """What is known of the host before the fit, and how often each price is paid.

    Attributes:
        names, prices: of the costs.
        counts: how often each point pays each of them.
        phases: which costs are of which phase.
        hosts: sittings whose speed is looked for.
        sitting: which of them each point is of; -1 for none.
        speed: of each point's host, as far as it is known.
        asked: point and phase (numbers) of each dispatch time that was measured.
        asked_s: these times.
    """

    names: list[str]
    prices: Floats
    counts: Floats
    phases: Floats
    hosts: list[str]
    sitting: list[int]
    speed: Floats
    asked: list[tuple[int, int]]
    asked_s: Floats

    @classmethod
    def of(cls, points: Sequence[tuple[Point, Prepared]], values: Values) -> "HostFit":
        """For `points`, with the prices of `values`."""
        steps = [p.counts.of_step(p.workload.accumulate) for _, p in points]
        # Costs that no point has are of the same host: they move with their phase.
        known = {name for name in values.numbers if name.startswith("host.") and phase_of(name)}
        names = sorted(known | {name for step in steps for name in step})
        counts = np.array([[step.get(name, 0.0) for name in names] for step in steps])
        phases = np.array([[float(phase_of(name) is phase) for phase in PHASES] for name in names])
        # A phase without calls costs nothing, whatever was measured: no price can say it.
        has_phase = counts @ phases > 0
        hosts = sorted({point.host for point, _ in points} - {""})
        measured = [
            (row, column, point.host_s[phase])
            for row, (point, _) in enumerate(points)
            for column, phase in enumerate(PHASES)
            if phase in point.host_s
            and has_phase[row, column]
            and _kernels(point.workload, phase) <= QUEUE
        ]
        return cls(
            names,
            np.array([values.look(name) for name in names]),
            counts,
            phases,
            hosts,
            [hosts.index(point.host) if point.host else -1 for point, _ in points],
            np.array([point.placement.host_speed for point, _ in points]),
            [(row, column) for row, column, _ in measured],
            np.array([seconds for *_, seconds in measured]),
        )

    @property
    def prior(self) -> Floats:
        """Of the unknowns: logarithms of factors shared by phases, of each price, of speeds."""
        return np.concatenate(
            [
                np.full(len(PHASES), PRIOR_SHARED),
                np.full(len(self.names), PRIOR_ONE),
                np.full(len(self.hosts), PRIOR_SPEED),
            ]
        )

    def priced(self, x: Floats) -> Floats:
        """Seconds of each cost."""
        shared, own = x[: len(PHASES)], x[len(PHASES) : len(PHASES) + len(self.names)]
        return np.asarray(self.prices * np.exp(self.phases @ shared + own), dtype=np.float64)

    def speeds(self, x: Floats) -> Floats:
        """Speed of each point's host."""
        found = np.append(x[len(x) - len(self.hosts) :], 0.0)
        return np.asarray(self.speed * np.exp(found[self.sitting]), dtype=np.float64)

    def seconds(self, x: Floats) -> Floats:
        """Host time of each point, phase by phase."""
        each = (self.counts * self.priced(x)) @ self.phases
        return np.asarray(each / self.speeds(x)[:, None], dtype=np.float64)

    def asked_residuals(self, seconds: Floats) -> Floats:
        """Logarithms of what `seconds` says over dispatch times that were measured."""
        if not self.asked:
            return np.zeros(0)
        rows, columns = zip(*self.asked, strict=True)
        return np.asarray(np.log(seconds[rows, columns] / self.asked_s), dtype=np.float64)

    def changes(self, x: Floats) -> dict[str, float]:
        """The prices by name."""
        return dict(zip(self.names, self.priced(x).tolist(), strict=True))


def _kernels(workload: Workload, phase: Phase) -> int:
    """How many a phase launches; those of a pass as often as there are passes."""
    passes = 1 if phase is Phase.OPTIMIZER else workload.accumulate
    return passes * sum(op.kernels * op.count for op in workload.operations if op.phase is phase)
