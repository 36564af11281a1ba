"""Intervals of predictions, from how wrong the model was on models it had not seen.

Conformal: with r the logarithm of measured over predicted on every calibrated step, each predicted
by constants that never saw its model, the interval is

    prediction x exp(-+ q x (1 + distance)),   q = the ceil((n + 1) confidence)-th smallest |r|

By regime, where there are enough residuals of enough models: where the host is the bottleneck,
errors are larger. `distance` is 0 inside of the calibrated range (see `scope`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from wattloop.core.errors import ConfigError
from wattloop.predict.placement import Placement
from wattloop.predict.prediction import Interval, Prediction
from wattloop.predict.scope import Distance, Scope
from wattloop.predict.workload.workload import Workload

__all__ = ["CONFIDENCE", "HOST_SHARE", "Intervals", "Residual", "bottleneck_of"]

CONFIDENCE = 0.9
HOST_SHARE = 0.7
"""The GPU is the bottleneck when dispatching takes less than this share of the step."""
ENOUGH_RESIDUALS = 20
ENOUGH_MODELS = 3
POOLED = "all"
QUANTITIES = ("time", "power", "energy")


@dataclass(frozen=True, slots=True)
class Residual:
    """How wrong one prediction was, of a model its constants never saw.

    Attributes:
        group: the model that was left out.
        bottleneck: `gpu` or `host`, as predicted.
        time, power: log(measured / predicted); power None when it was not measured.
    """

    group: str
    bottleneck: str
    time: float
    power: float | None = None

    @classmethod
    def of(
        cls, group: str, prediction: Prediction, step_s: float, power_w: float | None
    ) -> "Residual":
        """Of a measured step."""
        power = None if power_w is None else math.log(power_w / prediction.power_w)
        time = math.log(step_s / prediction.step_s)
        return cls(group, bottleneck_of(prediction), time, power)

    def value(self, quantity: str) -> float | None:
        """Residual of `time`, `power` or `energy`."""
        if quantity == "time":
            return self.time
        if self.power is None:
            return None
        return self.power if quantity == "power" else self.time + self.power


def bottleneck_of(prediction: Prediction) -> str:
    """`host` when dispatching takes most of the predicted step, else `gpu`."""
    host_s = prediction.host_s or 0.0
    return "host" if host_s >= HOST_SHARE * prediction.step_s else "gpu"


@dataclass(frozen=True, slots=True)
class Intervals:
    """Sizes of residuals by bottleneck (`gpu`, `host`, `all`) and quantity, and their scope."""

    sizes: Mapping[str, Mapping[str, Sequence[float]]]
    scope: Scope | None = None

    @classmethod
    def of(cls, residuals: Iterable[Residual], scope: Scope | None = None) -> Self:
        """From the residuals of all models that were left out in turn."""
        found = list(residuals)
        sizes = {POOLED: _sizes(found)}
        for bottleneck in sorted({r.bottleneck for r in found}):
            own = [r for r in found if r.bottleneck == bottleneck]
            if len(own) >= ENOUGH_RESIDUALS and len({r.group for r in own}) >= ENOUGH_MODELS:
                sizes[bottleneck] = _sizes(own)
        return cls(sizes, scope)

    def around(
        self,
        prediction: Prediction,
        workload: Workload,
        placement: Placement,
        confidence: float = CONFIDENCE,
    ) -> Prediction:
        """`prediction` with intervals, and with the reasons why they are wide."""
        distance = self.scope.distance(workload, placement) if self.scope else Distance(0.0)
        key = bottleneck_of(prediction)

        def interval(quantity: str, value: float) -> Interval | None:
            half = self.half_width(quantity, key, confidence)
            if half is None:
                return None
            spread = math.exp(half * distance.factor)
            return Interval(value / spread, value * spread, confidence)

        return replace(
            prediction,
            step_interval=interval("time", prediction.step_s),
            power_interval=interval("power", prediction.power_w),
            energy_interval=interval("energy", prediction.energy_j),
            warnings=(
                *prediction.warnings,
                *(f"outside the calibrated range: {reason}" for reason in distance.reasons),
            ),
        )

    def half_width(
        self, quantity: str, bottleneck: str, confidence: float = CONFIDENCE
    ) -> float | None:
        """|log ratio| that is exceeded with 1 - `confidence`; None without residuals.

        With too few residuals for so high a confidence, twice the largest one.
        """
        if not 0 < confidence < 1:
            raise ConfigError(f"confidence {confidence} is not between 0 and 1")
        sizes = self.sizes.get(bottleneck, self.sizes.get(POOLED, {})).get(quantity, ())
        if not sizes:
            return None
        rank = math.ceil((len(sizes) + 1) * confidence)
        return sizes[rank - 1] if rank <= len(sizes) else 2 * sizes[-1]

    def to_dict(self) -> dict[str, object]:
        """As plain values, to be kept with a model's constants."""
        return {
            "residuals": {
                key: {name: [round(size, 5) for size in sizes] for name, sizes in found.items()}
                for key, found in self.sizes.items()
            },
            "scope": None if self.scope is None else self.scope.to_dict(),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> Self:
        """What `to_dict` gave; ConfigError names what is not as it should be."""
        try:
            found = raw["residuals"]
            if not isinstance(found, Mapping):
                raise TypeError("residuals is not a table")
            sizes = {
                str(key): {str(name): sorted(map(float, values)) for name, values in table.items()}
                for key, table in found.items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"intervals of the calibration: {error}; fit it again with `wattloop calibrate fit`"
            ) from None
        scope = raw.get("scope")
        return cls(sizes, Scope.from_dict(scope) if isinstance(scope, Mapping) else None)


def _sizes(residuals: Sequence[Residual]) -> dict[str, list[float]]:
    values = {name: [r.value(name) for r in residuals] for name in QUANTITIES}
    return {name: sorted(abs(v) for v in found if v is not None) for name, found in values.items()}
