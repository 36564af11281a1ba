"""Training steps of small models: time, energy and power over seconds, and a profile."""

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from wattloop.predict.calibrate.families.base import Params
from wattloop.predict.calibrate.families.optimizer import make_optimizer
from wattloop.predict.calibrate.gpu_sensor import GpuSensor, SensorSampler
from wattloop.predict.calibrate.host import dispatch_seconds
from wattloop.predict.calibrate.machine import CalibrationDevice, probe
from wattloop.predict.calibrate.zoo import Subject, subject
from wattloop.predict.workload.workload import Workload


def subject_workload(
    name: str, batch: int, precision: str, make: Callable[[str], Subject] = subject
) -> Workload:
    """Trace one training step of the subject that `make` builds, as `steps` trains it."""
    import torch

    from wattloop.predict import trace

    with torch.device("meta"):
        chosen = make(name)
        inputs = chosen.inputs(batch, torch.device("meta"))
    optimizer = "sgd+momentum" if chosen.optimizer == "sgd" else chosen.optimizer
    return trace(
        chosen.model, inputs, loss=lambda out: out, precision=precision,
        optimizer=optimizer, name=name,
    )  # fmt: skip


PARTS = 4
"""Parts of its window in which the host's pace is recorded."""
PROFILED_STEPS = 3
LONGEST_NAME = 120
"""Limit of kernel names, which are expanded C++ templates."""


class SubjectTraining:
    """One model in training, in a plain loop; `make` builds it from its name."""

    def __init__(
        self,
        bench: CalibrationDevice,
        params: Mapping[str, object],
        make: Callable[[str], Subject] = subject,
    ) -> None:
        p = Params(params)
        torch = bench.torch
        bench.precision("tf32" if p.text("precision") == "tf32" else "fp32")
        with torch.device(bench.device):
            self.subject = make(p.text("model"))
        self._bench = bench
        self._model = self.subject.model.to(bench.device).train()
        self._inputs = self.subject.inputs(p.number("batch"), bench.device)
        self._autocast = p.text("precision") == "bf16"
        self._optimizer = make_optimizer(
            torch, self.subject.optimizer, "foreach", self._model.parameters()
        )
        self.params = sum(x.numel() for x in self._model.parameters())

    def step(self) -> None:
        self.forward()
        self.backward()
        self.update()

    def forward(self) -> None:
        torch = self._bench.torch
        self._optimizer.zero_grad(set_to_none=True)
        region: Any = contextlib.nullcontext()
        if self._autocast:
            region = torch.autocast(self._bench.device.type, dtype=torch.bfloat16)
        with region:
            self._loss = self._model(*self._inputs)

    def backward(self) -> None:
        """Compute the gradients; the graph is freed, as in a plain loop."""
        self._loss.backward()

    def update(self) -> None:
        self._optimizer.step()


def measure_step(
    bench: CalibrationDevice,
    params: Mapping[str, object],
    sensor: GpuSensor,
    *,
    warm_up_s: float = 1.1,
    window_s: float = 2.0,
    build: Callable[[CalibrationDevice, Mapping[str, object]], SubjectTraining] = SubjectTraining,
) -> Mapping[str, object]:
    """Return the columns of `h200_train_steps.jsonl`, with the host's own time and pace.

    Time is by the wall clock, power by the counter.
    """
    if bench.on_gpu:
        bench.torch.cuda.reset_peak_memory_stats(bench.device)
        before = bench.torch.cuda.memory_allocated(bench.device)
    training = build(bench, params)
    rough_s = _warm_up(bench, training.step, warm_up_s)
    steps = max(3, round(window_s / rough_s))
    probed = [probe(bench)]
    marks_s = []
    with SensorSampler(sensor) as watch:
        begin_s = time.perf_counter()
        for number in range(steps):
            training.step()
            if number * PARTS // steps != (number + 1) * PARTS // steps:
                marks_s.append(time.perf_counter())
        bench.synchronize()
        end_s = time.perf_counter()
        drawn = watch.drawn(begin_s, end_s)
    probed.append(probe(bench))
    step_s = (end_s - begin_s) / steps
    peak_gib = None
    if bench.on_gpu:
        peak_gib = (bench.torch.cuda.max_memory_allocated(bench.device) - before) / 2**30
    return {
        **{name: params[name] for name in ("model", "batch", "precision")},
        "optimizer": training.subject.optimizer,
        "steps": steps,
        "step_s": step_s,
        "energy_j_per_step": None if drawn.power_w is None else drawn.power_w * step_s,
        "avg_power_w": drawn.power_w,
        "polled_power_w": drawn.polled_w,
        "sm_clock_mhz": drawn.clock_mhz,
        "temp_c": drawn.temp_c,
        "peak_mem_gib": peak_gib,
        "params": training.params,
        "window_s": end_s - begin_s,
        "round": params.get("round"),
        "marks_s": [round(mark_s - begin_s, 6) for mark_s in marks_s],
        "host_s": dispatch_seconds(bench, training),
        "probes": probed,
    }


def _warm_up(bench: CalibrationDevice, step: Callable[[], None], seconds: float) -> float:
    step()
    bench.synchronize()
    begin = time.perf_counter()
    done = 0
    while done < 2 or time.perf_counter() - begin < seconds:
        step()
        done += 1
        if done % 3 == 0:
            bench.synchronize()
    bench.synchronize()
    return (time.perf_counter() - begin) / done


def profile_step(bench: CalibrationDevice, params: Mapping[str, object]) -> Mapping[str, object]:
    """Return GPU time by operation (name, shapes, calls, us) and by kernel, for one step."""
    from torch.profiler import ProfilerActivity, profile

    training = SubjectTraining(bench, params)
    for _ in range(3):
        training.step()
    bench.synchronize()
    activities = [ProfilerActivity.CPU]
    if bench.on_gpu:
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True) as taken:
        for _ in range(PROFILED_STEPS):
            training.step()
        bench.synchronize()
    operations, kernels = [], []
    for event in taken.key_averages(group_by_input_shape=True):
        device_us = float(getattr(event, "self_device_time_total", 0.0)) / PROFILED_STEPS
        if device_us <= 0 and bench.on_gpu:
            continue
        calls = event.count / PROFILED_STEPS
        if str(event.device_type).endswith("CPU"):
            shapes = str([shape for shape in event.input_shapes if shape])
            operations.append([event.key, shapes, calls, round(device_us, 2)])
        elif not event.key.startswith("Optimizer."):  # a range around kernels, not a kernel
            kernels.append([event.key[:LONGEST_NAME], calls, round(device_us, 2)])
    return {
        "operations": sorted(operations, key=lambda row: -row[-1]),
        "kernels": sorted(kernels, key=lambda row: -row[-1]),
    }
