"""ADEPT with the interface of all models, and its fit (equations 4.16 to 4.18).

The fit has the least 0.6 MAPE_time + 0.4 MAPE_power.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.adept.equations import (
    ALBERT,
    BF16,
    PARAMETERS,
    SATURATIONS,
    AdeptStep,
    shipped_constants,
    step_of,
)
from wattloop.predict.models.adept.features import AdeptFeatures
from wattloop.predict.models.model import MeasuredStep, Model
from wattloop.predict.prediction import Placement, Prediction, Regime
from wattloop.predict.workload.workload import Workload

Array = NDArray[np.float64]
TIME_WEIGHT, POWER_WEIGHT = 0.6, 0.4


@dataclass(frozen=True, slots=True)
class AdeptSearch:
    """Settings of the differential evolution; strategy and rates are the thesis's.

    Attributes:
        iterations: at most so many generations (the thesis: 50,000).
        seed: of everything random.
        population: candidates per free parameter.
        polish: at most so many steps of L-BFGS-B afterwards.
    """

    iterations: int = 600
    seed: int = 0
    population: int = 15
    polish: int = 1000


class AdeptObjective:
    """The composite error in percent of candidates, given as columns of scaled parameters."""

    def __init__(
        self,
        features: AdeptFeatures,
        step_s: Sequence[float],
        power_w: Sequence[float | None],
        free: Sequence[str],
        saturation: str,
    ) -> None:
        self.free = tuple(free)
        self._features = features
        self._step_s = np.asarray(step_s, float)
        self._power_w = np.array([np.nan if watts is None else watts for watts in power_w], float)
        self._has_power = not np.isnan(self._power_w).all()
        self._saturation = saturation
        self._rest = {name: each.start for name, each in PARAMETERS.items()}
        entries = [PARAMETERS[name] for name in free]
        self._log = np.array([entry.logarithmic for entry in entries])
        self.bounds = [
            (np.log(entry.low), np.log(entry.high))
            if entry.logarithmic
            else (entry.low, entry.high)
            for entry in entries
        ]

    def __call__(self, scaled: Array) -> Array:
        """Return 0.6 MAPE_time + 0.4 MAPE_power of every column."""
        columns = scaled.reshape(len(self.free), -1)
        values = self._values(columns)
        parameters = {**self._rest, **dict(zip(self.free, values[:, :, None], strict=True))}
        step = step_of(self._features, parameters, self._saturation)
        time = np.mean(abs(step.step_s / self._step_s - 1), axis=1)
        if not self._has_power:
            return np.asarray(100 * time)
        power = np.nanmean(abs(step.power_w / self._power_w - 1), axis=1)
        return np.asarray(100 * (TIME_WEIGHT * time + POWER_WEIGHT * power))

    def scaled(self, parameters: Mapping[str, float]) -> Array:
        """Return one candidate in scaled form, within the bounds."""
        values = np.array([parameters[name] for name in self.free], float)
        values = np.where(self._log, np.log(np.maximum(values, 1e-300)), values)
        return np.asarray(np.clip(values, *np.array(self.bounds).T))

    def parameters(self, scaled: Array) -> dict[str, float]:
        found = dict(zip(self.free, self._values(scaled[:, None])[:, 0].tolist(), strict=True))
        # The exponential of a bound's logarithm may lie slightly outside the bound.
        limits = {name: (PARAMETERS[name].low, PARAMETERS[name].high) for name in self.free}
        kept = {name: min(max(found[name], low), high) for name, (low, high) in limits.items()}
        return {**self._rest, **kept}

    def _values(self, columns: Array) -> Array:
        return np.where(
            self._log[:, None], np.exp(np.where(self._log[:, None], columns, 0)), columns
        )


def free_parameters(features: AdeptFeatures, scalars: Sequence[str]) -> list[str]:
    """Return the free parameters for these rows: global ones, and scalars with rows that use them.

    What no row depends on keeps its start, which is 1 for a scalar: that of an architecture never
    seen is 1.
    """
    silent = set(ALBERT + BF16) - set(scalars)
    if not features.albert.any():
        silent |= set(ALBERT)
    if not features.bf16.any():
        silent |= set(BF16)
    if not (features.bf16 * features.conv_s).any():
        silent.add("bf16_conv")
    if not features.conv_s.any():
        silent |= {"beta_conv", "conv_time", "r_conv_channels", "r_conv_pixels"}
    if not features.gemm_s.any():
        silent |= {"beta_gemm", "gemm_time", "r_gemm_m", "r_gemm_n", "r_gemm_k"}
    if not (features.gpus > 1).any():
        silent |= {"hop_s", "link_share"}
    if not features.optimizer_memory_s.any():
        silent.add("optimizer_time")
    return [name for name in PARAMETERS if name not in silent]


def calibrate(
    objective: AdeptObjective, search: AdeptSearch, start: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Fit all parameters: differential evolution, then L-BFGS-B from its best candidate.

    Args:
        objective: of the points, over the free parameters.
        search: how long, and from which seed.
        start: parameters to put among the first candidates.
    """
    try:
        from scipy.optimize import differential_evolution, minimize
    except ImportError:
        raise ConfigError(
            "fitting adept needs scipy, which is not installed: pip install 'wattloop[analyze]'"
        ) from None
    found = differential_evolution(
        objective,
        objective.bounds,
        strategy="best1bin",
        popsize=search.population,
        mutation=(0.5, 1.5),
        recombination=0.7,
        init="latinhypercube",
        maxiter=search.iterations,
        seed=search.seed,
        tol=1e-6,
        polish=False,
        updating="deferred",
        vectorized=True,
        x0=None if start is None else objective.scaled(start),
    )
    low, high = np.array(objective.bounds).T
    width = 1e-6 * (high - low)

    def slope(x: Array) -> Array:
        # All differences in one call of the objective.
        steps = np.diag(np.where(x + width > high, -width, width))
        return np.asarray((objective(x[:, None] + steps) - objective(x)) / np.diag(steps))

    polished = minimize(
        lambda x: float(objective(x)[0]),
        found.x,
        jac=slope,
        method="L-BFGS-B",
        bounds=objective.bounds,
        options={"maxiter": search.polish},
    )
    best = polished.x if polished.fun < found.fun else found.x
    return objective.parameters(best)


