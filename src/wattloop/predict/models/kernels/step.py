"""Time and power of steps: host and GPU time of a workload, for many placements at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from wattloop.hardware.gpus import Gpu
from wattloop.predict import cap_curve
from wattloop.predict.communication import Ring, exchange, ring_of, sharded_exchange
from wattloop.predict.models.kernels.constants import Residuals, Values
from wattloop.predict.models.kernels.kernel_cost import (
    MEMORY,
    WORK,
    OperationTimes,
    operation_times,
    work_of,
)
from wattloop.predict.models.kernels.operation_table import (
    Floats,
    OperationTable,
    is_persistent,
    size_of,
)
from wattloop.predict.prediction import Placement
from wattloop.predict.workload.operation import Kind, Operation, Phase
from wattloop.predict.workload.workload import Workload

# Dispatch time of a step on the host.
#
#     host = sum over phase and kind of calls x cost + further kernels x launch
#          + tensors of lists x cost + module calls x cost + a fixed time of each phase
#
# Costs are looked up by phase and kind, so that a convolution may cost more than an addition.

_UNNAMED = {"host.module_s": Phase.FORWARD, "host.tensor_s": Phase.OPTIMIZER}
"""Phases of costs that do not name one."""


@dataclass(frozen=True, slots=True)
class HostCounts:
    """Work of the host: name of a cost -> how often, in one pass and once per step."""

    one_pass: Mapping[str, float]
    once: Mapping[str, float]

    def of_step(self, passes: int) -> dict[str, float]:
        names = dict.fromkeys([*self.one_pass, *self.once])
        return {
            name: passes * self.one_pass.get(name, 0.0) + self.once.get(name, 0.0) for name in names
        }


def host_counts(workload: Workload) -> HostCounts:
    one_pass: dict[str, float] = {"host.module_s": float(workload.modules)}
    once: dict[str, float] = {}
    if workload.compile_mode:
        one_pass = _compiled_counts(workload)
    for op in workload.operations:
        once[f"host.step_s.{op.phase}"] = 1.0
        counts = once if op.phase is Phase.OPTIMIZER else one_pass
        if workload.compile_mode and counts is one_pass:
            continue
        for name, number in of_operation(op).items():
            counts[name] = counts.get(name, 0.0) + number * op.count
    return HostCounts(one_pass, once)


def _compiled_counts(workload: Workload) -> dict[str, float]:
    """Return the work of one compiled pass: guards, generated code and gradients.

    The generated code calls one kernel after the other, or replays a CUDA graph of all of them.
    """
    counts: dict[str, float] = {}
    replays = is_replayed(workload)
    if workload.compile_mode == "reduce-overhead":
        sizes = workload.origin.get("gradient_sizes")
        listed = sizes.values() if isinstance(sizes, Mapping) else ()
        counts["host.compiled.parameter_s"] = float(sum(n for each in listed for _, n in each))
    for op in workload.operations:
        if op.phase is Phase.OPTIMIZER:
            continue
        counts[f"host.compiled.{'replay' if replays else 'graph'}_s.{op.phase}"] = 1.0
        if replays:
            continue
        if op.kind is Kind.RNN:
            # Dynamo leaves recurrent layers to the interpreter.
            for name, number in of_operation(op).items():
                counts[name] = counts.get(name, 0.0) + number * op.count
            continue
        if "form" in op.detail:
            part, calls = "triton", op.kernels
        else:
            part = "convolution" if op.kind is Kind.CONV else "library"
            calls = op.calls
        name = f"host.compiled.{part}_s.{op.phase}"
        counts[name] = counts.get(name, 0.0) + calls * op.count
    return counts


def is_replayed(workload: Workload) -> bool:
    """Return whether the kernels of a pass are replayed as a CUDA graph."""
    return workload.compile_mode in {"reduce-overhead", "cuda-graph"}


def phase_of(name: str) -> Phase | None:
    """Return the phase of a cost; None where it belongs to several."""
    named = (phase for phase in Phase if phase in name.split("."))
    return _UNNAMED.get(name) or next(named, None)


def host_seconds(counts: HostCounts, values: Values) -> tuple[float, float]:
    return _priced(counts.one_pass, values), _priced(counts.once, values)


def _priced(counts: Mapping[str, float], values: Values) -> float:
    """Sum at the most specific cost: `host.call_s.forward.conv`, else `host.call_s.forward`."""
    return sum(number * values.find(name) for name, number in counts.items())


def of_operation(op: Operation) -> dict[str, float]:
    counts: dict[str, float] = {}
    if is_sorting(op):
        return {f"host.call_s.{op.phase}.sorting": float(op.calls)}
    if op.calls:
        counts[f"host.call_s.{op.phase}.{op.kind}"] = float(op.calls)
    further = op.kernels - max(op.calls, 1)
    if op.kind is Kind.RNN:
        # Whatever the length of the sequence, cuDNN prepares each layer, and the products that give
        # the gradients of its weights, one after the other.
        ways = 1 + size_of(op.detail, "bidirectional", 0.0)
        counts[f"host.layer_s.{op.phase}"] = size_of(op.detail, "layers") * ways
    if further > 0 and not is_persistent(op):
        kind = "rnn" if op.kind is Kind.RNN else "kernel"
        counts[f"host.launch_s.{kind}.{op.phase}"] = float(further)
    if op.kind is Kind.FOREACH:
        counts["host.tensor_s"] = size_of(op.detail, "tensors")
    return counts


UNSORTED_KERNELS = 2
"""Kernels of an embedding's gradient that adds rows as they come."""


