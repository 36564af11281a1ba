"""Dispatch speed of a host, relative to the host of the calibration.

A few small networks of the suite are dispatched, phase by phase, while the GPU is idle. The speed
is the time by the constants over the measured time. Microbenchmarks of the host (`probe`) do not
show it: over 96 steps that wait for the host, the correlation of their times with the steps' is at
most 0.3.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu
from wattloop.predict.calibrate.device import Bench
from wattloop.predict.calibrate.host import dispatch_seconds
from wattloop.predict.models.model import Model
from wattloop.predict.prediction import Placement

NETWORKS = (
    "resnet34@32 64 fp32", "bert_base@128 8 fp32", "mobilenet_v2@32 64 fp32",
    "deit_small@224 8 fp32", "electra_small@128 8 fp32",
)  # fmt: skip
"""Model, batch, precision: supported by every GPU, with kernels that fit in its queue."""
ROUNDS = 8
WARM_UP_STEPS = 5
ROUND_S = 0.3
"""Time of one network in one round."""


@dataclass(frozen=True, slots=True)
class HostSpeed:
    """Speed of the host, from several networks.

    Attributes:
        speed: 1 is the calibrated host's; 0.8 takes 1.25 times as long.
        low, high: the slowest and the quickest round.
        dispatch_s: network -> seconds that the host needs for a step.
        expected_s: the same, from the constants.
    """

    speed: float
    low: float
    high: float
    dispatch_s: dict[str, float]
    expected_s: dict[str, float]


def measured_host_speed(
    bench: Bench,
    model: Model,
    gpu: Gpu,
    networks: Sequence[str] = NETWORKS,
    progress: Callable[[str], None] = lambda _: None,
) -> HostSpeed:
    """Dispatch `networks` on a GPU in interleaved rounds: about ten seconds.

    Raises:
        ConfigError: a library of theirs is missing, or the GPU's memory is too small for them.
    """
    from wattloop.predict.calibrate.steps import Training, subject_workload

    trainings: dict[str, Any] = {}
    expected_s: dict[str, float] = {}
    for network in networks:
        progress(network)
        name, batch, precision = network.split()
        asked = {"model": name, "batch": int(batch), "precision": precision}
        try:
            workload = subject_workload(name, int(batch), precision)
            expected_s[network] = model.predict(workload, Placement(gpu)).host_s or 0.0
            trainings[network] = Training(bench, asked)
            for _ in range(WARM_UP_STEPS):
                trainings[network].step()
            bench.synchronize()
        except ImportError as error:
            raise ConfigError(
                f"{network}: {error}; the host is measured by networks of Hugging Face among "
                "others, so run 'pip install wattloop[torch,hf]'"
            ) from None
        except bench.torch.cuda.OutOfMemoryError:
            raise ConfigError(
                f"{network}: the GPU's memory is too small for it; wait for others to leave, or "
                "take another GPU with --gpu"
            ) from None
    rounds = []
    for number in range(ROUNDS):
        progress(f"round {number + 1} of {ROUNDS}")
        rounds.append(
            {network: _dispatch_s(bench, training) for network, training in trainings.items()}
        )
    return speed_of(rounds, expected_s)


def speed_of(rounds: Sequence[dict[str, float]], expected_s: dict[str, float]) -> HostSpeed:
    """Compute the speed from the seconds of each network in each round."""
    speeds = [
        statistics.median(expected_s[network] / seconds for network, seconds in found.items())
        for found in rounds
    ]
    return HostSpeed(
        speed=statistics.median(speeds),
        low=min(speeds),
        high=max(speeds),
        dispatch_s={
            network: statistics.median(found[network] for found in rounds) for network in expected_s
        },
        expected_s=expected_s,
    )


def _dispatch_s(bench: Bench, training: Any) -> float:
    return sum((dispatch_seconds(bench, training, ROUND_S) or {}).values())
