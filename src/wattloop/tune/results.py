"""Results of a search: one row per candidate, ties within noise, and a summary."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from operator import attrgetter
from statistics import fmean
from typing import Any

from wattloop.core.results import MODELS, EnergyError, ratio_error
from wattloop.core.units import format_number
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment, TrialRecord, each_trial, find_experiment
from wattloop.store.runs import mean_efficiencies
from wattloop.tune.search_problem import Quality
from wattloop.tune.segment import CAP_LEVER, Status, Value, unreadable_trial, without_gc

# Works on plain records: ten thousand are read and aggregated in a second.


@dataclass(slots=True, kw_only=True)
class CandidateResult:
    """Result of one configuration: cost and quality of its training.

    Attributes:
        levers: of its last segment; a cap that was found inside one is among them.
        status: of its last segment that has ended.
        time_s, energy_j: of all of them, repetitions aside; energy None when a part is not known.
        quality, best: the metric at its end, and the best of all epochs.
        reached: whether the target was reached; then `to_target_s` and `to_target_j` are
            what that took.
        cost_noise: relative spread of the cost of another run, estimated from one run;
            `quality_noise`: spread of its metric. None where too little is known.
        error: components of the uncertainty; None where a segment lacks them.
    """

    candidate: str
    number: int
    parameters: dict[str, Value] = field(default_factory=dict)
    levers: dict[str, Any] = field(default_factory=dict)
    learning_rate: float | None = None
    status: str = "running"
    segments: int = 0
    epochs: float = 0.0
    time_s: float = 0.0
    energy_j: float | None = 0.0
    uncertainty_j: float = 0.0
    quality: float | None = None
    best: float | None = None
    reached: bool = False
    to_target_s: float | None = None
    to_target_j: float | None = None
    cost_noise: float | None = None
    quality_noise: float | None = None
    repeated_j: float = 0.0
    idle_j: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    provenance: str = ""
    run_ids: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    error: EnergyError | None = None

    @property
    def good(self) -> bool:
        return self.segments > 0 and Status(self.status).good

    @property
    def power_w(self) -> float | None:
        if self.energy_j is None or self.time_s <= 0:
            return None
        return self.energy_j / self.time_s

    def to_dict(self) -> dict[str, Any]:
        data = {**asdict(self), "power_w": self.power_w}
        del data["error"]
        return data


def read_candidates(
    store: Store, search_id: str, quality: Quality | None = None
) -> list[CandidateResult]:
    with without_gc():
        return aggregate_candidates(each_trial(store, search_id), quality)


def aggregate_candidates(
    records: Iterable[TrialRecord], quality: Quality | None = None
) -> list[CandidateResult]:
    """Return candidates as `candidates_of`, from records in the order of their start."""
    found: dict[str, CandidateResult] = {}
    for record in records:
        segment = record.settings.get("segment")
        if not isinstance(segment, Mapping):
            continue
        name = str(segment["candidate"])
        result = found.get(name)
        if result is None:
            result = found[name] = CandidateResult(candidate=name, number=len(found))
        result.parameters = dict(segment["parameters"])
        if segment.get("levers"):
            result.levers = {**result.levers, **segment["levers"]}
        if segment.get("learning_rate") is not None:
            result.learning_rate = segment["learning_rate"]
        if record.ended:
            kept = segment.get("keep", True) and segment.get("rates") is None
            try:
                _add(result, record, quality, kept=kept)
            except (KeyError, TypeError, ValueError) as error:
                raise unreadable_trial(record.key, error) from None
    return list(found.values())


def parameter_columns(candidates: Sequence[CandidateResult]) -> dict[str, str]:
    """Map parameter, learning rate or lever to the name of its column in a table.

    A parameter with the name of a result column (such as `epochs`) gets the prefix `parameter.`.
    """
    names = {name: None for c in candidates for name in c.parameters}
    names |= {name: None for c in candidates for name in c.levers}
    return {name: f"parameter.{name}" if name in RESULTS else name for name in names}


RESULTS = (
    *("candidate", "number", "status", "segments", "epochs", "time_s", "energy_j"),
    *("uncertainty_j", "power_w", "quality", "best", "reached", "to_target_s", "to_target_j"),
    *("repeated_j", "idle_j", "provenance", "learning_rate", "message"),
)
"""Columns of a table that are not parameters."""


def _add(
    result: CandidateResult, record: TrialRecord, quality: Quality | None, *, kept: bool
) -> None:
    outcome = record.outcome
    energy_j, before_j = outcome.get("energy_j"), result.energy_j
    time_s, before_s = float(outcome.get("time_s") or 0.0), result.time_s
    result.segments += 1
    result.time_s = before_s + time_s
    if before_j is None or (energy_j is None and time_s > 0):
        result.energy_j = None
    else:
        result.energy_j = before_j + (energy_j or 0.0)
    result.uncertainty_j = (
        result.uncertainty_j**2 + float(outcome.get("uncertainty_j") or 0.0) ** 2
    ) ** 0.5
    result.error = _error(result, outcome)
    result.repeated_j += outcome.get("repeated_j") or 0.0
    result.idle_j += outcome.get("idle_j") or 0.0
    result.provenance = _weaker(result.provenance, str(outcome.get("provenance") or ""))
    if record.run_id:
        result.run_ids.append(record.run_id)
    if outcome.get("message"):
        result.messages.append(str(outcome["message"]))
    cap = outcome.get("cap")
    if cap and cap.get("cap_w") is not None:
        result.levers[CAP_LEVER] = cap["cap_w"]
    if not kept and record.status == Status.NOT_SUPPORTED:
        return
    result.status = Status(record.status).value
    if not kept:
        return
    result.epochs = float(outcome.get("epochs") or 0.0)
    result.quality, result.best = outcome.get("quality"), outcome.get("best")
    result.metrics.update(outcome.get("metrics") or {})
    _estimate_noise(result, outcome.get("curve") or ())
    if quality is not None and quality.target is not None and not result.reached:
        _find_target(result, outcome, quality)


def _error(result: CandidateResult, outcome: Mapping[str, Any]) -> EnergyError | None:
    """Add the error of one more segment; None once a segment lacks it."""
    told = outcome.get("error")
    if not told:
        return None
    error = EnergyError.from_dict(told)
    if result.segments == 1:
        return error
    return None if result.error is None else result.error.plus(error)


def _estimate_noise(result: CandidateResult, curve: Sequence[Mapping[str, Any]]) -> None:
    """Estimate the scatter over the epochs of its last segment: of energy, and of the metric."""
    joules = [p["energy_j"] for p in curve if p["energy_j"] is not None]
    each_j = [later - earlier for earlier, later in pairwise(joules)]
    if len(each_j) >= FEW_EPOCHS and sum(each_j) > 0:
        result.cost_noise = _scatter(each_j) / fmean(each_j) / len(each_j) ** 0.5
    told = [p["quality"] for p in curve if p["quality"] is not None]
    steps = [later - earlier for earlier, later in pairwise(told[len(told) // 2 :])]
    if len(steps) >= FEW_EPOCHS:
        # Differences: a training that still improves scatters less than it improves.
        result.quality_noise = _scatter(steps) / 2**0.5


def _scatter(values: Sequence[float]) -> float:
    """Return the standard deviation; `statistics.stdev` computes in fractions, 20 times as long."""
    mean = fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _find_target(result: CandidateResult, outcome: Mapping[str, Any], quality: Quality) -> None:
    if not quality.reached(outcome.get("best")):
        return
    result.reached = True
    for point in outcome.get("curve") or ():
        if quality.reached(point["quality"]):
            result.to_target_s, result.to_target_j = point["time_s"], point["energy_j"]
            # Quality is known at the end of an epoch, so the cost is known to within one epoch.
            result.cost_noise = 1 / point["epoch"] if point["epoch"] > 0 else None
            return
    result.to_target_s, result.to_target_j = result.time_s, result.energy_j


FEW_EPOCHS = 3
"""Fewer differences say nothing about scatter."""
ORDER = ("", "measured", "modelled", "estimated", "replayed", "simulated")


def _weaker(one: str, other: str) -> str:
    known = [kind for kind in (one, other) if kind in ORDER]
    return max(known, key=ORDER.index) if len(known) == 2 else one or other


def search_table(store: Store, search_id: str) -> list[dict[str, Any]]:
    experiment = find_experiment(store, search_id, "search")
    found = read_candidates(store, experiment.experiment_id, stored_quality(experiment.facts))
    shares = mean_efficiencies(store, [c.run_ids for c in found])
    return [row | share for row, share in zip(candidate_rows(found), shares, strict=True)]


def epoch_rows(records: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    """Return a row per epoch that was trained: its time, energy, mean power, quality and metrics.

    The first epoch of a command includes its start.
    """
    ends: dict[str, Mapping[str, Any]] = {}
    rows = []
    for record in records:
        segment = record.settings.get("segment")
        if not isinstance(segment, Mapping) or not segment.get("keep", True):
            continue
        name = str(segment["candidate"])
        for point in record.outcome.get("curve") or ():
            before = ends.get(name, {"time_s": 0.0, "energy_j": 0.0})
            time_s, energy_j = point["time_s"] - before["time_s"], None
            if None not in (point["energy_j"], before["energy_j"]):
                energy_j = point["energy_j"] - before["energy_j"]
            rows.append(
                {
                    **{"candidate": name, "epoch": point["epoch"], "time_s": time_s},
                    "energy_j": energy_j,
                    "power_w": energy_j / time_s if energy_j is not None and time_s > 0 else None,
                    **{"quality": point["quality"], **(point.get("metrics") or {})},
                }
            )
            ends[name] = point
    return rows


def candidate_rows(candidates: Sequence[CandidateResult]) -> list[dict[str, Any]]:
    """Return a flat row per candidate; every row has every column, None for a missing value.

    Metrics that trainings reported in addition to the quality are columns under their own names.
    """
    parameters = parameter_columns(candidates)
    taken = {*RESULTS, *parameters.values()}
    metrics = {name: None for c in candidates for name in c.metrics if name not in taken}
    results = RESULTS[2:-1]
    values_of = attrgetter(*results)
    rows = []
    for c in candidates:
        row: dict[str, Any] = {"candidate": c.candidate, "number": c.number}
        for name, column in parameters.items():
            row[column] = c.parameters.get(name, c.levers.get(name))
        row.update(zip(results, values_of(c), strict=True))
        row["message"] = "; ".join(c.messages)
        for name in metrics:
            row[name] = c.metrics.get(name)
        rows.append(row)
    return rows


def stored_quality(facts: dict[str, Any]) -> Quality | None:
    known = facts.get("quality")
    return None if not isinstance(known, dict) else Quality(**known)


# Ties: configurations whose difference from the best is within noise. A search trains a
# configuration once, so the noise is estimated from one run: the cost of a target is known to
# within one epoch, and the energy of equal epochs and the metric scatter. The error of a sensor is
# added where it is independent from run to run; that of a shared energy model cancels.

DEGREES = {"energy": 1, "time": 1, "cost": 1, "carbon": 1, "eds": 1, "edp": 2, "ed2p": 3, "e2dp": 3}
"""Objective -> factor of the noise of energy and time."""


def energy_to_target_j(candidate: CandidateResult) -> float | None:
    """Return the energy to the target where it was reached, else of a complete training."""
    if candidate.reached:
        return candidate.to_target_j
    return candidate.energy_j if candidate.status == "ended" else None


def find_ties(
    best: CandidateResult | None, candidates: Sequence[CandidateResult], facts: Mapping[str, Any]
) -> tuple[tuple[CandidateResult, ...], str]:
    names = (facts.get("objective") or {}).get("names") or ["energy"]
    if best is None or len(names) > 1:
        return (), ""
    name = names[0]
    compare = COMPARE.get(name, _costs if name in DEGREES else None)
    if compare is None:
        return (), ""
    near = []
    for other in candidates:
        if other is not best and other.good:
            apart, noise = compare(best, other, name)
            if apart <= noise:
                near.append((apart, noise, other))
    near.sort(key=lambda one: one[0])
    if not near:
        return (), _unknown_noise(best, candidates, name)
    apart, noise, nearest = near[0]
    unit = (facts.get("quality") or {}).get("metric") if name == "quality" else name
    shown = format_number if name == "quality" else "{:.1%}".format
    more = f" and {len(near) - 1} more" if len(near) > 1 else ""
    return tuple(one[2] for one in near), (
        f"a tie with {nearest.candidate}{more}: {unit} differs by {shown(apart)}, within the noise "
        f"of single runs ({shown(noise)}); another seed may choose another"
    )


def _unknown_noise(best: CandidateResult, candidates: Sequence[CandidateResult], name: str) -> str:
    """Say how far the next candidate is where trainings were too short to tell their noise."""
    cost = _cost(best, name) if name in DEGREES else None
    others = [
        (abs(other_cost / cost - 1), other.candidate)
        for other in candidates
        if other is not best and other.good and None in (best.cost_noise, other.cost_noise)
        if cost and (other_cost := _cost(other, name)) is not None
    ]
    if not others:
        return ""
    apart, nearest = min(others)
    return (
        f"{name} differs by {apart:.1%} from {nearest}; so few epochs do not tell the noise of a "
        "run, and another seed may choose another"
    )


def _costs(one: CandidateResult, other: CandidateResult, name: str) -> tuple[float, float]:
    """Return the relative difference of the cost of two trainings, and its noise."""
    first, second = _cost(one, name), _cost(other, name)
    if not first or second is None or one.cost_noise is None or other.cost_noise is None:
        return math.inf, 0.0
    noise = math.hypot(one.cost_noise, other.cost_noise, _sensor_noise(one, other))
    return abs(second / first - 1), DEGREES[name] * noise


def _cost(candidate: CandidateResult, name: str) -> float | None:
    energy_j = energy_to_target_j(candidate)
    time_s = candidate.to_target_s if candidate.reached else candidate.time_s
    if time_s is None or (energy_j is None and name != "time"):
        return None
    if name == "time":
        return time_s if candidate.reached or candidate.status == "ended" else None
    return (energy_j or 0.0) * time_s ** (DEGREES[name] - 1)


def _sensor_noise(one: CandidateResult, other: CandidateResult) -> float:
    """Return the relative error of the ratio of two energies, without shared errors."""
    first, second = one.error, other.error
    if first is not None and second is not None and first.energy_j and second.energy_j:
        shared = first.models.keys() & second.models.keys()
        own = [error.without(shared) / error.energy_j for error in (first, second)]
        return math.hypot(*own, ratio_error(first, second))
    return math.hypot(
        *(
            candidate.uncertainty_j / candidate.energy_j
            for candidate in (one, other)
            if candidate.energy_j and candidate.provenance not in MODELS
        )
    )


def _qualities(one: CandidateResult, other: CandidateResult, _: str) -> tuple[float, float]:
    """Return the difference of the best metric of two trainings, and its noise."""
    if one.best is None or other.best is None:
        return math.inf, 0.0
    if one.quality_noise is None or other.quality_noise is None:
        return math.inf, 0.0
    return abs(one.best - other.best), math.hypot(one.quality_noise, other.quality_noise)


def _quotients(one: CandidateResult, other: CandidateResult, _: str) -> tuple[float, float]:
    """Return the relative difference of quality per joule of an epoch, and its noise."""
    per_joule, noises = [], [_sensor_noise(one, other)]
    for each in (one, other):
        if not (each.best and each.energy_j) or None in (each.cost_noise, each.quality_noise):
            return math.inf, 0.0
        per_joule.append(each.best * each.epochs / each.energy_j)
        noises += [each.cost_noise or 0.0, (each.quality_noise or 0.0) / each.best]
    return abs(per_joule[1] / per_joule[0] - 1), math.hypot(*noises)


COMPARE = {"quality": _qualities, "quotient": _quotients}
"""Objectives with a comparison of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSummary:
    """A search in a few numbers.

    Attributes:
        stopped: the limit that ended it; empty when it finished, or is running.
        energy_j: spent, what was repeated and idle devices included; None when unknown.
        repeated_j: of that, what was trained again because the search was killed.
        idle_j: of that, devices that waited for others.
        best: the configuration to use, None as long as there is none; `why` in a sentence, which
            for none tells how near the target one came and what failed.
        front: of several objectives, the configurations that no other beats in all of them.
        saved_j: energy to the target of the default minus that of the best; None when one of them
            is not known.
        ties: configurations that may be as good as the best: the difference is within noise.
        tie: that in a sentence; empty where the best is better than all others.
    """

    search_id: str
    name: str
    status: str
    stopped: str
    scope: str | None
    provenance: str
    energy_j: float | None
    uncertainty_j: float
    repeated_j: float
    idle_j: float
    elapsed_s: float
    candidates: int
    segments: int
    failed: int
    best: CandidateResult | None
    why: str
    front: tuple[CandidateResult, ...]
    default: CandidateResult | None
    saved_j: float | None
    ties: tuple[CandidateResult, ...] = ()
    tie: str = ""

    def to_dict(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in self.__slots__}
        for name in ("best", "default"):
            data[name] = None if data[name] is None else data[name].to_dict()
        data["front"] = [candidate.to_dict() for candidate in self.front]
        data["ties"] = [candidate.candidate for candidate in self.ties]
        return data

    def status_of(self, candidate: CandidateResult) -> str:
        """Return how it ended; in a finished search no candidate waits to be resumed."""
        if candidate.reached:
            return "good enough"
        if candidate.status == "paused" and self.status == "finished" and not self.stopped:
            return "stopped early"
        return candidate.status.replace("_", " ")


