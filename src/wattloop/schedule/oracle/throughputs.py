"""Measured throughput: samples per second of a model on so many GPUs of a type.

Between and beyond the counts that were measured, throughput follows a straight line in log2 of
both, beyond at most as steeply as perfect scaling and never falling. One count alone says nothing
of others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError

__all__ = ["Measured", "Series", "Throughputs"]

Floats = NDArray[np.float64]


class Measured(NamedTuple):
    """One row of a table.

    Attributes:
        model, precision: as the table names them; precision is empty where it has one only.
        gpu: type, in lower case.
        gpus: that worked together.
        batch: samples per GPU and step; fractions of one happen where a fixed batch is divided.
        spread: over more nodes than needed.
        samples_s: of all GPUs together.
        power_w: mean of one GPU at its factory limit; None where nobody measured it.
    """

    model: str
    precision: str
    gpu: str
    gpus: int
    batch: float
    spread: bool
    samples_s: float
    power_w: float | None = None


@dataclass(frozen=True, eq=False)
class Series:
    """One model, batch and GPU type over GPU counts, ascending."""

    gpus: Floats
    samples_s: Floats
    power_w: Floats

    def at(self, counts: Floats) -> Floats:
        """Throughput of other counts; not a number where it cannot be known."""
        return _in_log2(self.gpus, self.samples_s, counts, steepest=1.0)

    def power_at(self, counts: Floats) -> Floats:
        """Mean power of one GPU; beyond the ends, that of the end; not a number where unknown."""
        known = np.isfinite(self.power_w)
        if not known.any():
            return np.full(len(counts), np.nan)
        return np.interp(np.log2(counts), np.log2(self.gpus[known]), self.power_w[known])


class Throughputs:
    """A table of measurements.

    Args:
        rows: in any order. Of several for the same placement the last one counts.
        source: where they come from, for people.
    """

    def __init__(self, rows: Iterable[Measured], source: str) -> None:
        self.source = source
        points: dict[_Place, dict[str, dict[int, Measured]]] = {}
        for row in rows:
            at = points.setdefault(_Place(row.model, row.gpu, row.batch, row.spread), {})
            at.setdefault(row.precision, {})[row.gpus] = row
        self._series = {
            place: {precision: _series(list(found.values())) for precision, found in at.items()}
            for place, at in points.items()
        }
        if not self._series:
            raise ConfigError(f"{source}: no throughput above 0 in it")

    def series(
        self, model: str, precision: str, gpu: str, batch: float, *, spread: bool
    ) -> Series | None:
        """The measurements of one placement over GPU counts; None when there are none.

        Rows that tell no precision serve any; who asks for none has the only one there is.

        Raises:
            ConfigError: none is asked for, and there are several.
        """
        at = self._series.get(_Place(model, gpu, float(batch), spread), {})
        if precision in at or "" in at:
            return at.get(precision) or at[""]
        if precision or not at:
            return None
        if len(at) > 1:
            raise ConfigError(
                f"model {model}: {self.source} has it in {', '.join(sorted(at))}; say which "
                "precision the jobs have"
            )
        return next(iter(at.values()))

    @property
    def models(self) -> Mapping[str, tuple[float, ...]]:
        """Every model with the batches it was measured with."""
        found: dict[str, set[float]] = {}
        for place in self._series:
            found.setdefault(place.model, set()).add(place.batch)
        return {model: tuple(sorted(found[model])) for model in sorted(found)}

    def gpus(self, model: str) -> tuple[str, ...]:
        """Every GPU type that a model was measured on."""
        return tuple(sorted({place.gpu for place in self._series if place.model == model}))

    def precisions(self, model: str) -> tuple[str, ...]:
        """Every precision that it was measured in; an empty one serves any."""
        found = {each for place, at in self._series.items() if place.model == model for each in at}
        return tuple(sorted(found))


class _Place(NamedTuple):
    model: str
    gpu: str
    batch: float
    spread: bool


def _series(rows: list[Measured]) -> Series:
    rows.sort(key=lambda row: row.gpus)
    return Series(
        np.array([row.gpus for row in rows], dtype=float),
        np.array([row.samples_s for row in rows], dtype=float),
        np.array([np.nan if row.power_w is None else row.power_w for row in rows], dtype=float),
    )


def _in_log2(known: Floats, values: Floats, asked: Floats, *, steepest: float) -> Floats:
    x, y, at = np.log2(known), np.log2(values), np.log2(asked)
    found = np.interp(at, x, y)
    if len(known) == 1:
        found = np.where(asked == known[0], found, np.nan)
    else:
        slopes = np.clip(np.diff(y) / np.diff(x), 0.0, steepest)
        found = np.where(at > x[-1], y[-1] + slopes[-1] * (at - x[-1]), found)
        found = np.where(at < x[0], y[0] + slopes[0] * (at - x[0]), found)
    return np.asarray(np.exp2(found), dtype=np.float64)