def is_sorting(op: Operation) -> bool:
    """Return whether an embedding's gradient sorts its indices first.

    The library that sorts them allocates memory and waits for the GPU to tell how many differ.
    """
    if op.kind is not Kind.EMBEDDING or op.phase is not Phase.BACKWARD:
        return False
    return op.kernels > UNSORTED_KERNELS


@dataclass(frozen=True, slots=True)
class Prepared:
    """Part of a workload that depends on neither GPU nor constants."""

    workload: Workload
    table: OperationTable
    counts: HostCounts

    @classmethod
    def of(cls, workload: Workload) -> "Prepared":
        return cls(workload, OperationTable.of(workload.operations), host_counts(workload))


@dataclass(frozen=True, slots=True)
class StepPart:
    """One pass (forward and backward), or the optimizer.

    Attributes:
        compute_s, memory_s: GPU time that stretches with the clock, and that does not.
        host_s: dispatch time on the calibrated host.
        compute_j, memory_j: work of the multiprocessors at full clock, and of memory.
    """

    compute_s: float
    memory_s: float
    host_s: float
    compute_j: float
    memory_j: float

    @property
    def gpu_s(self) -> float:
        return self.compute_s + self.memory_s


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Cost of a step, independent of the placement.

    Attributes:
        name: the workload's.
        passes, optimizer: the two parts; a step has `accumulate` of the first, one of the second.
        backward_s: GPU time of backward in a pass, which can hide communication.
        accumulate, batch: of the workload.
        gradient_bytes: what data-parallel training has to exchange per step.
        launch_share: part of GPU time that is only the minimum time of small kernels.
        far: distance of operations from microbenchmarks by GPU time; 0 right there, 1 out of reach.
        terms_s: GPU seconds of a step by phase and kind.
        terms_j: its joules of multiprocessors at full clock, and of memory, likewise.
        work: FLOPs by unit, bytes and busy seconds of a step (`work.WORK`).
        counts: what the host has to do.
        gather_bytes: weights as a sharded model gathers them.
    """

    name: str
    passes: StepPart
    optimizer: StepPart
    backward_s: float
    accumulate: int
    batch: int
    gradient_bytes: float
    launch_share: float
    far: float
    terms_s: Mapping[str, float]
    terms_j: Mapping[str, tuple[float, float]]
    work: Mapping[str, float]
    counts: HostCounts
    gather_bytes: float = 0.0


def profile_of(
    prepared: Prepared,
    gpu: Gpu,
    values: Values,
    residuals: Residuals,
    times: OperationTimes | None = None,
) -> StepProfile:
    """Return the cost of a step; `times` are those of its operations, where they are known."""
    workload, table, counts = prepared.workload, prepared.table, prepared.counts
    if workload.compile_mode == "cuda-graph":
        values = values.with_changes({"kernel.minimum_s": values["kernel.replayed_s"]})
    times = times or operation_times(table, values, residuals, gpu)
    total = times.seconds * table.count
    repeats = np.where(table.optimizer, 1.0, float(workload.accumulate))
    work = work_of(table, total, values, gpu)
    pass_host_s, once_host_s = host_seconds(counts, values)
    if not workload.training and not workload.compile_mode:
        pass_host_s *= values["host.untracked"]
    compute_j, memory_j = joules(work, values)
    last = table.optimizer

    def part(rows: Floats, host_s: float) -> StepPart:
        return StepPart(
            compute_s=float((total * times.compute * rows).sum()),
            memory_s=float((total * ~times.compute * rows).sum()),
            host_s=host_s,
            compute_j=float((compute_j * rows).sum()),
            memory_j=float((memory_j * rows).sum()),
        )

    busy = float((total * repeats).sum())
    memory_terms_j = _terms(table, memory_j * repeats)
    floor = values["kernel.minimum_s"] * table.kernels * table.count * repeats
    return StepProfile(
        name=workload.name,
        passes=part((~last).astype(np.float64), pass_host_s),
        optimizer=part(last.astype(np.float64), once_host_s),
        backward_s=float(total[[op.phase is Phase.BACKWARD for op in table.operations]].sum()),
        accumulate=workload.accumulate,
        batch=workload.batch,
        gradient_bytes=workload.gradient_bytes,
        launch_share=float(floor.sum()) / busy if busy else 0.0,
        far=float((times.far * total * repeats).sum()) / busy if busy else 0.0,
        terms_s=_terms(table, total * repeats),
        terms_j={
            name: (of_compute, memory_terms_j[name])
            for name, of_compute in _terms(table, compute_j * repeats).items()
        },
        work={
            name: float((column * repeats).sum()) for name, column in zip(WORK, work, strict=True)
        },
        counts=counts,
        gather_bytes=workload.gradient_bytes
        * (0.5 if workload.precision in ("bf16", "fp16") else 1.0),
    )


def joules(work: Floats, values: Values) -> tuple[Floats, Floats]:
    """Return the dynamic energy of each row: of the multiprocessors, and of memory."""
    energies = np.array([values.find(f"power.{name}") for name in WORK])
    each = work * energies[:, None]
    is_memory = np.array([name == MEMORY for name in WORK])
    return each[~is_memory].sum(axis=0), each[is_memory].sum(axis=0)


def _terms(table: OperationTable, values: Floats) -> dict[str, float]:
    terms: dict[str, float] = {}
    for op, value in zip(table.operations, values.tolist(), strict=True):
        name = f"{op.phase}.{op.kind}"
        terms[name] = terms.get(name, 0.0) + value
    return dict(sorted(terms.items(), key=lambda item: -item[1]))


# Time and power of many steps at once.
#
#     step   = max(max(GPU, host) + communication, data)
#     GPU    = compute / f + memory,   f = clock over the clock the GPU would choose
#     energy = (idle + static) step + compute_j V(f)^2 + memory_j
#
# When energy / step is above the cap, f falls until it is not: only compute-bound time stretches
# (`predict.capped`).
TINY_S = 1e-12


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Inputs of many steps; one value of each array per step.

    Attributes:
        compute_s, memory_s: GPU time at full clock that stretches with the clock, that does not.
        host_s: dispatch time on the host at hand.
        compute_j, memory_j: dynamic energy at full clock of multiprocessors, of memory.
        communication_s: exchange of gradients that nothing hides.
        data_s: time the data loader needs for the step's samples.
        cap_w: power limit.
        clock_share: locked clock over the one the GPU would choose; 1 when it is free.
    """

    compute_s: Floats
    memory_s: Floats
    host_s: Floats
    compute_j: Floats
    memory_j: Floats
    communication_s: Floats
    data_s: Floats
    cap_w: Floats
    clock_share: Floats

    @classmethod
    def joined(cls, parts: Sequence["StepBatch"]) -> "StepBatch":
        return cls(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)))


