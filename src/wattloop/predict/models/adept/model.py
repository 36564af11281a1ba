"""ADEPT with the interface of all models."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.adept.calibration import (
    AdeptObjective,
    AdeptSearch,
    calibrate,
    free_parameters,
)
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
