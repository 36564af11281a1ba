"""Dispatch time of the host: of an operator call and of a training step, and its relative speed."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu
from wattloop.predict.calibrate.families.base import CalibrationCase, Params
from wattloop.predict.calibrate.families.optimizer import make_optimizer
from wattloop.predict.calibrate.machine import CalibrationDevice, median_seconds, probe
from wattloop.predict.models.model import Model
from wattloop.predict.prediction import Placement

# Dispatch time of a training step, without the GPU's time. A phase is dispatched while the GPU is
# idle, and ends for the host when all its kernels are queued. This holds as long as they fit into
# the GPU's queue of about a thousand.
PHASES = ("forward", "backward", "optimizer")
FEWEST, MOST = 4, 20
LONGEST_S = 0.7


class Phases(Protocol):
    """Training step in three phases."""

    def forward(self) -> None:
        """Zero the gradients and compute the loss."""

    def backward(self) -> None:
        """Compute the gradients."""

    def update(self) -> None:
        """Run the optimizer's step."""


def dispatch_seconds(
    bench: CalibrationDevice, training: Phases, longest_s: float = LONGEST_S
) -> Mapping[str, float] | None:
    """Return the median time of each phase until its last kernel is queued; None on the CPU."""
    if not bench.on_gpu:
        return None
    parts = (training.forward, training.backward, training.update)
    times: Sequence[list[float]] = [[] for _ in PHASES]
    end_s = time.perf_counter() + longest_s
    while len(times[0]) < MOST and (len(times[0]) < FEWEST or time.perf_counter() < end_s):
        for part, taken in zip(parts, times, strict=True):
            bench.synchronize()
            begin_s = time.perf_counter()
            part()
            taken.append(time.perf_counter() - begin_s)
    bench.synchronize()
    return {name: statistics.median(taken) for name, taken in zip(PHASES, times, strict=True)}


def is_dispatch(found: object) -> bool:
    """Return whether `host_s` of a record has the form of `dispatch_seconds`."""
    return (
        isinstance(found, Mapping)
        and set(found) == set(PHASES)
        and all(isinstance(s, float) and 0 < s < math.inf for s in found.values())
    )


CALLS = 100
ROUNDS = 7
FUNCTIONS = ("linear", "add", "relu", "gelu", "view", "transpose", "layer_norm", "batch_norm",
             "conv", "softmax", "dropout", "sdpa", "embedding", "bmm", "cat", "mean", "max_pool",
             "contiguous", "to_bf16")  # fmt: skip


def host_cases() -> list[CalibrationCase]:
    """Return operators by mode, module calls, and optimizers by number of tensors."""
    rows: list[tuple[str, dict[str, object]]] = [("probe", {})]
    for function in FUNCTIONS:
        rows += [("call", {"function": function, "mode": mode})
                 for mode in ("forward", "autocast", "backward", "autocast_backward")]  # fmt: skip
    rows += [("module", {"module": name}) for name in ("identity", "linear", "relu")]
    for optimizer in ("adamw", "adam", "sgd", "rmsprop"):
        for style in ("foreach", "fused", "loop"):
            if style == "fused" and optimizer == "rmsprop":
                continue
            for tensors in (1, 10, 50, 150, 400):
                if style != "loop" or tensors <= 50:
                    rows.append(("optimizer", {"optimizer": optimizer, "style": style,
                                               "tensors": tensors}))  # fmt: skip
    rows += [("zero_grad", {"tensors": tensors}) for tensors in (10, 150)]
    rows += [("synchronize", {}), ("item", {})]
    return [CalibrationCase("host", family, params) for family, params in rows]


def host_seconds(
    bench: CalibrationDevice, family: str, params: Mapping[str, object]
) -> Mapping[str, object]:
    """Return the seconds of the host for one such call (or the probe's rates)."""
    p = Params(params)
    if family == "probe":
        return probe(bench)
    if family == "call" and p.text("mode").endswith("backward"):
        return {"seconds": _backward_s(bench, p)}
    call, repeats = _call(bench, family, p)
    if family == "call" and p.text("mode") == "autocast":
        return {"seconds": _autocast_s(bench, call)}
    return {"seconds": median_seconds(bench, call, repeats)}


def _call(bench: CalibrationDevice, family: str, p: Params) -> tuple[Callable[[], Any], int]:
    torch = bench.torch
    x = bench.normal((16, 16), torch.float32)
    if family == "module":
        modules = {"identity": torch.nn.Identity, "relu": torch.nn.ReLU}
        name = p.text("module")
        made = torch.nn.Linear(16, 16) if name == "linear" else modules[name]()
        module = made.to(bench.device)
        return (lambda: module(x)), CALLS
    if family == "synchronize":
        return bench.synchronize, CALLS
    if family == "item":
        return x[0, 0].item, CALLS
    if family in ("optimizer", "zero_grad"):
        return _stepping(bench, family, p), 2
    return _function(bench, p.text("function")), CALLS


def _autocast_s(bench: CalibrationDevice, function: Callable[[], Any]) -> float:
    """Time the call inside one autocast region, as in a model's forward; a weight is cast once."""
    with bench.torch.autocast(bench.device.type, dtype=bench.torch.bfloat16):
        return median_seconds(bench, function, CALLS)


