"""Errors of predictions: means, medians and bias of time, power and energy, by any part."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from predict_fits import Judged
from predict_zoo import Row
from wattloop.predict.intervals import HOST_SHARE

__all__ = ["QUANTITIES", "Outcome", "bias", "mean_error", "median_error", "parts"]

QUANTITIES = ("time", "power", "energy")


@dataclass(frozen=True)
class Outcome:
    """One measured step with its prediction, and the measure by which it is GPU-bound.

    Attributes:
        row: as measured.
        family: of the network.
        judged: the prediction, by constants that never saw its model.
        host_s: dispatch time as `kernels` predicts it, whichever model is judged: regimes are
            the same rows for all models.
    """

    row: Row
    family: str
    judged: Judged
    host_s: float

    @property
    def host_bound(self) -> bool:
        """Return true if predicted dispatch takes 70% of the measured step or more."""
        return self.host_s >= HOST_SHARE * self.row.step_s

    def error(self, quantity: str) -> float:
        """Return predicted over measured, minus 1."""
        found = self.judged.prediction
        pairs = {
            "time": (found.step_s, self.row.step_s),
            "power": (found.power_w, self.row.power_w),
            "energy": (found.energy_j, self.row.energy_j),
        }
        predicted, measured = pairs[quantity]
        return predicted / measured - 1

    @property
    def label(self) -> str:
        """Return a label such as `gpt2@1024 x 8 bf16`."""
        return f"{self.row.model} x {self.row.batch} {self.row.precision}"


def mean_error(outcomes: Sequence[Outcome], quantity: str) -> float | None:
    """Return the mean of the absolute errors in percent; None without steps."""
    return 100 * fmean(abs(o.error(quantity)) for o in outcomes) if outcomes else None


def median_error(outcomes: Sequence[Outcome], quantity: str) -> float | None:
    """Return the median of the absolute errors in percent; None without steps."""
    return 100 * median(abs(o.error(quantity)) for o in outcomes) if outcomes else None


def bias(outcomes: Sequence[Outcome], quantity: str) -> float | None:
    """Return the mean of the signed errors in percent: above 0, predictions were too high."""
    return 100 * fmean(o.error(quantity) for o in outcomes) if outcomes else None


def parts(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Return all rows, the regimes, and the families where the GPU is the bottleneck."""
    chosen: dict[str, Callable[[Outcome], bool]] = {
        "all": lambda _: True,
        "GPU-bound": lambda o: not o.host_bound,
        "GPU-bound transformers": _of("transformer"),
        "GPU-bound convolutional": _of("convolutional"),
        "GPU-bound depthwise": _of("depthwise"),
        "GPU-bound other": _of("other"),
        "host-bound": lambda o: o.host_bound,
    }
    return {name: [o for o in outcomes if wanted(o)] for name, wanted in chosen.items()}


def _of(family: str) -> Callable[[Outcome], bool]:
    return lambda o: not o.host_bound and o.family == family
