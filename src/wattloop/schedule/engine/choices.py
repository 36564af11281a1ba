"""What jobs of one kind truly take on each of their options, ready to be looked up."""

from typing import NamedTuple

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.oracle.options import Options, Shape
from wattloop.schedule.oracle.oracle import Oracle

__all__ = ["Choice", "choices_of"]


class Choice(NamedTuple):
    """One option of a kind.

    Attributes:
        shape: what it needs of the machines.
        power_w: its GPUs draw, truly.
        sample_s: seconds per sample, truly.
        believed_sample_s: as the policy is told, before what is particular to a job.
        step_work: samples of one iteration.
        idle_w: its GPUs draw when nothing runs on them.
    """

    shape: Shape
    power_w: float
    sample_s: float
    believed_sample_s: float
    step_work: float
    idle_w: float


def choices_of(kind: JobKind, truth: Oracle, oracle: Oracle, cluster: Cluster) -> list[Choice]:
    """The options of a kind, by number.

    Raises:
        ConfigError: the two oracles do not speak of the same options, or one is no figure.
    """
    true, believed = truth.options(kind), oracle.options(kind)
    if true is not believed and not _are_alike(true, believed):
        raise ConfigError(
            f"oracles {truth.name!r} and {oracle.name!r} differ in the options of {kind.label}: "
            "what a policy chooses must be what is carried out; give both the same cluster"
        )
    for name, column in (("sample_s", true.sample_s), ("power_w", true.power_w)):
        if not np.all(np.isfinite(column) & (column >= 0.0)):
            raise ConfigError(f"oracle {truth.name!r}: {name} of {kind.label} is negative or NaN")
    idle_w = np.array([each.idle_w for each in cluster.types])
    columns = (
        true.shapes(),
        true.power_w.tolist(),
        true.sample_s.tolist(),
        believed.sample_s.tolist(),
        (true.batch * true.gpus).astype(float).tolist(),
        (idle_w[true.type_index] * true.gpus).tolist(),
    )
    return [Choice._make(row) for row in zip(*columns, strict=True)]


def _are_alike(one: Options, other: Options) -> bool:
    return (
        one.shapes() == other.shapes()
        and np.array_equal(one.batch, other.batch)
        and np.allclose(one.cap_w, other.cap_w)
    )