def _stepping(bench: CalibrationDevice, family: str, p: Params) -> Callable[[], Any]:
    torch = bench.torch
    number = p.number("tensors")
    parameters = [torch.randn((8, 8), device=bench.device).requires_grad_() for _ in range(number)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    if family == "zero_grad":
        optimizer = make_optimizer(torch, "sgd", "foreach", parameters)
        return lambda: optimizer.zero_grad(set_to_none=True)
    optimizer = make_optimizer(torch, p.text("optimizer"), p.text("style"), parameters)
    step: Callable[[], Any] = optimizer.step
    return step


def _backward_s(bench: CalibrationDevice, p: Params) -> float:
    """Time a backward pass over a chain of the function, per link."""
    torch = bench.torch
    mode = p.text("mode")
    links = 50
    times = []
    for round_number in range(ROUNDS + 1):
        steps = [_function(bench, p.text("function")) for _ in range(links)]
        with torch.autocast(
            bench.device.type, dtype=torch.bfloat16, enabled=mode.startswith("autocast")
        ):
            outputs = [step() for step in steps]
        total = sum(output.float().sum() for output in outputs)
        plain = _base_backward_s(bench, outputs)
        bench.synchronize()
        begin = time.perf_counter()
        total.backward()
        if round_number:
            times.append((time.perf_counter() - begin - plain) / links)
        bench.synchronize()
    return statistics.median(times)


def _base_backward_s(bench: CalibrationDevice, outputs: list[Any]) -> float:
    """Time the backward pass without the function, to subtract it."""
    leaves = [output.detach().requires_grad_() for output in outputs]
    total = sum(leaf.float().sum() for leaf in leaves)
    bench.synchronize()
    begin = time.perf_counter()
    total.backward()
    elapsed = time.perf_counter() - begin
    bench.synchronize()
    return elapsed


def _function(bench: CalibrationDevice, name: str) -> Callable[[], Any]:
    torch = bench.torch
    functional = torch.nn.functional

    def leaf(*shape: int) -> Any:
        return torch.randn(shape, device=bench.device).requires_grad_()

    x, w, b = leaf(16, 16), leaf(16, 16), leaf(16)
    image, kernel = leaf(1, 8, 8, 8), leaf(8, 8, 3, 3)
    scale, shift = leaf(8), leaf(8)
    mean, variance = (
        torch.zeros(8, device=bench.device),
        torch.ones(8, device=bench.device),
    )
    heads, batch = leaf(1, 2, 16, 32), leaf(4, 16, 16)
    places = torch.zeros(16, dtype=torch.long, device=bench.device)
    calls: dict[str, Callable[[], Any]] = {
        "linear": lambda: functional.linear(x, w, b),
        "add": lambda: x + w,
        "relu": lambda: functional.relu(x),
        "gelu": lambda: functional.gelu(x),
        "view": lambda: x.view(4, 4, 16),
        "transpose": lambda: x.transpose(0, 1),
        "layer_norm": lambda: functional.layer_norm(x, (16,), b, b),
        "batch_norm": lambda: functional.batch_norm(image, mean, variance, scale, shift, True),
        "conv": lambda: functional.conv2d(image, kernel, None, 1, 1),
        "softmax": lambda: functional.softmax(x, -1),
        "dropout": lambda: functional.dropout(x, 0.1, True),
        "sdpa": lambda: functional.scaled_dot_product_attention(heads, heads, heads),
        "embedding": lambda: functional.embedding(places, w),
        "bmm": lambda: torch.bmm(batch, batch),
        "cat": lambda: torch.cat((x, w)),
        "mean": lambda: x.mean(-1),
        "max_pool": lambda: functional.max_pool2d(image, 2),
        "contiguous": lambda: x.transpose(0, 1).contiguous(),
        "to_bf16": lambda: x.to(torch.bfloat16),
    }
    return calls[name]


# Dispatch speed of a host, relative to the host of the calibration.
#
# A few small networks of the suite are dispatched, phase by phase, while the GPU is idle. The speed
# is the time by the constants over the measured time. Microbenchmarks of the host (`probe`) do not
# show it: over 96 steps that wait for the host, the correlation of their times with the steps' is
# at most 0.3.

NETWORKS = (
    "resnet34@32 64 fp32", "bert_base@128 8 fp32", "mobilenet_v2@32 64 fp32",
    "deit_small@224 8 fp32", "electra_small@128 8 fp32",
)  # fmt: skip
"""Model, batch, precision: supported by every GPU, with kernels that fit in its queue."""
SPEED_ROUNDS = 8
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
    bench: CalibrationDevice,
    model: Model,
    gpu: Gpu,
    networks: Sequence[str] = NETWORKS,
    progress: Callable[[str], None] = lambda _: None,
) -> HostSpeed:
    """Dispatch `networks` on a GPU in interleaved rounds: about ten seconds.

    Raises:
        ConfigError: a library of theirs is missing, or the GPU's memory is too small for them.
    """
    from wattloop.predict.calibrate.steps import SubjectTraining, subject_workload

    trainings: dict[str, Any] = {}
    expected_s: dict[str, float] = {}
    for network in networks:
        progress(network)
        name, batch, precision = network.split()
        asked = {"model": name, "batch": int(batch), "precision": precision}
        try:
            workload = subject_workload(name, int(batch), precision)
            expected_s[network] = model.predict(workload, Placement(gpu)).host_s or 0.0
            trainings[network] = SubjectTraining(bench, asked)
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
    for number in range(SPEED_ROUNDS):
        progress(f"round {number + 1} of {SPEED_ROUNDS}")
        rounds.append(
            {network: _dispatch_s(bench, training) for network, training in trainings.items()}
        )
    return speed_of(rounds, expected_s)


def speed_of(rounds: Sequence[dict[str, float]], expected_s: dict[str, float]) -> HostSpeed:
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


def _dispatch_s(bench: CalibrationDevice, training: Any) -> float:
    return sum((dispatch_seconds(bench, training, ROUND_S) or {}).values())
