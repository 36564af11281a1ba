"""Measured tables of the Zeus library's artifact, joined to workloads."""

import csv
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from wattloop.cap.evaluation import MeasuredCurve, read_curves
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.tune.search_problem import Quality

METRIC = "quality"


@dataclass(frozen=True)
class RecordedTraining:
    """Recorded training: the epoch at which each quality was first reached.

    Attributes:
        levels: (quality, epoch), from the easiest level to the hardest that was reached.
    """

    levels: tuple[tuple[float, int], ...]

    @cached_property
    def _epochs(self) -> list[int]:
        return [epoch for _, epoch in self.levels]

    def quality(self, epochs: float) -> float | None:
        """Return the hardest level reached after so many epochs; None before the first. Nothing is
        interpolated: that would reveal when the next level is due.
        """
        count = bisect_right(self._epochs, epochs + 1e-9)
        return self.levels[count - 1][0] if count else None

    def epochs_to(self, wanted: Quality) -> int | None:
        return next((epoch for level, epoch in self.levels if wanted.reached(level)), None)


@dataclass(frozen=True)
class RecordedWorkload:
    """Problem with all its measurements on one GPU.

    Attributes:
        max_epochs: a training that misses the target by then has failed.
        default: the default batch size, of those that were measured.
        curves: time and power of an epoch at each cap, by batch size.
        trainings: one per training seed, by batch size; the same batch sizes as `curves`.
    """

    gpu: str
    dataset: str
    network: str
    optimizer: str
    wanted: Quality
    max_epochs: int
    default: int
    curves: Mapping[int, MeasuredCurve]
    trainings: Mapping[int, tuple[RecordedTraining, ...]]

    @property
    def name(self) -> str:
        return f"{self.dataset}/{self.network} on {self.gpu}"

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(sorted(self.curves))

    def epoch_energy_j(self, batch_size: int, cap_w: float) -> float:
        curve = self.curves[batch_size]
        at = curve.caps_w.index(cap_w)
        return curve.time_s[at] * curve.power_w[at]

    def best_cap_w(self, batch_size: int) -> float:
        caps = self.curves[batch_size].caps_w
        return min(caps, key=lambda cap_w: self.epoch_energy_j(batch_size, cap_w))

    def epochs(self, batch_size: int) -> float:
        """Return the expected epochs until the target is reached, failed and repeated trainings
        included; infinite when none ever reached it.
        """
        taken = [training.epochs_to(self.wanted) for training in self.trainings[batch_size]]
        good = [n for n in taken if n is not None and n <= self.max_epochs]
        if not good:
            return math.inf
        return fmean(good) + (len(taken) - len(good)) * self.max_epochs / len(good)

    def energy_j(self, batch_size: int, cap_w: float) -> float:
        return self.epochs(batch_size) * self.epoch_energy_j(batch_size, cap_w)

    @cached_property
    def default_energy_j(self) -> float:
        """Return D: the energy of the default batch size at the highest cap."""
        return self.energy_j(self.default, self.curves[self.default].caps_w[-1])

    @cached_property
    def oracle_energy_j(self) -> float:
        return min(self.energy_j(b, self.best_cap_w(b)) for b in self.batch_sizes)


# Columns of the tables, as in the Zeus library's artifact:
#
# - power (one file per GPU): dataset, network, batch_size, optimizer, power_limit (W),
#   time_per_epoch (s), average_power (W)
# - train: dataset, network, batch_size, optimizer, learning_rate, run (the training seed),
#   target_metric, target_epoch (empty or nan where that run never reached it)
# - problems: dataset, network, optimizer, target_metric, higher_is_better (1 or 0), max_epochs,
#   default_batch_size
#
# Other columns are ignored. Only batch sizes that are in both of the first two can be replayed.

TRAIN_COLUMNS = [
    *("dataset", "network", "batch_size", "optimizer"),
    *("run", "target_metric", "target_epoch"),
]
PROBLEM_COLUMNS = [
    *("dataset", "network", "optimizer", "target_metric"),
    *("higher_is_better", "max_epochs", "default_batch_size"),
]
YES = {
    **dict.fromkeys(("1", "1.0", "true", "yes"), True),
    **dict.fromkeys(("0", "0.0", "false", "no"), False),
}


@dataclass(frozen=True, slots=True)
class SkippedWorkload:
    """Problem that cannot be replayed on a GPU, with the reason."""

    gpu: str
    dataset: str
    network: str
    optimizer: str
    reason: str

    @property
    def name(self) -> str:
        """Return its name; the optimizer distinguishes problems of one network."""
        return f"{self.dataset}/{self.network} ({self.optimizer}) on {self.gpu}"


class _Problem(NamedTuple):
    key: tuple[str, str, str]
    wanted: Quality
    max_epochs: int
    default: int


_Levels = dict[tuple[str, str], list[tuple[float, float]]]
"""(learning rate, run) -> (level, epoch)."""


