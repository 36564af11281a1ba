"""Fit of kernel constants to microbenchmarks: formulas first, then their residuals."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.constants import (
    KernelConstants,
    ResidualGroup,
    Residuals,
    Values,
    nearness,
)
from wattloop.predict.models.kernels.fit import minimise
from wattloop.predict.models.kernels.kernel_cost import calculated_times
from wattloop.predict.models.kernels.operation_table import (
    Floats,
    OperationTable,
    class_of,
    family_of,
)
from wattloop.predict.workload.operation import Operation

REACHES = (0.7, 1.2, 2.0, 3.3, 5.5, 9.0)
NOISES = (0.03, 0.08, 0.2, 0.4, 0.8)
"""Noise of a residual, as a share of the residuals' spread."""
SHAPES = (0.6, 1.7)
SHORTEST, LONGEST = 0.2, 60.0
ROUNDS = 2


class _Trial(NamedTuple):
    loss: float
    noise: float
    errors: Floats


def fitted_group(places: Floats, residuals: Floats) -> tuple[ResidualGroup | None, Floats]:
    """Return the process whose lengths predict left-out samples best, and its errors on them.

    No process (None) when it does not predict better than the formula alone.
    """
    best, lengths = None, np.ones(places.shape[1])
    for reach in REACHES:
        even = np.full(places.shape[1], reach)
        trial = _tried(places / even, residuals)
        if best is None or trial.loss < best.loss:
            best, lengths = trial, even
    if best is None or best.loss > 0.98 * _loss(residuals):
        return None, residuals
    for _ in range(ROUNDS):
        before = best.loss
        for feature in range(places.shape[1]):
            if np.ptp(places[:, feature]) > 0:
                best, lengths = _stretched(places, residuals, best, lengths, feature)
        if best.loss > 0.995 * before:
            break
    kernel = nearness(places / lengths, places / lengths)
    weights = np.asarray(
        np.linalg.solve(kernel + best.noise**2 * np.eye(len(places)), residuals), dtype=np.float64
    )
    return ResidualGroup(places, weights, lengths), best.errors


def _stretched(
    places: Floats, residuals: Floats, best: _Trial, lengths: Floats, feature: int
) -> tuple[_Trial, Floats]:
    """Adjust the length of one feature as long as that helps."""
    for shape in SHAPES:
        while True:
            tried = lengths.copy()
            tried[feature] *= shape
            if not SHORTEST < tried[feature] < LONGEST:
                break
            trial = _tried(places / tried, residuals)
            if trial.loss >= 0.998 * best.loss:
                break
            best, lengths = trial, tried
    return best, lengths


def _tried(places: Floats, residuals: Floats) -> _Trial:
    """Return the best noise for these places: one decomposition serves all noises."""
    values, vectors = np.linalg.eigh(nearness(places, places))
    turned, squared = vectors.T @ residuals, vectors**2
    trials = []
    for noise in NOISES:
        inverse = 1 / (np.maximum(values, 0.0) + noise**2)
        errors = (vectors @ (inverse * turned)) / (squared @ inverse)
        trials.append(_Trial(_loss(errors), noise, errors))
    return min(trials, key=lambda trial: trial.loss)


def _loss(errors: Floats) -> float:
    """Return a loss between mean and square, robust against a few outliers."""
    return float(np.mean(np.sqrt(0.05**2 + errors**2)))


# Each class of operations has a few constants (an efficiency, a fixed time, a penalty), found by
# robust least squares on the logarithm of its times. The residual is a Gaussian process over the
# features of an operation, where leaving samples out shows that it predicts.

FEWEST = 4
"""Least number of samples for constants of a class."""
OWN: Mapping[str, tuple[str, ...]] = {
    "gemm": ("product.efficiency", "product.tile_s", "product.l2_share", "product.misaligned"),
    "conv": ("product.efficiency", "product.tile_s", "product.layout_passes"),
    "grouped": ("product.efficiency", "product.tile_s"),
    "depthwise": ("depthwise.efficiency", "depthwise.start_s"),
    "attention": ("attention.efficiency", "attention.block_s"),
    "rnn": ("rnn.efficiency", "rnn.step_s"),
}
BY_FUNCTION = ("elementwise.", "reduction.", "index.", "pool.", "random.")
"""Kinds whose classes are functions: an unmeasured one gets the constants of all others."""
STREAM = ("stream.efficiency", "stream.start_s")
PRIOR = 1.0
"""Standard deviation, in logarithms, of a constant around its default."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One microbenchmark: an operation, the seconds it took, whether its data were in L2."""

    operation: Operation
    seconds: float
    resident: bool = False


@dataclass(frozen=True, slots=True)
class KernelFit:
    """Constants, and by class the leave-one-out error (in logarithms) of each sample."""

    constants: KernelConstants
    left_out: Mapping[str, Floats]


