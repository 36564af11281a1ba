"""The result of a sweep: means with intervals per point, gains over the default, the best point."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from wattloop.accounting.energy_delay import Point as Cost
from wattloop.accounting.energy_delay import gain_minus_loss_pct, objective
from wattloop.accounting.summary import GpuPrice
from wattloop.analyze.repeats import Estimate, estimate, is_outlier, t_975
from wattloop.store.experiments import Experiment, TrialRecord
from wattloop.sweep.spec import Repeats
from wattloop.trials.trial import SCOPES, TrialOutcome

FAILURES_LIMIT = 2
"""A point that failed this often, and more often than it worked, is not tried again: some settings
do not work on some machines."""


@dataclass(frozen=True, slots=True)
class RepeatedTrials:
    """The repeats of one point so far, in the order in which they ran.

    Attributes:
        outlying: which ones lie too far from the others in time or energy.
    """

    outcomes: tuple[TrialOutcome, ...]
    outlying: tuple[bool, ...]
    scope: str | None

    @property
    def used(self) -> tuple[TrialOutcome, ...]:
        pairs = zip(self.outcomes, self.outlying, strict=True)
        return tuple(outcome for outcome, out in pairs if outcome.ok and not out)

    @property
    def failures(self) -> int:
        return sum(not outcome.ok for outcome in self.outcomes)

    @property
    def time_s(self) -> Estimate | None:
        return estimate([o.time_s for o in self.used if o.time_s is not None])

    @property
    def energy_j(self) -> Estimate | None:
        if self.scope is None:
            return None
        found = (o.energy_j(self.scope) for o in self.used)
        return estimate([joules for joules in found if joules is not None])

    @property
    def given_up(self) -> bool:
        return self.failures >= FAILURES_LIMIT and self.failures > len(self.used)

    def missing(self, rule: Repeats) -> int:
        """Return the number of repeats still needed, as far as known; 0 when there are enough."""
        if self.given_up:
            return 0
        done = len(self.used)
        # An outlier is replaced, but a point that has nothing else is not run for ever.
        left = min(rule.most - done, rule.most + max(1, rule.most // 2) - len(self.outcomes))
        if left <= 0:
            return 0
        if done < rule.least:
            return min(left, rule.least - done)
        if rule.target_pct is None:
            return left
        return min(left, max(self._more_for(e, rule.target_pct) for e in self._judged()))

    def _judged(self) -> list[Estimate | None]:
        return [self.time_s] if self.scope is None else [self.time_s, self.energy_j]

    @staticmethod
    def _more_for(known: Estimate | None, target_pct: float) -> int:
        """Repeats until the half-width would be within the target, if the spread stays."""
        if known is None or known.relative is None or known.sd is None:
            return 1
        target = target_pct / 100
        if known.relative <= target:
            return 0
        relative_sd = abs(known.sd / known.mean)
        n = known.n
        while t_975(n - 1) * relative_sd / n**0.5 > target and n < known.n + 100:
            n += 1
        return max(1, n - known.n)


def repeated_trials(outcomes: Sequence[TrialOutcome], scope: str | None) -> RepeatedTrials:
    """The repeats with those marked that do not belong, judged by time and by energy."""
    outlying = [False] * len(outcomes)
    good = [i for i, outcome in enumerate(outcomes) if outcome.ok]
    columns = [[outcomes[i].time_s for i in good]]
    if scope is not None:
        columns.append([outcomes[i].energy_j(scope) for i in good])
    for column in columns:
        known = [value for value in column if value is not None]
        if len(known) == len(good):
            for i, out in zip(good, is_outlier(known), strict=True):
                outlying[i] = outlying[i] or out
    return RepeatedTrials(tuple(outcomes), tuple(outlying), scope)


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """A metric of `analyze.metrics`, with its parameter."""

    metric: str
    k: float | None = None

    @property
    def name(self) -> str:
        return self.metric if self.k is None else f"{self.metric}({self.k:g})"

    @property
    def label(self) -> str:
        if self.metric == "eds":
            return f"EDS (k={self.k:g})"
        return LABELS[self.metric]


LABELS = {
    "energy": "Energy",
    "time": "Time",
    "power": "Average power",
    "gain_minus_loss": "Energy gain minus time loss",
    "edp": "EDP",
    "ed2p": "ED2P",
    "e2dp": "E2DP",
}
ENERGY, TIME, EDP = ComparedMetric("energy"), ComparedMetric("time"), ComparedMetric("edp")
GAIN_MINUS_LOSS = ComparedMetric("gain_minus_loss")
COMPARED = (
    ENERGY,
    TIME,
    ComparedMetric("power"),
    GAIN_MINUS_LOSS,
    EDP,
    ComparedMetric("ed2p"),
    ComparedMetric("eds", 1.5),
    ComparedMetric("eds", 2.0),
)
"""What is reported of every point. EDS(1.5) and EDS(2) as in Koszczal et al."""


@dataclass(frozen=True, slots=True)
class Gain:
    """A metric's gain over the default.

    Attributes:
        value_pct: per cent by which the metric is smaller; for gain minus loss, their difference.
        half_width_pct: of its 95% interval; None when either was run once only.
        cost: the metric itself, in J, s, W, J s, J s^2 or as a ratio.
    """

    value_pct: float
    half_width_pct: float | None
    cost: float

    @property
    def beyond_noise(self) -> bool:
        return self.half_width_pct is not None and self.value_pct > self.half_width_pct

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "beyond_noise": self.beyond_noise}


def compute_gain(
    costs: Sequence[Cost],
    reference: Sequence[Cost],
    compared: ComparedMetric,
    *,
    same: bool = False,
) -> Gain:
    """From all repeats of a point and of the default.

    The metric is taken of the means; its spread from the metric of each repeat, so that energy
    and time of one run, which go together, are not treated as strangers.
    """
    mean, base = _mean(costs), _mean(reference)
    of = objective(compared.metric, base, 2.0 if compared.k is None else compared.k)
    ours = estimate([of(cost) for cost in costs])
    theirs = estimate([of(cost) for cost in reference])
    assert ours is not None and theirs is not None
    if compared.metric == "gain_minus_loss":
        value = gain_minus_loss_pct(mean, base)
        wide = None if same else _together(ours.half_width, theirs.half_width)
        return Gain(value, 0.0 if same else wide, value)
    ratio = of(mean) / of(base)
    wide = _together(ours.relative, theirs.relative)
    half_width = 0.0 if same else None if wide is None else 100 * ratio * wide
    return Gain(100 * (1 - ratio), half_width, of(mean))


def _mean(costs: Sequence[Cost]) -> Cost:
    count = len(costs)
    return Cost(sum(c.time_s for c in costs) / count, sum(c.energy_j for c in costs) / count)


def _together(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else math.hypot(first, second)


GroupKey = tuple[str, str, int | None]


@dataclass(frozen=True, slots=True)
class PointResult:
    """One point: its repeats, and what they say; `defaults` are the levers' default levels."""

    facts: Mapping[str, Any]
    repeated: RepeatedTrials
    keys: tuple[str, ...]
    defaults: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """`170 W`; of several levers those that are not at their default, with their names."""
        levels = self.facts["levels"]
        if len(levels) < 2:
            return next(iter(levels.values()), "default")
        moved = {n: label for n, label in levels.items() if label != self.defaults.get(n)}
        return ", ".join(f"{n.rpartition('/')[2]} {label}" for n, label in moved.items()) or (
            "default"
        )

    @property
    def name(self) -> str:
        words = " ".join(filter(None, (self.facts["workload"], self.facts["library"])))
        return ", ".join(filter(None, (words, gpu_count(self.facts["gpus"]), self.label)))

    @property
    def is_default(self) -> bool:
        return bool(self.facts["is_default"])

    @property
    def group(self) -> GroupKey:
        return self.facts["workload"], self.facts["library"], self.facts["gpus"]

    @property
    def time_s(self) -> Estimate | None:
        return self.repeated.time_s

    def energy_j(self, scope: str) -> Estimate | None:
        return _estimate(o.energy_j(scope) for o in self.repeated.used)

    def average_w(self, scope: str) -> Estimate | None:
        return _estimate(o.scopes[scope].average_w for o in self.repeated.used if scope in o.scopes)

    def peak_w(self, scope: str) -> Estimate | None:
        return _estimate(o.scopes[scope].peak_w for o in self.repeated.used if scope in o.scopes)

    def gpu_cost(self, price: GpuPrice) -> Estimate | None:
        """Price of the GPUs' hours: of as many as were asked for, else of those that were read."""
        found = []
        for outcome in self.repeated.used:
            read = sum(bool(d["scope"] == "gpu" and d.get("in_total")) for d in outcome.domains)
            gpus = self.facts["gpus"] or read
            if gpus and outcome.time_s is not None:
                found.append(price.cost("", gpus, outcome.time_s))
        return _estimate(found)

    def temperature_c(self) -> float | None:
        found = [t for o in self.repeated.used if (t := o.temperature_c()) is not None]
        return max(found) if found else None

    def costs(self, scope: str) -> list[Cost]:
        found = ((o.time_s, o.energy_j(scope)) for o in self.repeated.used)
        return [Cost(t, e) for t, e in found if t is not None and e is not None]

    @property
    def run_id(self) -> str | None:
        """A typical run: the one whose time is nearest the mean."""
        time_s = self.time_s
        used = [o for o in self.repeated.used if o.run_id and o.time_s is not None]
        if time_s is None or not used:
            return None
        return min(used, key=lambda o: abs((o.time_s or 0.0) - time_s.mean)).run_id

    def provenance(self, scope: str) -> str | None:
        kinds = {o.scopes[scope].provenance for o in self.repeated.used if scope in o.scopes}
        return ", ".join(sorted(kinds)) or None