TERMS = ("pass", "optimizer", "communication", "launch", "fixed")


class Adept(Model):
    """Model of the thesis: whole-step sums and mean dimensions, 28 fitted parameters.

    Args:
        parameters: name -> value; None before `fit`.
        saturation: one of `SATURATIONS`.
        scalars: which of the scalars for ALBERT and BF16 `fit` may move; the others stay 1.
        search: settings of `fit`.
    """

    name: ClassVar[str] = "adept"

    def __init__(
        self,
        parameters: Mapping[str, float] | None = None,
        *,
        saturation: str = "sigmoid",
        scalars: Sequence[str] = ALBERT + BF16,
        search: AdeptSearch | None = None,
    ) -> None:
        if saturation not in SATURATIONS:
            raise ConfigError(
                f"saturation of adept: {saturation!r} is none of {', '.join(SATURATIONS)}"
            )
        self._parameters = parameters
        self._saturation = saturation
        self._scalars = tuple(scalars)
        self._search = search or AdeptSearch()

    @classmethod
    def from_constants(cls, constants: Mapping[str, object]) -> Self:
        whole = constants.get("constants")  # a file as shipped: with model, GPU and source
        constants = whole if isinstance(whole, Mapping) else constants
        given = constants.get("parameters")
        if not isinstance(given, Mapping):
            raise ConfigError("constants of adept: no mapping `parameters`; fit them again")
        if given.keys() != PARAMETERS.keys():
            odd = ", ".join(sorted(given.keys() ^ PARAMETERS.keys()))
            raise ConfigError(f"constants of adept: missing or unknown parameters: {odd}")
        try:
            parameters = {name: float(value) for name, value in given.items()}
        except (TypeError, ValueError) as error:
            raise ConfigError(f"constants of adept: {error}; fit them again") from None
        for name, each in PARAMETERS.items():
            if not each.low <= parameters[name] <= each.high:
                raise ConfigError(
                    f"constants of adept: {name} is {parameters[name]:g}, and has to lie between "
                    f"{each.low:g} and {each.high:g}; fit them again"
                )
        return cls(parameters, saturation=str(constants.get("saturation", "sigmoid")))

    @classmethod
    def for_gpu(cls, gpu: Gpu) -> Self:
        """Return the shipped model of this GPU; an error names the available GPUs."""
        return cls.from_constants(shipped_constants(gpu))

    def fit(self, points: Sequence[MeasuredStep]) -> Self:
        if not points:
            raise ConfigError("adept: no points to fit to")
        features = AdeptFeatures.of((point.workload, point.placement) for point in points)
        objective = AdeptObjective(
            features,
            [point.step_s for point in points],
            [point.power_w for point in points],
            free_parameters(features, self._scalars),
            self._saturation,
        )
        return self._with(calibrate(objective, self._search, self._parameters))

    def predict(self, workload: Workload, placement: Placement) -> Prediction:
        step = self._step(workload, placement)
        terms = {term: float(getattr(step, f"{term}_s")[0]) for term in TERMS}
        warnings = tuple(
            f"adept ignores: {what}"
            for what, given in (
                ("locked clock", placement.clock_mhz),
                ("data rate", placement.samples_s),
            )
            if given
        )
        if placement.cap_w:
            warnings += ("adept takes a power cap for the limit of power, not of speed",)
        return Prediction(
            step_s=float(step.step_s[0]),
            power_w=float(step.power_w[0]),
            gpus=placement.gpus,
            regime=_regime(step),
            terms_s=terms,
            gpu_s=terms["pass"] + terms["optimizer"],
            host_s=terms["launch"] + terms["fixed"],
            model=f"adept ({placement.gpu.name}, {self._saturation})",
            warnings=warnings,
        )

    def constants(self) -> Mapping[str, object]:
        return {"parameters": dict(self.parameters), "saturation": self._saturation}

    @property
    def parameters(self) -> Mapping[str, float]:
        return self._known()

    def _step(self, workload: Workload, placement: Placement) -> AdeptStep:
        return step_of(AdeptFeatures.of([(workload, placement)]), self._known(), self._saturation)

    def _known(self) -> Mapping[str, float]:
        if self._parameters is None:
            raise ConfigError("adept has no parameters yet: fit it to measured points first")
        return self._parameters

    def _with(self, parameters: Mapping[str, float]) -> Self:
        return type(self)(
            parameters, saturation=self._saturation, scalars=self._scalars, search=self._search
        )


def _regime(step: AdeptStep) -> Regime:
    """Return the regime: the largest term; for the pass, its bottleneck."""
    overhead_s = float(step.launch_s[0] + step.fixed_s[0])
    computing = bool(step.compute_s[0] >= step.memory_s[0])
    largest = max(
        (float(step.pass_s[0]), Regime.COMPUTE if computing else Regime.MEMORY),
        (float(step.optimizer_s[0]), Regime.MEMORY),
        (float(step.communication_s[0]), Regime.COMMUNICATION),
        (overhead_s, Regime.LAUNCH),
        key=lambda term: term[0],
    )
    return largest[1]
