"""Measured throughputs: samples per second of models on numbers of GPUs, read from files."""

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path


@dataclass(frozen=True, slots=True)
class CsvRow:
    """Line of a CSV file."""

    path: str
    line: int
    values: dict[str, str]

    def text(self, column: str) -> str:
        return self.values.get(column, "").strip()

    def number(self, column: str, *, least: float = 0.0) -> float:
        """Parse a finite number of at least `least`."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value < math.inf:
            raise ConfigError(
                f"{self.path}:{self.line}: {column} is {text or 'empty'!r}; write a number of at "
                f"least {least:g}"
            )
        return value

    def whole(self, column: str) -> int:
        """Parse a whole number of at least 1."""
        value = self.number(column, least=1.0)
        if value != int(value):
            raise ConfigError(
                f"{self.path}:{self.line}: {column} is {self.text(column)!r}; write a whole number"
            )
        return int(value)

    def flag(self, column: str) -> bool:
        """Parse a flag: True for `1`, `true` or `yes`; an empty field is False."""
        text = self.text(column).lower()
        if text not in ("", "0", "1", "true", "false", "yes", "no"):
            raise ConfigError(f"{self.path}:{self.line}: {column} is {text!r}; write 0 or 1")
        return text in ("1", "true", "yes")


@dataclass(frozen=True, slots=True)
class CsvFile:
    """Columns and rows of a CSV file; lines that begin with # are comments."""

    path: str
    columns: tuple[str, ...]
    rows: tuple[CsvRow, ...]

    def __iter__(self) -> Iterator[CsvRow]:
        return iter(self.rows)

    def has(self, columns: Sequence[str]) -> bool:
        return set(columns) <= set(self.columns)


def read_rows(name: str | Path) -> CsvFile:
    """Read a comma-separated file whose first line names the columns."""
    path = user_path(str(name))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"{name}: cannot be read: {reason}") from None
    lines = [
        (number, line)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.startswith("#")
    ]
    fields = list(csv.reader(line for _, line in lines))
    if not fields:
        raise ConfigError(f"{name}: is empty; its first line names the columns")
    columns = tuple(each.strip() for each in fields[0])
    rows = []
    for (number, _), values in zip(lines[1:], fields[1:], strict=True):
        if len(values) != len(columns):
            raise ConfigError(
                f"{name}:{number}: {len(values)} fields, but the first line names {len(columns)}"
            )
        rows.append(CsvRow(str(name), number, dict(zip(columns, values, strict=True))))
    return CsvFile(str(name), columns, tuple(rows))


_FOLDER = Path(__file__).with_name("tables")
THROUGHPUTS = _FOLDER / "predicted_throughputs.csv"
"""Shipped table: ResNet-18 and -50, BERT, GPT-2 on K80, P100, V100, A100, H100 by `predict`."""
CAPS = _FOLDER / "predicted_caps.csv"
"""Shipped cap curves of the same models."""


# Interpolation: throughput is piecewise linear in log2(GPUs), log2(throughput). Extrapolation has a
# slope between 0 and perfect scaling. A single measured count gives no other counts.
Floats = NDArray[np.float64]


class ThroughputRow(NamedTuple):
    """Row of a throughput table.

    Attributes:
        model, precision: names in the table; precision is empty where it has only one.
        batch: samples per GPU and step; a fraction where a fixed batch is divided among GPUs.
        spread: on more nodes than necessary.
        samples_s: of all GPUs together.
        power_w: mean power of one GPU at its factory limit; None where it was not measured.
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
class ThroughputSeries:
    """Measurements of one model, batch and GPU type over ascending GPU counts."""

    gpus: Floats
    samples_s: Floats
    power_w: Floats

    def at(self, counts: Floats) -> Floats:
        """Return the throughput at GPU counts; NaN where it is unknown."""
        return _in_log2(self.gpus, self.samples_s, counts, steepest=1.0)

    def power_at(self, counts: Floats) -> Floats:
        """Return the mean power of one GPU, constant beyond the ends; NaN where it is unknown."""
        known = np.isfinite(self.power_w)
        if not known.any():
            return np.full(len(counts), np.nan)
        return np.interp(np.log2(counts), np.log2(self.gpus[known]), self.power_w[known])


class Throughputs:
    """Table of measured throughputs; of several rows for one placement, the last one counts."""

    def __init__(self, rows: Iterable[ThroughputRow], source: str) -> None:
        self.source = source
        points: dict[_Place, dict[str, dict[int, ThroughputRow]]] = {}
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
    ) -> ThroughputSeries | None:
        """Return the measurements of one placement over GPU counts; None when there are none.

        Rows without a precision match any. A query without a precision gets the only one.
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
        """Models with their measured batches."""
        found: dict[str, set[float]] = {}
        for place in self._series:
            found.setdefault(place.model, set()).add(place.batch)
        return {model: tuple(sorted(found[model])) for model in sorted(found)}

    def gpus(self, model: str) -> tuple[str, ...]:
        return tuple(sorted({place.gpu for place in self._series if place.model == model}))

    def precisions(self, model: str) -> tuple[str, ...]:
        """Return the measured precisions of a model; an empty one matches any."""
        found = {each for place, at in self._series.items() if place.model == model for each in at}
        return tuple(sorted(found))