@dataclass(frozen=True, slots=True)
class SweepGroup:
    """Points of one workload on as many GPUs, and the default among them."""

    key: GroupKey
    scope: str
    points: tuple[PointResult, ...]

    @property
    def label(self) -> str:
        """`gemm jax, 8 GPUs`; empty for the only one."""
        workload, library, gpus = self.key
        parts = " ".join(filter(None, (workload, library)))
        return ", ".join(filter(None, (parts, gpu_count(gpus))))

    @property
    def reference(self) -> PointResult | None:
        found = [p for p in self.points if p.is_default and p.costs(self.scope)]
        return found[0] if found else None

    def gain(self, point: PointResult, compared: ComparedMetric) -> Gain | None:
        """Return the gain of a point over the default; None when either was not measured."""
        reference = self.reference
        costs = point.costs(self.scope)
        if reference is None or not costs:
            return None
        return compute_gain(costs, reference.costs(self.scope), compared, same=point is reference)

    def best(self, compared: ComparedMetric) -> tuple[PointResult, Gain] | None:
        """The point that gains most, which may be the default."""
        gains = [(p, g) for p in self.points if (g := self.gain(p, compared)) is not None]
        return max(gains, key=lambda pair: pair[1].value_pct) if gains else None

    def ties(self, best: PointResult, compared: ComparedMetric) -> list[PointResult]:
        """Points whose difference from the best is within the noise of the repeats of both."""
        found = []
        for point in self.points:
            if point is not best and (costs := point.costs(self.scope)):
                gain = compute_gain(costs, best.costs(self.scope), compared)
                if gain.half_width_pct is not None and -gain.value_pct <= gain.half_width_pct:
                    found.append(point)
        return found


