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
from wattloop.predict.models.kernels.features import features_of
from wattloop.predict.models.kernels.least_squares import minimise
from wattloop.predict.models.kernels.operations import calculated_times
from wattloop.predict.models.kernels.residuals import Residuals
from wattloop.predict.models.kernels.table import Floats, OperationTable
from wattloop.predict.models.kernels.values import Values
from wattloop.predict.workload.operation import Operation

__all__ = ["Sample", "fitted_to_samples"]

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
STREAM = ("stream.efficiency", "stream.start_s")
PRIOR = 1.0
"""Standard deviation, in logarithms, of a constant around its default."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One microbenchmark: an operation, the seconds it took, whether its data were in L2."""

    operation: Operation
    seconds: float
    resident: bool = False


def fitted_to_samples(
    constants: KernelConstants, samples: Sequence[Sample], gpu: Gpu
) -> KernelConstants:
    """`constants` with every measured class's own, and the residuals of all."""
    from wattloop.predict.calibrate.fit_residuals import fitted_group

    cold = [sample for sample in samples if not sample.resident]
    values = _with_minimum(constants.values, cold)
    classes: dict[str, list[Sample]] = defaultdict(list)
    for sample in cold:
        classes[class_of(sample.operation)].append(sample)
    for name, members in classes.items():
        if len(members) >= FEWEST:
            values = _with_class(values, name, members, gpu)
    groups = {}
    families: dict[str, list[str]] = defaultdict(list)
    left: dict[str, tuple[Floats, Floats]] = {}
    for name, members in classes.items():
        table = OperationTable.of([sample.operation for sample in members])
        measured = np.array([sample.seconds for sample in members])
        residual = np.log(measured / calculated_times(table, values, gpu).seconds)
        places = np.array([features_of(sample.operation)[1] for sample in members])
        left[name] = (places, residual)
        families[family_of(name)].append(name)
        if len(members) >= FEWEST:
            groups[name] = fitted_group(places, residual)
    for family, names in families.items():
        if len(names) > 1 and family not in groups:
            places = np.concatenate([left[name][0] for name in names])
            groups[family] = fitted_group(places, np.concatenate([left[name][1] for name in names]))
    made = {**constants.made, "microbenchmarks": len(samples)}
    kept = {name: group for name, group in groups.items() if group is not None}
    return replace(constants, gpu=gpu.name, values=values, residuals=Residuals(kept), made=made)


def _with_minimum(values: Values, samples: Sequence[Sample]) -> Values:
    """The time of a kernel that has nothing to do: the quickest tenth of the single ones."""
    single = [sample.seconds for sample in samples if sample.operation.kernels == 1]
    if len(single) < FEWEST:
        return values
    shortest = float(np.quantile(single, 0.02))
    return values.with_changes({"kernel.minimum_s": min(max(shortest, 5e-7), 1e-5)})


def _with_class(values: Values, name: str, members: Sequence[Sample], gpu: Gpu) -> Values:
    """`values` with the constants of one class fitted to its samples."""
    family, _, rest = name.partition(".")
    own = OWN.get(family, STREAM)
    scope = rest if family in ("depthwise", "attention", "rnn") else name
    names = [f"{constant}.{scope}" for constant in own]
    table = OperationTable.of([sample.operation for sample in members])
    measured = np.log([sample.seconds for sample in members])
    start = np.log([max(values.look(constant, scope), 1e-3 * _unit(constant)) for constant in own])

    def residuals(x: Floats) -> Floats:
        tried = values.with_changes(dict(zip(names, np.exp(x).tolist(), strict=True)))
        return np.asarray(np.log(calculated_times(table, tried, gpu).seconds) - measured)

    found = minimise(residuals, start, np.full(len(start), PRIOR), soft=0.2, rounds=25)
    return values.with_changes(dict(zip(names, np.exp(found).tolist(), strict=True)))


def _unit(constant: str) -> float:
    """What is small for a constant, so that its logarithm exists when its default is zero."""
    return 1e-4 if constant.endswith("_s") else 1.0
