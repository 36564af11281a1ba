"""Steps over several A100 from ElasticFlow's single-GPU rows."""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wattloop.hardware.gpus import gpu_named
from wattloop.predict.communication import Ring, all_reduce_s, exchange

A100 = gpu_named("a100-sxm-40")
MOST_GPUS = 8
PARAMETERS = {
    "bert": 109_483_778,
    "deepspeech2": 41_179_997,
    "gpt2": 124_439_808,
    "inception3": 27_161_264,
    "resnet50": 25_557_032,
    "resnet50_cifar10": 23_528_522,
    "vgg16": 138_357_544,
}
"""Of the rebuilt networks, checked where they are traced."""
BACKWARD_SHARE = 2 / 3
"""Of a step: backward does twice the work of forward."""
HOST_BOUND = ("resnet50_cifar10", 64)
"""A single-GPU row that the host bounds: its step hardly changes with the batch."""


class Row(NamedTuple):
    """One measured row."""

    network: str
    batch: int
    gpus: int


Times = Mapping[Row, float]
Predict = Callable[[Row], float]


def read(path: Path) -> dict[Row, float]:
    """Seconds of a step, on A100 of one node."""
    with path.open(encoding="utf-8") as lines:
        return {
            Row(row["model"], int(row["global_batch"]), int(row["gpus"])): 1
            / float(row["steps_per_s"])
            for row in csv.DictReader(lines)
            if row["gpu_type"] == "A100"
            and row["model"] in PARAMETERS
            and int(row["gpus"]) <= MOST_GPUS
        }


def host_times(times: Times) -> dict[str, float]:
    """Seconds the table's host needs to dispatch a step of each network.

    Calls of operators and modules, at the kernels model's prices. Kernels that libraries launch by
    themselves (a cuDNN network of time steps) are left out: they do not wait for Python.
    """
    from predict_scaling_nets import traced
    from wattloop.predict.models.kernels.constants import constants_for
    from wattloop.predict.models.kernels.step import HostCounts, host_counts, host_seconds

    values = constants_for(A100)[0].values
    host_s = {}
    for name, parameters in PARAMETERS.items():
        workload = traced(name, 32)
        if workload.parameters != parameters:
            raise AssertionError(
                f"{name} has {workload.parameters:,} parameters, not {parameters:,}"
            )
        counts = host_counts(workload)
        called = HostCounts(_calls(counts.one_pass), _calls(counts.once))
        host_s[name] = sum(host_seconds(called, values))
    speed = times[Row(*HOST_BOUND, 1)] / host_s[HOST_BOUND[0]]
    return {name: speed * seconds for name, seconds in host_s.items()}


def _calls(counts: Mapping[str, float]) -> dict[str, float]:
    return {name: often for name, often in counts.items() if "launch" not in name}


class Scaling:
    """Steps over several GPUs from the single-GPU rows."""

    def __init__(self, times: Times, host_s: Mapping[str, float]) -> None:
        self._times = times
        self._host_s = host_s

    def alone_s(self, network: str, batch: int) -> float:
        """One GPU, any batch: a line through the two nearest batches, the host's time at least."""
        known = sorted(row.batch for row in self._times if row.network == network and row.gpus == 1)
        near = sorted(sorted(known, key=lambda b: abs(np.log(b / batch)))[:2])
        at = [self._times[Row(network, b, 1)] for b in near]
        line_s = at[0] + (at[1] - at[0]) * (batch - near[0]) / (near[1] - near[0])
        return max(line_s, self._host_s.get(network, 0.0))

    def step_s(self, row: Row, bytes_s: float, hop_s: float) -> float:
        """With the exchange behind backward."""
        alone_s = self.alone_s(row.network, row.batch // row.gpus)
        ring = Ring(row.gpus, bytes_s, hop_s)
        done = exchange(4.0 * PARAMETERS[row.network], BACKWARD_SHARE * alone_s, ring)
        return alone_s + float(done.exposed_s)

    def added_s(self, row: Row, bytes_s: float, hop_s: float) -> float:
        """With the exchange after it."""
        ring = Ring(row.gpus, bytes_s, hop_s)
        added_s = float(all_reduce_s(4.0 * PARAMETERS[row.network], ring))
        return self.alone_s(row.network, row.batch // row.gpus) + added_s
