"""What a sweep found: means with intervals per point, metrics against the default, the best."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattloop.analyze.intervals import Estimate
from wattloop.characterize.gains import COMPARED, Compared
from wattloop.characterize.point_result import Group, PointResult
from wattloop.characterize.repeats import repeated
from wattloop.store.experiments import Experiment, TrialRecord
from wattloop.trials.outcome import SCOPES, Outcome

__all__ = ["SweepResult", "chosen_scope", "result_of"]


@dataclass(frozen=True, slots=True)
class SweepResult:
    """All points of a sweep, for one scope of energy."""

    experiment: Experiment
    scope: str | None
    points: tuple[PointResult, ...]
    warm_ups: int = 0
    unfinished: int = 0
    axes: tuple[Mapping[str, Any], ...] = field(default=())

    @property
    def groups(self) -> list[Group]:
        """By workload, then number of GPUs."""
        if self.scope is None:
            return []
        keys = dict.fromkeys(point.group for point in self.points)
        ordered = sorted(keys, key=lambda key: (key[0], key[1], key[2] or 0))
        return [
            Group(key, self.scope, tuple(p for p in self.points if p.group == key))
            for key in ordered
        ]

    @property
    def provenance(self) -> str:
        """Of all energies together."""
        return self.provenance_of(self.scope) if self.scope else "not measured"

    def provenance_of(self, scope: str) -> str:
        """Of the energies of one scope."""
        kinds = {p.provenance(scope) for p in self.points}
        return ", ".join(sorted(filter(None, kinds))) or "not measured"

    @property
    def compared(self) -> Compared:
        """The metric that the sweep was asked to be best at."""
        metric = str(self.experiment.spec.get("metric", "edp"))
        k = float(self.experiment.spec.get("k", 2.0))
        return Compared(metric, k if metric == "eds" else None)

    def number(self, point: PointResult, axis: str) -> float | None:
        """Where a point stands on an axis, for drawing."""
        label = point.facts["levels"].get(axis)
        for known in self.axes:
            if known["name"] == axis:
                return next((v["number"] for v in known["levels"] if v["label"] == label), None)
        return None

    def summary(self) -> dict[str, Any]:
        """Means, standard deviations and metrics per point, best per metric: what is stored."""
        return {
            "scope": self.scope,
            "provenance": self.provenance,
            "points": [self._point(group, p) for group in self.groups for p in group.points],
            "best": [
                {
                    "group": group.label,
                    "metric": compared.name,
                    "point": best[0].label,
                    **best[1].to_dict(),
                }
                for group in self.groups
                for compared in COMPARED
                if (best := group.best(compared)) is not None
            ],
        }

    def _point(self, group: Group, point: PointResult) -> dict[str, Any]:
        gains = {c.name: g.to_dict() for c in COMPARED if (g := group.gain(point, c)) is not None}
        outcomes = point.repeated.outcomes
        return {
            **point.facts,
            "runs": len(outcomes),
            "used": len(point.repeated.used),
            "failed": [
                {"status": o.status.value, "message": o.message} for o in outcomes if not o.ok
            ],
            "outliers": [
                key for key, out in zip(point.keys, point.repeated.outlying, strict=True) if out
            ],
            "time_s": _plain(point.time_s),
            "energy_j": _by_scope(point.energy_j),
            "average_w": _by_scope(point.average_w),
            "peak_w": _by_scope(point.peak_w),
            "temperature_c": point.temperature_c(),
            "gains": gains,
        }


def result_of(
    experiment: Experiment, trials: Sequence[TrialRecord], scope: str | None = None
) -> SweepResult:
    """What these trials say, for the scope asked for, the sweep's own, or the best known one."""
    counted: dict[str, list[TrialRecord]] = {}
    warm_ups = unfinished = 0
    for trial in trials:
        is_warm_up = not str(trial.settings.get("repeat", "")).isdecimal()
        if not trial.ended:
            unfinished += not is_warm_up  # each start warms up anew
        elif is_warm_up:
            warm_ups += 1
        else:
            counted.setdefault(trial.key.rpartition(" #")[0], []).append(trial)
    outcomes = {
        key: [Outcome.from_dict(t.outcome) for t in group] for key, group in counted.items()
    }
    scope = scope or experiment.spec.get("scope")
    scope = scope or chosen_scope([o for group in outcomes.values() for o in group])
    axes = tuple(experiment.facts.get("axes", ()))
    points = [
        PointResult(
            facts=group[0].settings["point"],
            repeated=repeated(outcomes[key], scope),
            keys=tuple(t.key for t in group),
            defaults={axis["name"]: axis["default"] for axis in axes},
        )
        for key, group in counted.items()
    ]
    return SweepResult(experiment, scope, _ordered(points, axes), warm_ups, unfinished, axes)


def chosen_scope(outcomes: Iterable[Outcome]) -> str | None:
    """The widest scope that somebody reads: the node where it has a meter, else GPUs, else CPUs."""
    good = [outcome for outcome in outcomes if outcome.ok]
    for name in ("node", "gpu", "cpu", "dram"):
        found = [o.scopes.get(name) for o in good]
        if found and all(scope is not None and not scope.modelled for scope in found):
            return name
    return "node" if good and all("node" in o.scopes for o in good) else None


def _ordered(
    points: Sequence[PointResult], axes: Sequence[Mapping[str, Any]]
) -> tuple[PointResult, ...]:
    """In the order of the levels, numbers rising."""
    places: dict[tuple[str, str], tuple[float, int]] = {}
    for axis in axes:
        for place, level in enumerate(axis["levels"]):
            number = level["number"]
            places[axis["name"], level["label"]] = (
                float("inf") if number is None else number,
                place,
            )

    def place_of(point: PointResult) -> list[tuple[float, int]]:
        levels = point.facts["levels"].items()
        return [places.get((name, label), (float("inf"), 0)) for name, label in levels]

    return tuple(sorted(points, key=place_of))


def _plain(value: Estimate | None) -> dict[str, float | int | None] | None:
    return None if value is None else value.to_dict()


def _by_scope(of: Any) -> dict[str, Any]:
    return {scope: value.to_dict() for scope in SCOPES if (value := of(scope)) is not None}