def gpu_count(gpus: int | None) -> str:
    return "" if gpus is None else f"{gpus} GPU{'s' if gpus != 1 else ''}"


def largest_groups(groups: Sequence[SweepGroup]) -> list[SweepGroup]:
    """Of each workload the one with most GPUs, where capping pays most."""
    best: dict[tuple[str, str], SweepGroup] = {}
    for group in groups:
        known = best.get(group.key[:2])
        if known is None or (group.key[2] or 0) > (known.key[2] or 0):
            best[group.key[:2]] = group
    return list(best.values())


def _estimate(values: Iterable[float | None]) -> Estimate | None:
    return estimate([value for value in values if value is not None])


@dataclass(frozen=True, slots=True)
class SweepResult:
    """All points of a sweep, for one scope of energy, and with a price of GPUs their cost."""

    experiment: Experiment
    scope: str | None
    points: tuple[PointResult, ...]
    warm_ups: int = 0
    unfinished: int = 0
    axes: tuple[Mapping[str, Any], ...] = field(default=())
    price: GpuPrice | None = None

    @property
    def groups(self) -> list[SweepGroup]:
        if self.scope is None:
            return []
        keys = dict.fromkeys(point.group for point in self.points)
        ordered = sorted(keys, key=lambda key: (key[0], key[1], key[2] or 0))
        return [
            SweepGroup(key, self.scope, tuple(p for p in self.points if p.group == key))
            for key in ordered
        ]

    @property
    def provenance(self) -> str:
        return self.provenance_of(self.scope) if self.scope else "not measured"

    def provenance_of(self, scope: str) -> str:
        kinds = {p.provenance(scope) for p in self.points}
        return ", ".join(sorted(filter(None, kinds))) or "not measured"

    @property
    def compared(self) -> ComparedMetric:
        metric = str(self.experiment.spec.get("metric", "edp"))
        k = float(self.experiment.spec.get("k", 2.0))
        return ComparedMetric(metric, k if metric == "eds" else None)

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
                    "ties": [p.label for p in group.ties(best[0], compared)],
                    **best[1].to_dict(),
                }
                for group in self.groups
                for compared in COMPARED
                if (best := group.best(compared)) is not None
            ],
        }

    def _point(self, group: SweepGroup, point: PointResult) -> dict[str, Any]:
        gains = {c.name: g.to_dict() for c in COMPARED if (g := group.gain(point, c)) is not None}
        priced = {}
        if self.price is not None:
            cost = _plain(point.gpu_cost(self.price))
            priced = {"gpu_cost": cost, "currency": self.price.currency}
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
            **priced,
        }


