"""Synthetic workloads for the choice of a strategy's constants.

Families of learning curves and of power curves, drawn with wide ranges. They use no measured table;
shapes and ranges come from textbooks.
"""

import math

import numpy as np

from wattloop.cap.evaluation import MeasuredCurve
from wattloop.tune.replay.tables import METRIC, RecordedTraining, RecordedWorkload
from wattloop.tune.search_problem import Quality

__all__ = ["synthetic_workload", "synthetic_workloads"]

CAPS = (
    tuple(range(100, 251, 25)),
    tuple(range(100, 301, 25)),
    (125, 150, 175, 200, 225, 250),
    (150, 200, 250, 300),
)
SEEDS = 6
MOST_EPOCHS = 150
"""Of the default; longer trainings are counted in steps, not in epochs."""


def synthetic_workloads(count: int, seed: int = 0) -> list[RecordedWorkload]:
    """Return different workloads, always the same for a seed."""
    return [synthetic_workload(np.random.default_rng([seed, number])) for number in range(count)]


def synthetic_workload(draw: np.random.Generator) -> RecordedWorkload:
    """Return one workload on one GPU."""
    while True:
        made = _drawn(draw)
        if math.isfinite(made.default_energy_j) and made.epochs(made.default) <= MOST_EPOCHS:
            return made


def _drawn(draw: np.random.Generator) -> RecordedWorkload:
    batches = _batches(draw)
    octaves = np.log2(batches)
    caps = CAPS[draw.integers(len(CAPS))]
    curves = _curves(draw, batches, caps)
    needed = _epochs(draw, octaves)
    floor = float(draw.choice([0.0, 0.0, 0.1, 0.5, 0.9]))
    target = 0.5 + 0.4 * draw.random()
    margin, power = draw.uniform(0.03, 0.35), draw.uniform(0.35, 0.9)
    # Some batch sizes at one end never reach the target, at any length of training.
    fails = np.zeros(len(batches), dtype=bool)
    if draw.random() < 0.4:
        count = int(draw.integers(1, 1 + len(batches) // 3))
        fails[:count] = True
        fails = fails if draw.random() < 0.7 else fails[::-1]
    levels = floor * target + (1 - floor) * target * np.linspace(0, 1, draw.integers(6, 16))[1:]
    maximize = bool(draw.random() < 0.6)
    trainings = {
        size: tuple(
            _training(
                needed[i] * math.exp(0.1 * draw.standard_normal()),
                levels,
                floor * target,
                margin * math.exp(0.15 * draw.standard_normal()) * (-0.2 if fails[i] else 1.0),
                power * math.exp(0.07 * draw.standard_normal()),
                maximize,
            )
            for _ in range(SEEDS)
        )
        for i, size in enumerate(batches)
    }
    usable = [i for i in range(len(batches)) if not fails[i]]
    default = usable[int(draw.integers(len(usable)))]
    most = math.ceil(needed[default] * draw.uniform(1.4, 5.0)) + 1
    shown = target if maximize else 1 - target
    return RecordedWorkload(
        gpu="synthetic",
        dataset=f"s{int(draw.integers(10**6))}",
        network="-",
        optimizer="-",
        wanted=Quality(metric=METRIC, maximize=maximize, target=round(shown, 9)),
        max_epochs=most,
        default=batches[default],
        curves=curves,
        trainings=trainings,
    )


def _batches(draw: np.random.Generator) -> list[int]:
    first, count = int(draw.integers(2, 6)), int(draw.integers(4, 12))
    sizes = [2 ** (first + i) for i in range(count)]
    if draw.random() < 0.3:
        sizes += [size * 3 // 2 for size in sizes[count // 2 : -1]]
    return sorted(sizes)


def _epochs(draw: np.random.Generator, octaves: np.ndarray) -> np.ndarray:
    """Return epochs to the target: least in the middle of a range, more beyond either end."""
    least = math.exp(draw.uniform(math.log(2), math.log(60)))
    left = draw.uniform(octaves[0] - 1, octaves[-1])
    right = left + draw.uniform(0, 5)
    below, above = draw.uniform(0, 0.5), draw.uniform(0.1, 0.8)
    bend = draw.uniform(1.0, 1.3)
    rise = below * np.maximum(left - octaves, 0) ** bend
    rise += above * np.maximum(octaves - right, 0) ** bend
    wobble = np.cumsum(draw.normal(0, 0.05, len(octaves)))
    return least * np.exp(np.minimum(rise + wobble, 4.0))


def _training(
    needed: float,
    levels: np.ndarray,
    floor: float,
    margin: float,
    power: float,
    maximize: bool,
) -> RecordedTraining:
    """q(n) = floor + (end - floor) (1 - exp(-(n / scale)^power)), the target after `needed`."""
    target = float(levels[-1])
    end = target + margin * (target - floor)
    # One that ends below the target comes close to its end in as many epochs.
    share = (target - floor) / (end - floor) if margin > 0 else 0.95
    scale = needed / (-math.log(1 - share)) ** (1 / power)
    reached = []
    for level in levels:
        part = (float(level) - floor) / (end - floor)
        if part >= 1:
            break
        epoch = max(1, math.ceil(scale * (-math.log(1 - part)) ** (1 / power) - 1e-9))
        shown = float(level) if maximize else 1 - float(level)
        reached.append((round(shown, 9), epoch))
    return RecordedTraining(tuple(reached))


def _curves(
    draw: np.random.Generator, batches: list[int], caps: tuple[int, ...]
) -> dict[int, MeasuredCurve]:
    """Return curves: small batches keep a GPU waiting; a cap slows clock-bound work."""
    top_w, idle_w = caps[-1] * draw.uniform(0.8, 1.1), caps[-1] * draw.uniform(0.15, 0.3)
    epoch_s = math.exp(draw.uniform(math.log(5), math.log(4000)))
    knee = 2 ** draw.uniform(math.log2(batches[0]) - 3, math.log2(batches[-1]))
    bound = draw.uniform(0.4, 1.0)
    bend = draw.uniform(2.0, 3.0)
    noise = draw.choice([0.002, 0.005, 0.02])
    found = {}
    for size in batches:
        wait = (knee / size) ** draw.uniform(0.85, 1.0)
        busy = 1 / (1 + wait)
        full_s = epoch_s * (1 + wait) * (1 + 0.02 * math.log2(size / batches[0]) * draw.random())
        full_w = idle_w + (top_w - idle_w) * busy**0.6
        times, powers = [], []
        for cap_w in caps:
            clock = min(1.0, max((cap_w - idle_w) / (full_w - idle_w), 0.02) ** (1 / bend))
            share = bound * busy**0.5
            slower = share / clock + 1 - share
            error = np.exp(noise * draw.standard_normal(2))
            times.append(full_s * slower * float(error[0]))
            powers.append((idle_w + (full_w - idle_w) * clock**bend) * float(error[1]))
        found[size] = MeasuredCurve(
            ("synthetic", "-", str(size), "-"),
            tuple(float(cap) for cap in caps),
            tuple(times),
            tuple(powers),
        )
    return found