@dataclass(frozen=True, slots=True)
class StepResults:
    """Results of each step: time, mean power, busy GPU time, and clock share."""

    step_s: Floats
    power_w: Floats
    gpu_s: Floats
    clock_share: Floats


def step_results(steps: StepBatch, values: Values) -> StepResults:
    gpu_s = steps.compute_s / steps.clock_share + steps.memory_s
    waiting_s = steps.communication_s + unhidden_s(gpu_s, steps.host_s, values)
    profile = cap_curve.ClockedStep(
        compute_s=steps.compute_s,
        memory_s=steps.memory_s,
        static_w=values["power.idle_w"] + values["power.static_w"],
        compute_j=steps.compute_j,
        memory_j=steps.memory_j,
        # Waiting for data is treated like waiting for the host.
        host_s=np.maximum(steps.host_s, steps.data_s - waiting_s),
        waiting_s=waiting_s,
    )
    settled = cap_curve.capped_step(
        profile,
        cap_w=steps.cap_w * values["power.cap_share"],
        clock=steps.clock_share,
        voltage=voltage_of(values),
    )
    gpu_s = steps.compute_s / settled.clock + steps.memory_s
    return StepResults(settled.step_s, settled.power_w, gpu_s, settled.clock)


def unhidden_s(gpu_s: Floats, host_s: Floats, values: Values) -> Floats:
    """Return the time of a step beyond the longer of GPU and host, which alternate in waiting."""
    longer, shorter = np.maximum(gpu_s, host_s), np.minimum(gpu_s, host_s)
    sharpness = values["host.overlap"]
    evenness = (shorter / np.maximum(longer, TINY_S)) ** sharpness
    return np.asarray(longer * ((1 + evenness) ** (1 / sharpness) - 1), dtype=np.float64)