def fitted_to_samples(constants: KernelConstants, samples: Sequence[Sample], gpu: Gpu) -> KernelFit:
    """Fit the constants of every measured class, and the residuals of all."""
    cold = [sample for sample in samples if not sample.resident]
    # Inputs of samples rotate so that L2 holds none of them, unless they are `resident`.
    values = _with_minimum(constants.values.with_changes({"stream.l2_use": 0.0}), cold)
    classes: dict[str, list[Sample]] = defaultdict(list)
    for sample in cold:
        classes[class_of(sample.operation)].append(sample)
    for name, members in classes.items():
        if len(members) >= FEWEST:
            values = _with_best_split(values, name, members, gpu)
    fits: dict[str, tuple[ResidualGroup | None, Floats]] = {}
    families: dict[str, list[str]] = defaultdict(list)
    left: dict[str, tuple[Floats, Floats]] = {}
    for name, members in classes.items():
        left[name] = _left_over(values, members, gpu)
        families[family_of(name)].append(name)
        if len(members) >= FEWEST:
            fits[name] = fitted_group(*left[name])
    for family, names in families.items():
        if len(names) > 1 and family.startswith(BY_FUNCTION):
            places = np.concatenate([left[name][0] for name in names])
            fits[family] = fitted_group(places, np.concatenate([left[name][1] for name in names]))
    groups = {name: group for name, (group, _) in fits.items() if group is not None}
    values = _with_cache(values, Residuals(groups), samples, gpu)
    values = values.with_changes({"stream.l2_use": constants.values["stream.l2_use"]})
    made = {**constants.made, "microbenchmarks": len(samples)}
    found = replace(constants, gpu=gpu.name, values=values, residuals=Residuals(groups), made=made)
    return KernelFit(found, {name: errors for name, (_, errors) in fits.items()})


def _with_cache(
    values: Values, residuals: Residuals, samples: Sequence[Sample], gpu: Gpu
) -> Values:
    """Fit speed and usable share of L2, from samples whose data were in it."""
    resident = [sample for sample in samples if sample.resident]
    if len(resident) < FEWEST:
        return values
    table = table_of(resident)
    factors = residuals.factors(table)[0]
    measured = np.log([sample.seconds for sample in resident])
    names = ("stream.l2_speed", "stream.l2_share")
    start = np.log([values[name] for name in names])
    used = values.with_changes({"stream.l2_use": 1.0})

    def off(x: Floats) -> Floats:
        tried = used.with_changes(dict(zip(names, np.exp(x).tolist(), strict=True)))
        seconds = calculated_times(table, tried, gpu).seconds * factors
        return np.asarray(np.log(seconds) - measured, dtype=np.float64)

    found = np.exp(minimise(off, start, np.full(len(names), PRIOR)))
    return values.with_changes(dict(zip(names, found.tolist(), strict=True)))


def _left_over(values: Values, members: Sequence[Sample], gpu: Gpu) -> tuple[Floats, Floats]:
    """Return features of the samples, and the logarithm of measured over calculated time."""
    table = table_of(members)
    measured = np.array([sample.seconds for sample in members])
    residuals: Floats = np.log(measured / calculated_times(table, values, gpu).seconds)
    return np.array(table.places), residuals


def _with_minimum(values: Values, samples: Sequence[Sample]) -> Values:
    """Set the time of an empty kernel: the fastest tenth of the single ones."""
    single = [sample.seconds for sample in samples if sample.operation.kernels == 1]
    if len(single) < FEWEST:
        return values
    shortest = float(np.quantile(single, 0.02))
    return values.with_changes({"kernel.minimum_s": min(max(shortest, 5e-7), 1e-5)})


def _with_best_split(values: Values, name: str, members: Sequence[Sample], gpu: Gpu) -> Values:
    """Fit the class's constants, with or without kernels that split the sum over K."""
    whole = values.with_changes({f"product.splits.{name}": 1.0})
    trials = [values, whole] if name.startswith(("gemm", "conv", "grouped")) else [values]
    found = [_with_class(trial, name, members, gpu) for trial in trials]
    wrong = [float(np.abs(_left_over(trial, members, gpu)[1]).mean()) for trial in found]
    return found[wrong.index(min(wrong))]


def _with_class(values: Values, name: str, members: Sequence[Sample], gpu: Gpu) -> Values:
    family, _, rest = name.partition(".")
    own = OWN.get(family, STREAM)
    scope = rest if family in ("depthwise", "attention", "rnn") else name
    names = [f"{constant}.{scope}" for constant in own]
    table = table_of(members)
    measured = np.log([sample.seconds for sample in members])
    start = np.log([max(values.find(constant, scope), 1e-3 * _unit(constant)) for constant in own])

    def residuals(x: Floats) -> Floats:
        tried = values.with_changes(dict(zip(names, np.exp(x).tolist(), strict=True)))
        return np.asarray(np.log(calculated_times(table, tried, gpu).seconds) - measured)

    found = minimise(residuals, start, np.full(len(start), PRIOR), soft=0.2, rounds=25)
    return values.with_changes(dict(zip(names, np.exp(found).tolist(), strict=True)))


def table_of(samples: Sequence[Sample]) -> OperationTable:
    """Return a row for each sample: repeated ones are not merged."""
    return OperationTable.of([sample.operation for sample in samples], merge=False)


def _unit(constant: str) -> float:
    """Return a small unit for a constant, so that its logarithm exists when its default is zero."""
    return 1e-4 if constant.endswith("_s") else 1.0
