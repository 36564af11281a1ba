"""The kernels model: a step as the sum of its operations, in time and in energy."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Self

from wattloop.hardware.gpus import Gpu
from wattloop.predict.intervals import HostSpread, Intervals
from wattloop.predict.models.kernels.constants import KernelConstants, constants_for
from wattloop.predict.models.kernels.kernel_cost import operation_times
from wattloop.predict.models.kernels.operation_table import cost_key
from wattloop.predict.models.kernels.step import (
    Prepared,
    StepBatch,
    StepProfile,
    StepResults,
    all_pairs,
    profile_of,
    step_results,
    voltage_of,
)
from wattloop.predict.models.model import MeasuredStep, Model
from wattloop.predict.prediction import AT_REST, Placement, Prediction, Regime
from wattloop.predict.workload.operation import Operation, Phase
from wattloop.predict.workload.workload import Workload

SPEC_ONLY = (
    "no calibration of {gpu} is known: constants are guessed from its data sheet and from other "
    "GPUs; run 'wattloop calibrate collect' on one, then 'wattloop calibrate fit'"
)


class KernelModel(Model):
    """Time and power by operations: tiles, bandwidths, launches, joules."""

    name: ClassVar[str] = "kernels"

    def __init__(
        self, constants: KernelConstants | None = None, *, source: str = "spec-only"
    ) -> None:
        self._constants = constants or KernelConstants()
        self._source = source
        plain = self._constants.intervals
        self._intervals = Intervals.from_dict(plain) if plain else None
        self._hosts = HostSpread.of(self._constants.made.get("hosts", {}).values())
        self._prepared: dict[int, Prepared] = {}
        self._profiles: dict[tuple[int, Gpu], tuple[Workload, StepProfile]] = {}

    @classmethod
    def for_gpu(cls, gpu: Gpu) -> Self:
        constants, source = constants_for(gpu)
        return cls(constants, source=source)

    def fit(self, points: Sequence[MeasuredStep]) -> Self:
        from wattloop.predict.models.kernels.fit import fitted_to_points

        constants = fitted_to_points(self._constants, points, self._prepare)
        model = type(self)(constants, source="fitted")
        model._prepared = self._prepared
        return model

    def predict(self, workload: Workload, placement: Placement) -> Prediction:
        profile = self.profile(workload, placement.gpu)
        steps = all_pairs([profile], [placement], self._constants.values)
        result = step_results(steps, self._constants.values)
        step_s = float(result.step_s[0])
        share = float(result.clock_share[0])
        warnings = (
            [SPEC_ONLY.format(gpu=placement.gpu.product)] if self._source == "spec-only" else []
        )
        prediction = Prediction(
            step_s=step_s,
            power_w=float(result.power_w[0]),
            gpus=placement.gpus,
            regime=_regime(steps, result, profile),
            terms_s=_terms(steps, profile, share),
            terms_j=self._terms_j(profile, share, step_s * float(result.power_w[0])),
            gpu_s=float(result.gpu_s[0]),
            host_s=float(steps.host_s[0]),
            far=profile.far,
            clock_mhz=share * placement.gpu.boost_clock_mhz,
            model=f"{self.name} ({placement.gpu.name}, {self._source})",
            warnings=tuple(warnings),
        )
        if self._intervals is None:
            return prediction
        hosts = None if placement.is_host_known else self.hosts(workload)
        return self._intervals.around(prediction, workload, placement, hosts=hosts)

    def hosts(self, workload: Workload) -> HostSpread | None:
        """Return what is known of hosts other than the one of these constants."""
        if self._hosts is not None and workload.compile_mode:
            return self._hosts._replace(mean=0.0)  # compiled steps were measured on a usual host
        return self._hosts

    def _terms_j(self, profile: StepProfile, share: float, energy_j: float) -> dict[str, float]:
        """Return what each kind of work adds, and what the GPU draws whatever it does."""
        squared = float(voltage_of(self._constants.values).squared(share))
        terms = {name: c * squared + m for name, (c, m) in profile.terms_j.items()}
        return {**terms, AT_REST: max(energy_j - sum(terms.values()), 0.0)}

    def placed(self, point: MeasuredStep) -> Placement:
        """Placement at its host's speed, where the fit has other points of its session."""
        speed = self._constants.made.get("hosts", {}).get(point.host)
        return point.placement if speed is None else replace(point.placement, host_speed=speed)

    def predict_many(
        self, workloads: Sequence[Workload], placements: Sequence[Placement]
    ) -> StepResults:
        """Predict every workload on every placement: arrays of shape (workloads, placements).

        All placements have the same GPU type, whose constants these are.
        """
        profiles = [self.profile(workload, placements[0].gpu) for workload in workloads]
        result = step_results(
            all_pairs(profiles, placements, self._constants.values), self._constants.values
        )
        shape = (len(workloads), len(placements))
        return StepResults(
            step_s=result.step_s.reshape(shape),
            power_w=result.power_w.reshape(shape),
            gpu_s=result.gpu_s.reshape(shape),
            clock_share=result.clock_share.reshape(shape),
        )

    def profile(self, workload: Workload, gpu: Gpu) -> StepProfile:
        """Return the sums over operations, computed once per workload and GPU."""
        key = (id(workload), gpu)
        known = self._profiles.get(key)
        if known is None or known[0] is not workload:
            values, residuals = self._constants.values, self._constants.residuals
            known = (workload, profile_of(self._prepare(workload), gpu, values, residuals))
            self._profiles[key] = known
        return known[1]

    def _prepare(self, workload: Workload) -> Prepared:
        """Return what does not depend on constants, once; models fitted from this one share it."""
        known = self._prepared.get(id(workload))
        if known is None or known.workload is not workload:
            known = self._prepared[id(workload)] = Prepared.of(workload)
        return known

    def timed_operations(self, workload: Workload, gpu: Gpu) -> list[tuple[Operation, float]]:
        """Return operations on the GPU, each with the GPU seconds of all its calls in a step."""
        table = self._prepare(workload).table
        times = operation_times(table, self._constants.values, self._constants.residuals, gpu)
        call_s = dict(zip(map(cost_key, table.operations), times.seconds.tolist(), strict=True))
        passes = dict.fromkeys(Phase, workload.accumulate) | {Phase.OPTIMIZER: 1}
        return [
            (op, call_s[key] * op.count * passes[op.phase])
            for op in workload.operations
            if (key := cost_key(op)) in call_s
        ]

    def constants(self) -> Mapping[str, object]:
        return self._constants.to_plain()

    @property
    def kernel_constants(self) -> KernelConstants:
        return self._constants

    @property
    def intervals(self) -> Intervals | None:
        return self._intervals

    def with_intervals(self, intervals: Intervals) -> Self:
        constants = replace(self._constants, intervals=intervals.to_dict())
        return type(self)(constants, source=self._source)


def _regime(steps: StepBatch, result: StepResults, profile: StepProfile) -> Regime:
    step_s, gpu_s = result.step_s[0], result.gpu_s[0]
    if steps.data_s[0] >= step_s:
        return Regime.DATA
    if steps.communication_s[0] > max(gpu_s, steps.host_s[0]):
        return Regime.COMMUNICATION
    if steps.host_s[0] > gpu_s or profile.launch_share > 0.5:
        return Regime.LAUNCH
    compute_s = steps.compute_s[0] / result.clock_share[0]
    return Regime.COMPUTE if compute_s > steps.memory_s[0] else Regime.MEMORY


def _terms(steps: StepBatch, profile: StepProfile, share: float) -> dict[str, float]:
    terms = dict(profile.terms_s)
    slowed = float(steps.compute_s[0]) * (1 / share - 1)
    named = {
        "slower clock": slowed,
        "waiting for the host": max(
            float(steps.host_s[0] - steps.compute_s[0] / share - steps.memory_s[0]), 0.0
        ),
        "communication": float(steps.communication_s[0]),
    }
    return {**terms, **{name: value for name, value in named.items() if value > 0}}
