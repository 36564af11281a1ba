"""Each measured step predicted by constants that never saw its model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wattloop.core.errors import ConfigError
from wattloop.predict.intervals import Residual
from wattloop.predict.models.model import Model, Point
from wattloop.predict.prediction import Prediction

__all__ = ["Judged", "leave_one_out"]


@dataclass(frozen=True, slots=True)
class Judged:
    """A measured step and what was predicted for it."""

    point: Point
    prediction: Prediction

    @property
    def residual(self) -> Residual:
        """How wrong the prediction was."""
        point = self.point
        return Residual.of(
            point.group, self.prediction, point.step_s, point.power_w, point.placement
        )


def leave_one_out(
    model: Model,
    points: Sequence[Point],
    progress: Callable[[str], None] | None = None,
    also: Callable[[str], Sequence[Point]] | None = None,
) -> list[Judged]:
    """Predictions of all `points`, each group by `model` fitted to the other groups.

    Args:
        model: what is fitted; it is left as it was.
        points: measured steps of at least two groups.
        progress: called with the name of a group before it is left out.
        also: the group left out -> steps of other models that the fit has beside.
    """
    groups = list(dict.fromkeys(point.group for point in points))
    if len(groups) < 2:
        raise ConfigError("leaving a model out needs measured steps of at least two models")
    judged = {}
    for group in groups:
        if progress:
            progress(group)
        known = [*points, *(also(group) if also else ())]
        fitted = model.fit([point for point in known if point.group != group])
        for index, point in enumerate(points):
            if point.group == group:
                there = replace(point, placement=fitted.placed(point))
                judged[index] = Judged(there, fitted.predict(there.workload, there.placement))
    return [judged[index] for index in range(len(points))]
