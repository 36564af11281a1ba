"""Total of a whole run: time, energy, cost and carbon, with their intervals.

Errors of a prediction are the same in every step, so intervals grow as the run does.
"""

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from wattloop.accounting.carbon import Intensity, find_intensity
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.core.units import kwh_from_joules
from wattloop.predict.node import NodePrediction, node_prediction, node_with_settings
from wattloop.predict.prediction import Interval, Prediction
from wattloop.predict.request import is_number

if TYPE_CHECKING:
    from wattloop.predict.forecast import Forecast

MOST = 1e15
"""Larger numbers of steps, epochs or samples are typing errors."""


class PredictedAmount(NamedTuple):
    """Value with its interval; None when the model has no residuals."""

    value: float
    interval: Interval | None = None

    def times(self, factor: float) -> "PredictedAmount":
        if self.interval is None:
            return PredictedAmount(self.value * factor)
        low, high, confidence = self.interval
        return PredictedAmount(
            self.value * factor, Interval(low * factor, high * factor, confidence)
        )


@dataclass(frozen=True, slots=True)
class RunTotal:
    """Total of a run of `steps` steps.

    Attributes:
        steps: optimizer steps.
        time_s: from the first step to the last; starting, validating and saving are not in it.
        energy_j: of the scope, without the room.
        scope: `gpu`, or `node` when a node was predicted.
        facility_j: energy with the room's PUE, which cost and carbon are for.
        cost: in `currency`; None with `cost_reason` without a tariff.
        carbon_g: grams of CO2e; None with `carbon_reason` without an intensity.
        intensity: what the carbon was reckoned with.
        notes: what was assumed, in words.
    """

    steps: int
    time_s: PredictedAmount
    energy_j: PredictedAmount
    scope: str
    facility_j: PredictedAmount
    pue: float
    cost: PredictedAmount | None
    currency: str
    carbon_g: PredictedAmount | None
    intensity: Intensity | None
    cost_reason: str = ""
    carbon_reason: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunLength:
    """Extent of a forecast: a step or a whole run, GPUs alone or their nodes.

    Attributes:
        steps: optimizer steps of the run; or
        epochs, samples: passes over a data set of so many samples.
        node: whether the whole node counts, not only its GPUs.
        settings: tariff, carbon, PUE, and what is known of the node.
    """

    steps: int | None = None
    epochs: float | None = None
    samples: int | None = None
    node: bool = False
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        for name in ("steps", "epochs", "samples"):
            value = getattr(self, name)
            if value is None:
                continue
            if not is_number(value):
                raise ConfigError(f"{name} {value!r}: must be a number above 0")
            if not value > 0:
                raise ConfigError(f"{name} {value:g}: must be above 0")
            if value >= MOST:
                raise ConfigError(f"{name} {MOST:g} or more: no run is that long; give fewer")
            if name != "epochs" and value % 1:
                raise ConfigError(f"{name} {value:g}: must be a whole number")
        if self.steps is not None and (self.epochs is not None or self.samples is not None):
            raise ConfigError(
                f"steps {self.steps}: give the number of steps, or epochs and samples, not both"
            )
        for name, other in (("epochs", "samples"), ("samples", "epochs")):
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise ConfigError(
                    f"{name} {getattr(self, name):g}: give {other} as well: steps are epochs x "
                    "samples / batch"
                )

    def run_steps(self, global_batch: int) -> int | None:
        """Return the optimizer steps of the run; None for a step alone.

        An epoch's last batch counts, however small it is.
        """
        if self.epochs is None or self.samples is None:
            return None if self.steps is None else int(self.steps)
        # 0.07 epochs of 100 steps are 7 steps, not 7.000000000000001 rounded up
        return max(1, math.ceil(round(self.epochs * math.ceil(self.samples / global_batch), 6)))

    def of(self, forecast: "Forecast") -> "Forecast":
        """Return the forecast with its node and run, where they are asked for."""
        prediction, node, run = forecast.prediction, None, None
        if self.node:
            parts = node_with_settings(forecast.placement.gpu, self.settings)
            node = node_prediction(prediction, parts)
        steps = self.run_steps(forecast.samples)
        if steps is not None:
            run = run_total(prediction, steps, self.settings, node=node)
        return replace(forecast, node=node, run=run)


def run_total(
    prediction: Prediction,
    steps: int,
    settings: Settings,
    *,
    node: NodePrediction | None = None,
) -> RunTotal:
    """Return the total of the run: of its GPUs, or of its nodes when they were predicted.

    Args:
        prediction: one step.
        steps: how many.
        settings: tariff, currency, zone or carbon intensity, PUE.
        node: the same step's node.
    """
    time_s = PredictedAmount(prediction.step_s, prediction.step_interval).times(steps)
    if node is None:
        step_j = PredictedAmount(prediction.energy_j, prediction.energy_interval)
    else:
        step_j = _node_step_j(prediction, node)
    energy_j = step_j.times(steps)
    facility_j = energy_j.times(settings.pue)
    kwh = facility_j.times(kwh_from_joules(1.0))
    tariff = settings.tariff_per_kwh
    found = find_intensity(settings)
    intensity = found.found
    scope = "gpu" if node is None else "node"
    notes = [*found.notes]
    if node is None:
        notes.append("energy of the GPUs alone: CPU, memory, fans and power supply are not in it")
    if settings.pue == 1.0 and "pue" not in settings.sources:
        notes.append("PUE 1: cooling and distribution of the room are not counted; set pue")
    return RunTotal(
        steps=steps,
        time_s=time_s,
        energy_j=energy_j,
        scope=scope,
        facility_j=facility_j,
        pue=settings.pue,
        cost=None if tariff is None else kwh.times(tariff),
        currency=settings.currency,
        carbon_g=None if intensity is None else kwh.times(intensity.g_co2e_per_kwh),
        intensity=intensity,
        cost_reason="" if tariff is not None else "set tariff to your price per kWh",
        carbon_reason=found.reason,
        notes=tuple(notes),
    )


def _node_step_j(prediction: Prediction, node: NodePrediction) -> PredictedAmount:
    """Return the energy of a step at the socket; errors of time and of power are independent."""
    low, high, confidence = node.power_interval
    below, above = [1 - low / node.power_w], [high / node.power_w - 1]
    if prediction.step_interval is not None:
        below.append(1 - prediction.step_interval.low / prediction.step_s)
        above.append(prediction.step_interval.high / prediction.step_s - 1)
    least = max(0.0, 1 - math.hypot(*below))
    most = 1 + math.hypot(*above)
    whole_j = node.energy_j
    return PredictedAmount(whole_j, Interval(least * whole_j, most * whole_j, confidence))
