"""scikit-learn estimators, or anything with a `fit`.

from wattloop.integrations.sklearn_fit import measured

model = measured(RandomForestClassifier())
model.fit(x, y)
print(model.meter.energy_so_far_j())

with measured(SGDClassifier()) as model:     # one run of many partial fits, an epoch each
    for _ in range(10):
        model.partial_fit(x, y, classes=[0, 1])
print(model.meter.last_epoch.energy_j)
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from wattloop.core.results import RunStatus
from wattloop.integrations.hook import TrainingMeter

__all__ = ["MeasuredEstimator", "measured"]


def measured(estimator: Any, name: str | None = None, **options: Any) -> MeasuredEstimator:
    """`estimator`, with every fit measured. It learns exactly what it would have learned."""
    return MeasuredEstimator(estimator, name or f"{type(estimator).__name__}.fit", options)


class MeasuredEstimator:
    """Stands for an estimator: everything but fitting goes straight to it.

    Every fit is an epoch of a run: of the run that `with` opened, else of one of its own.

    Attributes:
        estimator: the estimator itself.
        meter: of the last run, or the one that is open.
    """

    def __init__(self, estimator: Any, name: str, options: dict[str, Any]) -> None:
        self.estimator = estimator
        self._name = name
        self._options = options
        self._open = False
        self.meter = TrainingMeter(name, **options)

    def fit(self, *args: Any, **kwargs: Any) -> MeasuredEstimator:
        """Fit, measured; returns this object, as `fit` returns its estimator."""
        self._measured(self.estimator.fit, args, kwargs)
        return self

    def partial_fit(self, *args: Any, **kwargs: Any) -> MeasuredEstimator:
        """Learn from one more pass or batch, measured."""
        self._measured(self.estimator.partial_fit, args, kwargs)
        return self

    def fit_transform(self, *args: Any, **kwargs: Any) -> Any:
        """Fit and transform, measured."""
        return self._measured(self.estimator.fit_transform, args, kwargs)

    def fit_predict(self, *args: Any, **kwargs: Any) -> Any:
        """Fit and predict, measured."""
        return self._measured(self.estimator.fit_predict, args, kwargs)

    def __enter__(self) -> MeasuredEstimator:
        self.meter = TrainingMeter(self._name, **self._options).begin()
        self._open = True
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open = False
        self.meter.end(RunStatus.FINISHED if exc_type is None else RunStatus.FAILED)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and pickling ask before there is an estimator
            raise AttributeError(name)
        return getattr(self.estimator, name)

    def __repr__(self) -> str:
        return f"measured({self.estimator!r})"

    def _measured(self, fit: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not self._open:
            with self:
                return self._measured(fit, args, kwargs)
        self.meter.epoch_begin()
        try:
            return fit(*args, **kwargs)
        finally:
            self.meter.epoch_end()