def voltage_of(values: Values) -> cap_curve.VoltageCurve:
    return cap_curve.VoltageCurve(values["power.voltage_floor"], values["power.voltage_knee"])


def all_pairs(
    profiles: Sequence[StepProfile], placements: Sequence[Placement], values: Values | None = None
) -> StepBatch:
    """Return every profile on every placement; placements vary fastest.

    `values` are needed where a placement states the power of an exchange.
    """

    def of_profile(values: list[float]) -> Floats:
        return np.repeat(np.array(values, dtype=np.float64), len(placements))

    def of_placement(values: list[float]) -> Floats:
        return np.tile(np.array(values, dtype=np.float64), len(profiles))

    sums = [_sums(profile) for profile in profiles]
    columns = [of_profile([row[i] for row in sums]) for i in range(5)]
    compute_s, memory_s, host_s, compute_j, memory_j = columns
    samples = of_profile([float(p.batch * p.accumulate) for p in profiles])
    host_speed = of_placement([p.host_speed for p in placements])
    loader = of_placement([p.samples_s if p.samples_s else np.inf for p in placements])
    hops_s = of_placement([2 * (p.gpus - 1) * p.exchange_hop_s for p in placements])
    communication_s = _exposed_s(profiles, placements) + hops_s
    if values is not None and any(p.exchange_w is not None for p in placements):
        rest_w = values["power.idle_w"] + values["power.static_w"]
        above_w = [max((p.exchange_w or rest_w) - rest_w, 0.0) for p in placements]
        memory_j = memory_j + of_placement(above_w) * communication_s
    return StepBatch(
        compute_s=compute_s,
        memory_s=memory_s,
        host_s=host_s / host_speed,
        compute_j=compute_j,
        memory_j=memory_j,
        communication_s=communication_s,
        data_s=samples / loader,
        cap_w=of_placement([p.cap_w or p.gpu.tdp_w for p in placements]),
        clock_share=of_placement(
            [
                min(p.clock_mhz / p.gpu.boost_clock_mhz, 1.0) if p.clock_mhz else 1.0
                for p in placements
            ]
        ),
    )


def _sums(profile: StepProfile) -> tuple[float, ...]:
    times, one, last = profile.accumulate, profile.passes, profile.optimizer
    return (
        times * one.compute_s + last.compute_s,
        times * one.memory_s + last.memory_s,
        times * one.host_s + last.host_s,
        times * one.compute_j + last.compute_j,
        times * one.memory_j + last.memory_j,
    )


def _exposed_s(profiles: Sequence[StepProfile], placements: Sequence[Placement]) -> Floats:
    """Return the exchange of gradients that backward does not hide, flattened over placements."""
    backward_s = np.array([p.backward_s for p in profiles])
    gradient_bytes = np.array([p.gradient_bytes for p in profiles])
    exposed_s = np.zeros((len(profiles), len(placements)))
    rings: dict[tuple[Ring, int], list[int]] = {}
    for index, placement in enumerate(placements):
        if placement.gpus > 1:
            sharding = max(placement.zero, 1)
            rings.setdefault((ring_of(placement), sharding), []).append(index)
    for (ring, zero), indices in rings.items():
        if zero == 1:
            found = exchange(gradient_bytes, backward_s, ring).exposed_s
        else:
            passes = np.array([float(p.accumulate) for p in profiles])
            forward_s = np.array([p.passes.gpu_s for p in profiles]) - backward_s
            gather_bytes = np.array([p.gather_bytes for p in profiles])
            found = (
                passes
                * sharded_exchange(
                    gather_bytes, gradient_bytes, forward_s, backward_s, ring, again=zero == 3
                ).exposed_s
            )
        exposed_s[:, indices] = found[:, None]
    return exposed_s.ravel()