def read_workloads(
    power: Sequence[str | Path], train: str | Path, problems: str | Path
) -> tuple[list[RecordedWorkload], list[SkippedWorkload]]:
    """Read every problem on every GPU, and those left out."""
    wanted = list(dict.fromkeys(_read_problems(problems)))  # duplicates count once
    recorded = _read_train(train)
    found: list[RecordedWorkload] = []
    left: list[SkippedWorkload] = []
    for table in power:
        gpu = Path(table).stem.removeprefix("power_")
        curves: dict[tuple[str, str, str], dict[int, MeasuredCurve]] = defaultdict(dict)
        for curve in read_curves(table, fewest_caps=1):
            dataset, network, batch, optimizer = curve.key
            size = _whole(f"{table}: {' '.join(curve.key)}", "batch_size", batch)
            curves[dataset, network, optimizer][size] = curve
        for problem in wanted:
            joined = _join(gpu, problem, curves[problem.key], recorded[problem.key])
            if isinstance(joined, str):
                left.append(SkippedWorkload(gpu, *problem.key, joined))
            else:
                found.append(joined)
    if not found:
        why = "; ".join(f"{x.name}: {x.reason}" for x in left)
        raise ConfigError(f"nothing to replay: {why or f'{problems} has no problems'}")
    return found, left


def _join(
    gpu: str, problem: _Problem, curves: dict[int, MeasuredCurve], recorded: dict[int, _Levels]
) -> RecordedWorkload | str:
    if not curves:
        return "no rows of it in the power table"
    if not recorded:
        return "no rows of it in the train table"
    both = sorted(set(curves) & set(recorded))
    if not both:
        return "no batch size is in both tables"
    trainings = {size: _trainings(problem.wanted, recorded[size]) for size in both}
    # at most the largest measured on this GPU; else the nearest that has rows
    asked = min(problem.default, max(curves))
    made = RecordedWorkload(
        gpu,
        *problem.key,
        wanted=problem.wanted,
        max_epochs=problem.max_epochs,
        default=min(both, key=lambda size: (abs(math.log(size / asked)), size)),
        curves={size: curves[size] for size in both},
        trainings=trainings,
    )
    if not math.isfinite(made.default_energy_j):
        return (
            f"no training with the default batch size {made.default} reaches "
            f"{problem.wanted.target:g} in {problem.max_epochs} epochs"
        )
    return made


def _trainings(wanted: Quality, recorded: _Levels) -> tuple[RecordedTraining, ...]:
    """Return one training per run, at the learning rate that most runs have."""
    rates = Counter(rate for rate, _ in recorded)
    rate = max(rates, key=lambda one: rates[one])
    return tuple(
        _training(wanted, levels) for (own, _), levels in sorted(recorded.items()) if own == rate
    )


def _training(wanted: Quality, levels: list[tuple[float, float]]) -> RecordedTraining:
    """Sort levels by difficulty; a harder level is never reached before an easier one."""
    reached = [(level, epoch) for level, epoch in levels if math.isfinite(epoch)]
    ordered: list[tuple[float, int]] = []
    for level, epoch in sorted(reached, reverse=not wanted.maximize):
        before = ordered[-1][1] if ordered else 1
        ordered.append((level, max(before, math.ceil(epoch))))
    return RecordedTraining(tuple(ordered))


def _read_problems(table: str | Path) -> Iterator[_Problem]:
    for where, row in _rows(table, PROBLEM_COLUMNS):
        text = row["higher_is_better"].lower()
        if text not in YES:
            raise ConfigError(f"{where}: higher_is_better is '{text}'; write 1 or 0")
        target = _number(where, "target_metric", row["target_metric"])
        yield _Problem(
            (row["dataset"], row["network"], row["optimizer"]),
            Quality(metric=METRIC, maximize=YES[text], target=target),
            _whole(where, "max_epochs", row["max_epochs"]),
            _whole(where, "default_batch_size", row["default_batch_size"]),
        )


def _read_train(table: str | Path) -> dict[tuple[str, str, str], dict[int, _Levels]]:
    found: dict[tuple[str, str, str], dict[int, _Levels]] = defaultdict(dict)
    for where, row in _rows(table, TRAIN_COLUMNS):
        key = (row["dataset"], row["network"], row["optimizer"])
        size = _whole(where, "batch_size", row["batch_size"])
        level = _number(where, "target_metric", row["target_metric"])
        epoch = _epoch(where, row["target_epoch"])
        run = (row.get("learning_rate") or "", row["run"])
        found[key].setdefault(size, {}).setdefault(run, []).append((level, epoch))
    return found


def _rows(table: str | Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (file and line, stripped cells)."""
    path = user_path(str(table))
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or ()
            missing = [name for name in columns if name not in header]
            if missing:
                raise ConfigError(
                    f"{path}: column {', '.join(missing)} missing; there are "
                    f"{', '.join(header) or 'none'}. Needed are {', '.join(columns)}"
                )
            empty = True
            for row in reader:
                empty = False
                yield (
                    f"{path}, line {reader.line_num}",
                    {name: (value or "").strip() for name, value in row.items() if name},
                )
    except FileNotFoundError:
        raise ConfigError(f"{table}: no such file; give a CSV with {', '.join(columns)}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{table} cannot be read as CSV: {error}") from None
    if empty:
        raise ConfigError(f"{path}: no rows below the header")


def _number(where: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{where}: {name} is '{text}'; write a number")
    return value


def _whole(where: str, name: str, text: str) -> int:
    value = _number(where, name, text)
    if value < 1 or value != int(value):
        raise ConfigError(f"{where}: {name} is '{text}'; write a whole number above 0")
    return int(value)


def _epoch(where: str, text: str) -> float:
    if text.lower() in ("", "nan", "inf", "none", "-1"):
        return math.inf
    value = _number(where, "target_epoch", text)
    if value <= 0:
        raise ConfigError(f"{where}: target_epoch is '{text}'; write an epoch from 1 on, or nan")
    return value