def result_of(
    experiment: Experiment, trials: Sequence[TrialRecord], scope: str | None = None
) -> SweepResult:
    """Return the result of these trials for the given scope, the sweep's, or the widest one."""
    counted: dict[str, list[TrialRecord]] = {}
    warm_ups = unfinished = 0
    for trial in trials:
        is_warm_up = not str(trial.settings.get("repeat", "")).isdecimal()
        if not trial.ended:
            unfinished += not is_warm_up  # each start warms up again
        elif is_warm_up:
            warm_ups += 1
        else:
            counted.setdefault(trial.key.rpartition(" #")[0], []).append(trial)
    outcomes = {
        key: [TrialOutcome.from_dict(t.outcome) for t in group] for key, group in counted.items()
    }
    scope = scope or experiment.spec.get("scope")
    scope = scope or chosen_scope([o for group in outcomes.values() for o in group])
    axes = tuple(experiment.facts.get("axes", ()))
    points = [
        PointResult(
            facts=group[0].settings["point"],
            repeated=repeated_trials(outcomes[key], scope),
            keys=tuple(t.key for t in group),
            defaults={axis["name"]: axis["default"] for axis in axes},
        )
        for key, group in counted.items()
    ]
    return SweepResult(experiment, scope, _ordered(points, axes), warm_ups, unfinished, axes)


def chosen_scope(outcomes: Iterable[TrialOutcome]) -> str | None:
    """Return the widest measured scope: the node if it has a meter, else GPUs, else CPUs."""
    good = [outcome for outcome in outcomes if outcome.ok]
    for name in ("node", "gpu", "cpu", "dram"):
        found = [o.scopes.get(name) for o in good]
        if found and all(scope is not None and not scope.modelled for scope in found):
            return name
    return "node" if good and all("node" in o.scopes for o in good) else None


def _ordered(
    points: Sequence[PointResult], axes: Sequence[Mapping[str, Any]]
) -> tuple[PointResult, ...]:
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
