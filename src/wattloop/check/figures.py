"""Figures of one execution that can be judged: energy, instructions, CPU time; and their limits."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, WindowResult
from wattloop.core.units import Dimension, format_duration, format_energy, quantity

# Joules count only where a sensor read them: an estimate is utilisation x TDP, which is CPU time
# with an error of 50%, so CPU time itself is the better figure.

SENSED = frozenset({Provenance.MEASURED, Provenance.REPLAYED, Provenance.SIMULATED})
"""Where a reading follows what the program did; a model or an estimate follows its assumptions."""


class FigureKind(StrEnum):
    """The kind of a figure."""

    ENERGY = "energy"
    INSTRUCTIONS = "instructions"
    CPU_TIME = "cpu_time"
    TIME = "time"

    @property
    def unit(self) -> str:
        return {"energy": "J", "instructions": "instructions"}.get(self.value, "s")

    @property
    def words(self) -> str:
        return {"cpu_time": "CPU time"}.get(self.value, self.value)


JUDGED_FIRST = (FigureKind.ENERGY, FigureKind.INSTRUCTIONS, FigureKind.CPU_TIME)
"""The first of these that can be had is what is judged; elapsed time only when asked for."""


class FigureReading(NamedTuple):
    """One figure of one execution.

    Attributes:
        uncertainty: half-width, from the sensors; 0 where the kernel counts exactly.
        provenance: of the weakest sensor; `counted` for what the kernel counts.
        parts: the domains that were added, GPUs with their names.
    """

    value: float
    uncertainty: float = 0.0
    provenance: str = "counted"
    parts: tuple[str, ...] = ()


Execution = Mapping[FigureKind, FigureReading]
"""Every figure that could be had of one execution."""


@dataclass(frozen=True, slots=True)
class FigureSeries:
    """One kind of figure over the repeats.

    `uncertainty` is that of a single reading.
    """

    kind: FigureKind
    values: tuple[float, ...]
    uncertainty: float = 0.0
    provenance: str = "counted"
    parts: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "unit": self.kind.unit,
            "values": list(self.values),
            "uncertainty": self.uncertainty,
            "provenance": self.provenance,
            "parts": list(self.parts),
        }


def energy_reading(result: WindowResult) -> FigureReading | None:
    """Return joules read by sensors, each device once; None without a sensor."""
    sensed = [domain for domain in result.counted if domain.provenance in SENSED]
    if not sensed:
        return None
    return FigureReading(
        value=sum(domain.energy_j or 0.0 for domain in sensed),
        uncertainty=sum(domain.uncertainty_j**2 for domain in sensed) ** 0.5,
        provenance=Provenance.weakest(domain.provenance for domain in sensed).value,
        parts=tuple(sorted(_part(domain) for domain in sensed)),
    )


def add_figures(parts: Sequence[Execution]) -> Execution:
    """Blocks of one execution together; only the kinds that each of them has."""
    kinds = [kind for kind in FigureKind if parts and all(kind in part for part in parts)]
    return {
        kind: FigureReading(
            value=sum(part[kind].value for part in parts),
            uncertainty=sum(part[kind].uncertainty ** 2 for part in parts) ** 0.5,
            provenance=parts[0][kind].provenance,
            parts=parts[0][kind].parts,
        )
        for kind in kinds
    }


def collect_series(executions: Sequence[Execution]) -> dict[FigureKind, FigureSeries]:
    """The kinds that every execution has, from the same parts."""
    found = {}
    for kind in FigureKind:
        readings = [one[kind] for one in executions if kind in one]
        same = len({(reading.parts, reading.provenance) for reading in readings}) == 1
        if readings and len(readings) == len(executions) and same:
            found[kind] = FigureSeries(
                kind=kind,
                values=tuple(reading.value for reading in readings),
                uncertainty=max(reading.uncertainty for reading in readings),
                provenance=readings[0].provenance,
                parts=readings[0].parts,
            )
    return found


def judged_kind(kinds: Iterable[FigureKind]) -> FigureKind | None:
    """The kind that says most of those there are."""
    there = set(kinds)
    return next((kind for kind in JUDGED_FIRST if kind in there), None)


def format_figure(kind: FigureKind, value: float) -> str:
    if kind is FigureKind.ENERGY:
        return format_energy(value)
    if kind is FigureKind.INSTRUCTIONS:
        for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= scale:
                return f"{value / scale:.4g} {letter}instr"
        return f"{value:.0f} instr"
    return format_duration(value) if value >= 0 else f"-{format_duration(-value)}"


def _part(domain: DomainEnergy) -> str:
    """Joules of one GPU are not those of another: its name belongs to the figure."""
    named = domain.scope is Scope.GPU and domain.device
    return f"{domain.name} ({domain.device})" if named else domain.name


KINDS = {
    Dimension.ENERGY: FigureKind.ENERGY,
    Dimension.TIME: FigureKind.CPU_TIME,
    Dimension.COUNT: FigureKind.INSTRUCTIONS,
}
"""Seconds are CPU seconds: the time on the clock depends on the machine's other work."""


class Limit(NamedTuple):
    """An upper limit, in SI units."""

    kind: FigureKind
    value: float

    def __str__(self) -> str:
        return format_figure(self.kind, self.value)


def parse_limit(text: str) -> Limit:
    """Parse `12 J`, `3 Wh`, `250 ms` (CPU time) or `2e9 instructions`. Raises ConfigError."""
    try:
        found = quantity(
            str(text), *KINDS, what="a limit; write a number and J, kJ, Wh, ms, s or instructions"
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not found.unit or found.value < 0:
        raise ConfigError(f"{text!r} is not a limit; write a number and a unit, such as '12 J'")
    return Limit(KINDS[found.dimension], found.value)


def parse_share(text: str | float, what: str) -> float:
    """`5%` or `0.05` as a fraction. Raises ConfigError: not a share between 0 and 1000%."""
    written = str(text).strip()
    try:
        value = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 10 or (value >= 1 and not written.endswith("%")):
        raise ConfigError(f"{what} {text}: write a share such as 5% or 0.05")
    return value
