"""Accuracy of the cap finder on measured curves, next to an exhaustive search."""

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from wattloop.accounting.energy_delay import Point, objective
from wattloop.cap.finder import CapFinder
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path

# Measured curves from a table: time and average power of workloads under each power limit.
#
# Columns: dataset, network, batch_size, optimizer, power_limit (W), time_per_epoch (s),
# average_power (W); others are left alone. A curve is one (dataset, network, batch_size,
# optimizer).

KEYS = ("dataset", "network", "batch_size", "optimizer")
NUMBERS = ("power_limit", "time_per_epoch", "average_power")
COLUMNS = KEYS + NUMBERS
RESPONSIVE = 1.1


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """One workload at every cap, from the lowest to the highest."""

    key: tuple[str, ...]
    caps_w: tuple[float, ...]
    time_s: tuple[float, ...]
    power_w: tuple[float, ...]

    @property
    def responsive(self) -> bool:
        """Return True when power at the highest cap is more than 1.1 times that at the lowest."""
        return self.power_w[-1] > RESPONSIVE * self.power_w[0]


def read_curves(table: str | Path, fewest_caps: int = 2) -> list[MeasuredCurve]:
    """Read the curves of a CSV file; rows of one workload and cap are averaged."""
    path = user_path(str(table))
    rows: dict[tuple[str, ...], dict[float, list[tuple[float, float]]]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            _check_columns(path, reader.fieldnames or ())
            for row in reader:
                key = tuple((row[name] or "").strip() for name in KEYS)
                cap_w, time_s, power_w = (
                    _number(path, reader.line_num, n, row[n]) for n in NUMBERS
                )
                rows.setdefault(key, {}).setdefault(cap_w, []).append((time_s, power_w))
    except FileNotFoundError:
        raise ConfigError(f"{table}: no such file; give a CSV with {', '.join(COLUMNS)}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{table} cannot be read as CSV: {error}") from None
    if not rows:
        raise ConfigError(f"{path}: no rows below the header")
    for key, caps in rows.items():
        if len(caps) < fewest_caps:
            raise ConfigError(
                f"{path}: {' '.join(key)} has one power limit only; there must be two"
            )
    return [_curve(key, caps) for key, caps in rows.items()]


def _check_columns(path: Path, found: Sequence[str]) -> None:
    missing = [name for name in COLUMNS if name not in found]
    if missing:
        raise ConfigError(
            f"{path}: column {', '.join(missing)} missing; there are {', '.join(found) or 'none'}. "
            f"Needed are {', '.join(COLUMNS)}"
        )


def _number(path: Path, line: int, name: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{path}, line {line}: {name} is '{text}'; write a number above 0")
    return value


def _curve(key: tuple[str, ...], caps: dict[float, list[tuple[float, float]]]) -> MeasuredCurve:
    ordered = sorted(caps)
    means = [tuple(sum(v) / len(v) for v in zip(*caps[cap], strict=True)) for cap in ordered]
    return MeasuredCurve(
        key, tuple(ordered), tuple(m[0] for m in means), tuple(m[1] for m in means)
    )


CLOSE = 0.02
SEEDS = 10
"""Draws of noise per curve."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One search on one curve. Regrets are of true values: 0.02 is 2% worse than the best cap."""

    curve: MeasuredCurve
    cap_w: float
    probes: int
    regret: float
    exhaustive_regret: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Shares and the worst are of the responsive curves; on flat ones any cap is right."""

    metric: str
    k: float | None
    noise_pct: float
    seeds: int
    curves: int
    responsive_curves: int
    within_2pct_share: float | None
    median_probes: float | None
    mean_probes: float | None
    worst_regret_pct: float | None
    exhaustive_within_2pct_share: float | None
    flat_lowest_share: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Finder = Callable[[MeasuredCurve], CapFinder]


def evaluate(
    curves: Sequence[MeasuredCurve],
    metric: str,
    k: float = 2.0,
    noise: float = 0.0,
    *,
    seeds: int = SEEDS,
    advance: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Replay the finder on every curve with relative `noise`, calling `advance` after each."""
    done: list[Replayed] = []
    for replayed in replays(curves, metric, k, noise, seeds=seeds):
        done.append(replayed)
        advance()
    responsive = [r for r in done if r.curve.responsive]
    flat = [r for r in done if not r.curve.responsive]
    return Evaluation(
        metric=metric,
        k=k if metric == "eds" else None,
        noise_pct=100 * noise,
        seeds=seeds if noise else 1,
        curves=len(curves),
        responsive_curves=sum(curve.responsive for curve in curves),
        within_2pct_share=share_within([r.regret for r in responsive]),
        median_probes=median(r.probes for r in responsive) if responsive else None,
        mean_probes=fmean(r.probes for r in responsive) if responsive else None,
        worst_regret_pct=100 * max(r.regret for r in responsive) if responsive else None,
        exhaustive_within_2pct_share=share_within([r.exhaustive_regret for r in responsive]),
        flat_lowest_share=(
            sum(r.cap_w == r.curve.caps_w[0] for r in flat) / len(flat) if flat else None
        ),
    )


def replays(
    curves: Sequence[MeasuredCurve],
    metric: str,
    k: float,
    noise: float,
    *,
    seeds: int = SEEDS,
    make: Finder | None = None,
) -> Iterator[Replayed]:
    """Every search; `make` builds another finder than the default one."""
    for number, curve in enumerate(curves):
        truth = true_values(curve, metric, k)
        for seed in range(seeds if noise else 1):
            draw = np.random.default_rng([number, seed])
            # Noise of its own, so that it is the same however many probes the finder makes.
            others = np.random.default_rng([number, seed, 1])
            finder = (
                CapFinder(curve.caps_w, metric, k, noise=noise) if make is None else make(curve)
            )
            while (cap_w := finder.ask()) is not None:
                index = curve.caps_w.index(cap_w)
                time_s, power_w = _read(curve, index, noise, draw)
                finder.tell(cap_w, time_s, time_s * power_w)
            cap_w = finder.best().cap_w
            yield Replayed(
                curve,
                cap_w,
                len(finder.probes),
                truth[curve.caps_w.index(cap_w)] / min(truth) - 1,
                truth[exhaustive_choice(curve, metric, k, noise, others)] / min(truth) - 1,
            )


def exhaustive_choice(
    curve: MeasuredCurve, metric: str, k: float, noise: float, draw: np.random.Generator
) -> int:
    readings = [_read(curve, index, noise, draw) for index in range(len(curve.caps_w))]
    seen = MeasuredCurve(
        curve.key, curve.caps_w, tuple(t for t, _ in readings), tuple(p for _, p in readings)
    )
    values = true_values(seen, metric, k)
    return values.index(min(values))


def true_values(curve: MeasuredCurve, metric: str, k: float) -> list[float]:
    """The metric at every cap; those that need a reference take the highest cap."""
    points = [Point(t, t * p) for t, p in zip(curve.time_s, curve.power_w, strict=True)]
    small = objective(metric, points[-1], k)
    values = [small(point) for point in points]
    # Gain minus loss is a difference; as 2 (1 - EDS(2)) it has a regret in per cent.
    return [1 + value / 200 for value in values] if metric == "gain_minus_loss" else values


def share_within(regrets: Sequence[float]) -> float | None:
    return sum(regret <= CLOSE for regret in regrets) / len(regrets) if regrets else None


def _read(
    curve: MeasuredCurve, index: int, noise: float, draw: np.random.Generator
) -> tuple[float, float]:
    factors = np.exp(noise * draw.standard_normal(2))
    return curve.time_s[index] * float(factors[0]), curve.power_w[index] * float(factors[1])
