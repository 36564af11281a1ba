"""Constants of kernels from microbenchmarks: formulas first, then what they leave over.

Each class of operations has a few constants of its own (an efficiency, a fixed time, a penalty),
found by robust least squares on the logarithm of its times. What remains is kept as a Gaussian
process over the place of an operation among its like, as far as leaving samples out shows that
it predicts.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.classes import class_of, family_of
from wattloop.predict.models.kernels.constants import KernelConstants
from wattloop.predict.models.kernels.least_squares import minimise
from wattloop.predict.models.kernels.operations import calculated_times
from wattloop.predict.models.kernels.residuals import ResidualGroup, Residuals
from wattloop.predict.models.kernels.table import Floats, OperationTable
from wattloop.predict.models.kernels.values import Values
from wattloop.predict.workload.operation import Operation

__all__ = ["KernelFit", "Sample", "fitted_to_samples"]

FEWEST = 4
"""A class needs so many samples for constants of its own."""
OWN: Mapping[str, tuple[str, ...]] = {
    "gemm": ("product.efficiency", "product.tile_s", "product.l2_share", "product.misaligned"),
    "conv": ("product.efficiency", "product.tile_s", "product.layout_passes"),
    "grouped": ("product.efficiency", "product.tile_s"),
    "depthwise": ("depthwise.efficiency", "depthwise.start_s"),
    "attention": ("attention.efficiency", "attention.block_s"),
    "rnn": ("rnn.efficiency", "rnn.step_s"),
}
BY_FUNCTION = ("elementwise.", "reduction.", "index.", "pool.", "random.")
"""Kinds whose classes are functions: one that was not measured is like the others together."""
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
    """Constants, and by class the error (in logarithms) of each sample by all others."""

    constants: KernelConstants
    left_out: Mapping[str, Floats]


def fitted_to_samples(constants: KernelConstants, samples: Sequence[Sample], gpu: Gpu) -> KernelFit:
    """`constants` with every measured class's own, and the residuals of all."""
    from wattloop.predict.calibrate.fit_residuals import fitted_group

    cold = [sample for sample in samples if not sample.resident]
    # Inputs of samples are rotated so that L2 holds none of them, unless they are `resident`.
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
    """How much quicker L2 is and how much of it counts, from samples whose data were in it."""
    resident = [sample for sample in samples if sample.resident]
    if len(resident) < FEWEST:
        return values
    table = table_of(resident)
    factors = residuals.factors(table)
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
    """Places of the samples, and the logarithm of measured over calculated time."""
    table = table_of(members)
    measured = np.array([sample.seconds for sample in members])
    residuals: Floats = np.log(measured / calculated_times(table, values, gpu).seconds)
    return np.array(table.places), residuals


def _with_minimum(values: Values, samples: Sequence[Sample]) -> Values:
    """The time of a kernel that has nothing to do: the quickest tenth of the single ones."""
    single = [sample.seconds for sample in samples if sample.operation.kernels == 1]
    if len(single) < FEWEST:
        return values
    shortest = float(np.quantile(single, 0.02))
    return values.with_changes({"kernel.minimum_s": min(max(shortest, 5e-7), 1e-5)})


def _with_best_split(values: Values, name: str, members: Sequence[Sample], gpu: Gpu) -> Values:
    """The class's constants, with or without kernels that cut the sum over K into parts."""
    whole = values.with_changes({f"product.splits.{name}": 1.0})
    trials = [values, whole] if name.startswith(("gemm", "conv", "grouped")) else [values]
    found = [_with_class(trial, name, members, gpu) for trial in trials]
    wrong = [float(np.abs(_left_over(trial, members, gpu)[1]).mean()) for trial in found]
    return found[wrong.index(min(wrong))]


def _with_class(values: Values, name: str, members: Sequence[Sample], gpu: Gpu) -> Values:
    """`values` with the constants of one class fitted to its samples."""
    family, _, rest = name.partition(".")
    own = OWN.get(family, STREAM)
    scope = rest if family in ("depthwise", "attention", "rnn") else name
    names = [f"{constant}.{scope}" for constant in own]
    table = table_of(members)
    measured = np.log([sample.seconds for sample in members])
    start = np.log([max(values.look(constant, scope), 1e-3 * _unit(constant)) for constant in own])

    def residuals(x: Floats) -> Floats:
        tried = values.with_changes(dict(zip(names, np.exp(x).tolist(), strict=True)))
        return np.asarray(np.log(calculated_times(table, tried, gpu).seconds) - measured)

    found = minimise(residuals, start, np.full(len(start), PRIOR), soft=0.2, rounds=25)
    return values.with_changes(dict(zip(names, np.exp(found).tolist(), strict=True)))


def table_of(samples: Sequence[Sample]) -> OperationTable:
    """A row for each sample: repeated ones are not merged."""
    return OperationTable.of([sample.operation for sample in samples], merge=False)


def _unit(constant: str) -> float:
    """What is small for a constant, so that its logarithm exists when its default is zero."""
    return 1e-4 if constant.endswith("_s") else 1.0
