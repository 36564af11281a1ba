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

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

from wattloop.core.results import RunStatus
from wattloop.integrations.training_meter import TrainingMeter

FITTING = frozenset({"partial_fit", "fit_transform", "fit_predict"})
"""What learns besides `fit`, where the estimator has it."""


def measured(estimator: Any, name: str | None = None, **options: Any) -> MeasuredEstimator:
    """`estimator`, with every fit measured. It learns exactly what it would have learned."""
    return MeasuredEstimator(estimator, name or f"{type(estimator).__name__}.fit", options)


class MeasuredEstimator:
    """Stands for an estimator: everything but fitting goes straight to it.

    It takes the estimator's place in a `Pipeline`, in `cross_val_score` and in `GridSearchCV`,
    whose clones are measured as well.

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
        self._measured(self.estimator.fit, args, kwargs)
        return self

    def set_params(self, **parameters: Any) -> MeasuredEstimator:
        """Of the estimator, by its own names; returns this object."""
        self.estimator.set_params(**parameters)
        return self

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
        # copying and pickling ask before there is an estimator; scikit-learn asks for its tags
        if name == "estimator" or (name.startswith("__") and not name.startswith("__sklearn_")):
            raise AttributeError(name)
        found = getattr(self.estimator, name)
        return self._fitting(found) if name in FITTING else found

    def __sklearn_clone__(self) -> MeasuredEstimator:
        from sklearn.base import clone

        return MeasuredEstimator(clone(self.estimator), self._name, self._options)

    def __sklearn_is_fitted__(self) -> bool:
        from sklearn.exceptions import NotFittedError
        from sklearn.utils.validation import check_is_fitted

        try:
            check_is_fitted(self.estimator)
        except NotFittedError:
            return False
        return True

    def __getstate__(self) -> dict[str, Any]:
        # the meter stays in the process that measures
        return {name: self.__dict__[name] for name in ("estimator", "_name", "_options")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["estimator"], state["_name"], state["_options"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"measured({self.estimator!r})"

    def _fitting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of the estimator that learns, measured; this object where it returns itself."""

        @functools.wraps(method)
        def measured_method(*args: Any, **kwargs: Any) -> Any:
            learned = self._measured(method, args, kwargs)
            return self if learned is self.estimator else learned

        return measured_method

    def _measured(self, fit: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not self._open:
            with self:
                return self._measured(fit, args, kwargs)
        self.meter.epoch_begin()
        try:
            return fit(*args, **kwargs)
        finally:
            self.meter.epoch_end()