class _Place(NamedTuple):
    model: str
    gpu: str
    batch: float
    spread: bool


def _series(rows: list[ThroughputRow]) -> ThroughputSeries:
    rows.sort(key=lambda row: row.gpus)
    return ThroughputSeries(
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


OURS = ("model", "gpu", "gpus", "batch", "samples_per_s")
"""Required columns of Wattloop's format; precision, spread and power_w are optional."""
SHIPPED = "the shipped table of throughput (predicted, not measured)"
GAVEL = ("source", "model", "batch", "gpu_type", "scale_factor", "steps_per_s")
ELASTICFLOW = ("gpu_type", "model", "global_batch", "gpus", "steps_per_s")
GAVEL_SOURCE = "physical_cluster"
"""Gavel's two similar tables: one measured for its cluster, one for its simulations."""
UNCONSOLIDATED = "_unconsolidated"


def load_throughputs(names: Sequence[str]) -> Throughputs:
    """Load a table from one or more files (docs/oracles.md); later files override earlier ones."""
    rows: list[ThroughputRow] = []
    for name in names:
        file = read_rows(name)
        read = _reader(file)
        found = (read(row) for row in file)
        rows += [row for row in found if row is not None and row.samples_s > 0]  # 0: does not run
    said = (SHIPPED if user_path(name) == THROUGHPUTS else name for name in names)
    return Throughputs(rows, ", ".join(said))


def _reader(file: CsvFile) -> Callable[[CsvRow], ThroughputRow | None]:
    for columns, reader in ((GAVEL, _gavel), (ELASTICFLOW, _elasticflow), (OURS, _ours)):
        if file.has(columns):
            return reader
    missing = [column for column in OURS if column not in file.columns]
    raise ConfigError(
        f"{file.path}:1: a table of throughput needs the columns {', '.join(OURS)}; "
        f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing (docs/oracles.md)"
    )


def _ours(row: CsvRow) -> ThroughputRow:
    return ThroughputRow(
        model=row.text("model"),
        precision=row.text("precision"),
        gpu=row.text("gpu").lower(),
        gpus=row.whole("gpus"),
        batch=row.number("batch"),
        spread=row.flag("spread"),
        samples_s=row.number("samples_per_s"),
        power_w=row.number("power_w") if row.text("power_w") else None,
    )


def _gavel(row: CsvRow) -> ThroughputRow | None:
    """Convert a row of Gavel: steps summed over workers, with the batch in the model's name.

    For a model without a batch (A3C, CycleGAN), a step counts as one sample.
    """
    gpu, gpus = row.text("gpu_type").lower(), row.whole("scale_factor")
    spread = gpu.endswith(UNCONSOLIDATED)
    if row.text("source") != GAVEL_SOURCE or (spread and gpus == 1):
        return None
    batch = row.number("batch") if row.text("batch") else 1.0
    samples_s = row.number("steps_per_s") * batch
    gpu = gpu.removesuffix(UNCONSOLIDATED)
    return ThroughputRow(row.text("model"), "", gpu, gpus, batch, spread, samples_s)


def _elasticflow(row: CsvRow) -> ThroughputRow:
    """Convert a row of ElasticFlow: steps of a fixed global batch, divided among the GPUs."""
    gpu, gpus = row.text("gpu_type").lower(), row.whole("gpus")
    batch = row.number("global_batch", least=1.0)
    samples_s = row.number("steps_per_s") * batch
    return ThroughputRow(row.text("model"), "", gpu, gpus, batch / gpus, False, samples_s)