def summarize_search(
    store: Store,
    experiment: Experiment,
    candidates: Sequence[CandidateResult] | None = None,
    chosen: Mapping[str, Any] | None = None,
) -> SearchSummary:
    """Return the summary of a stored search, finished or not.

    `candidates`: its candidates, if already read.
    `chosen`: its current best, in place of the one stored when it last ended.
    """
    facts = experiment.facts
    if candidates is None:
        candidates = read_candidates(store, experiment.experiment_id, stored_quality(facts))
    by_name = {c.candidate: c for c in candidates}
    chosen = chosen or facts.get("best") or {}
    best = by_name.get(str(chosen.get("candidate")))
    default = find_default(candidates, facts.get("default"))
    known = [c for c in candidates if c.energy_j is not None]
    energy_j = None
    idle_j = sum(c.idle_j for c in candidates)
    if known:
        energy_j = sum((c.energy_j or 0.0) + c.repeated_j for c in known) + idle_j
    saved_j = None
    if best is not None and default is not None:
        one, other = energy_to_target_j(default), energy_to_target_j(best)
        saved_j = None if one is None or other is None else one - other
    kinds = sorted({c.provenance for c in candidates if c.provenance})
    ties, tie = find_ties(best, candidates, facts)
    reasons = (_nearest(candidates, stored_quality(facts)), _faults(candidates))
    return SearchSummary(
        search_id=experiment.experiment_id,
        name=experiment.name,
        status=experiment.status,
        stopped=str(facts.get("stopped") or ""),
        scope=facts.get("scope"),
        provenance=", ".join(kinds) or "not measured",
        energy_j=energy_j,
        uncertainty_j=sum(c.uncertainty_j**2 for c in candidates) ** 0.5,
        repeated_j=sum(c.repeated_j for c in candidates),
        idle_j=idle_j,
        elapsed_s=float(facts.get("elapsed_s") or sum(c.time_s for c in candidates)),
        candidates=len(candidates),
        segments=sum(c.segments for c in candidates),
        failed=sum(c.segments > 0 and not c.good for c in candidates),
        best=best,
        why=str(chosen.get("why") or "") or ("" if best else "; ".join(filter(None, reasons))),
        front=tuple(by_name[name] for name in facts.get("front") or () if name in by_name),
        default=default,
        saved_j=saved_j,
        ties=ties,
        tie=tie,
    )


def find_default(
    candidates: Sequence[CandidateResult], default: Mapping[str, Value] | None
) -> CandidateResult | None:
    for candidate in candidates if default else ():
        own = {**candidate.levers, **candidate.parameters}
        if all(own.get(name) == value for name, value in (default or {}).items()):
            return candidate
    return None


def _nearest(candidates: Sequence[CandidateResult], quality: Quality | None) -> str:
    came = {c.candidate: c.best for c in candidates if c.best is not None}
    if quality is None or not came:
        return ""
    pick = max if quality.maximize else min
    name = pick(came, key=lambda candidate: came[candidate])
    if quality.target is None:
        wanted = f"been trained to its end, {name} was best with {quality.metric}"
    else:
        wanted = f"reached {quality.metric} {quality.target:g}, {name} came nearest with"
    return f"none has {wanted} {format_number(came[name])}"


def _faults(candidates: Sequence[CandidateResult]) -> str:
    failed = [c for c in candidates if c.segments > 0 and not c.good]
    if not failed:
        return ""
    said = [f", {c.candidate}: {c.messages[-1]}" for c in failed if c.messages]
    return f"{len(failed)} of {len(candidates)} configurations failed{''.join(said[-1:])}"
