"""What a search has found so far, folded from its segments: a line per candidate, and a summary.

Works on plain records: ten thousand of them are read and folded in a second.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from wattloop.core.model_error import EnergyError
from wattloop.store.database import Store
from wattloop.store.experiments import TrialRecord, each_trial
from wattloop.tune.problem import Quality
from wattloop.tune.progress import Status
from wattloop.tune.segment import CAP_LEVER, Value
from wattloop.tune.stored import unreadable, without_collecting

__all__ = ["CandidateResult", "candidates_from", "candidates_of", "parameter_columns"]


@dataclass(slots=True, kw_only=True)
class CandidateResult:
    """One configuration, and what its training took and gave.

    Attributes:
        number: its place in the order in which candidates were begun.
        levers: of its last segment; a cap that was found inside one is among them.
        status: of its last segment that has ended.
        segments: that have ended.
        time_s, energy_j: of all of them, repetitions aside; energy None when a part is not known.
        quality, best: the metric at its end, and the best of all epochs.
        reached: whether the quality asked for was reached; then `to_target_s` and `to_target_j` are
            what that took.
        cost_noise: by which share another run of the same may take more or less, as far as one
            run tells; `quality_noise`: by how much its metric wavers. None where too little is
            known.
        repeated_j: spent beside, because a search was killed.
        idle_j: of other devices that waited meanwhile.
        provenance: of the energy; the weakest, where segments differ.
        messages: what went wrong, or is worth knowing.
        error: the uncertainty taken apart; None where a segment does not know it.
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
        """Whether its numbers may be compared with those of others."""
        return self.segments > 0 and Status(self.status).good

    @property
    def power_w(self) -> float | None:
        """Mean power over its training."""
        if self.energy_j is None or self.time_s <= 0:
            return None
        return self.energy_j / self.time_s

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = {**asdict(self), "power_w": self.power_w}
        del data["error"]
        return data


def candidates_of(
    store: Store, search_id: str, quality: Quality | None = None
) -> list[CandidateResult]:
    """Every candidate of a stored search, in the order in which they were begun."""
    with without_collecting():
        return candidates_from(each_trial(store, search_id), quality)


def candidates_from(
    records: Iterable[TrialRecord], quality: Quality | None = None
) -> list[CandidateResult]:
    """As `candidates_of`, from records in the order in which they were begun."""
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
                raise unreadable(record.key, error) from None
    return list(found.values())


def parameter_columns(candidates: Sequence[CandidateResult]) -> dict[str, str]:
    """Parameter, learning rate or lever -> name of its column in a table.

    One that is called as a result is (a parameter `epochs`) has `parameter.` before its name.
    """
    names = {name: None for c in candidates for name in c.parameters}
    names |= {name: None for c in candidates for name in c.levers}
    return {name: f"parameter.{name}" if name in RESULTS else name for name in names}


RESULTS = (
    *("candidate", "number", "status", "segments", "epochs", "time_s", "energy_j"),
    *("uncertainty_j", "power_w", "quality", "best", "reached", "to_target_s", "to_target_j"),
    *("repeated_j", "idle_j", "provenance", "learning_rate", "message"),
)
"""Columns of a table that are no parameters."""


def _add(
    result: CandidateResult, record: TrialRecord, quality: Quality | None, *, kept: bool
) -> None:
    """One more segment that has ended."""
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
    _look_at_noise(result, outcome.get("curve") or ())
    if quality is not None and quality.target is not None and not result.reached:
        _look_for_target(result, outcome, quality)


def _error(result: CandidateResult, outcome: Mapping[str, Any]) -> EnergyError | None:
    """With one more segment; None once one of them does not know it."""
    told = outcome.get("error")
    if not told:
        return None
    error = EnergyError.from_dict(told)
    if result.segments == 1:
        return error
    return None if result.error is None else result.error.plus(error)


def _look_at_noise(result: CandidateResult, curve: Sequence[Mapping[str, Any]]) -> None:
    """The scatter of the epochs of its last segment: of their energy, and of the metric."""
    joules = [p["energy_j"] for p in curve if p["energy_j"] is not None]
    each_j = [later - earlier for earlier, later in pairwise(joules)]
    if len(each_j) >= FEW_EPOCHS and sum(each_j) > 0:
        result.cost_noise = stdev(each_j) / fmean(each_j) / len(each_j) ** 0.5
    told = [p["quality"] for p in curve if p["quality"] is not None]
    steps = [later - earlier for earlier, later in pairwise(told[len(told) // 2 :])]
    if len(steps) >= FEW_EPOCHS:
        # differences: a training that still improves does not waver by as much as it improves
        result.quality_noise = stdev(steps) / 2**0.5


def _look_for_target(result: CandidateResult, outcome: Mapping[str, Any], quality: Quality) -> None:
    if not quality.reached(outcome.get("best")):
        return
    result.reached = True
    for point in outcome.get("curve") or ():
        if quality.reached(point["quality"]):
            result.to_target_s, result.to_target_j = point["time_s"], point["energy_j"]
            # quality is looked at when an epoch ends: what it took is known to within one
            result.cost_noise = 1 / point["epoch"] if point["epoch"] > 0 else None
            return
    result.to_target_s, result.to_target_j = result.time_s, result.energy_j


FEW_EPOCHS = 3
"""Fewer differences say nothing about scatter."""
ORDER = ("", "measured", "modelled", "estimated", "replayed", "simulated")


def _weaker(one: str, other: str) -> str:
    known = [kind for kind in (one, other) if kind in ORDER]
    return max(known, key=ORDER.index) if len(known) == 2 else one or other
