"""What a search cost, what it found, and what that saves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattloop.core.units import format_number
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment
from wattloop.tune.candidate_results import CandidateResult, candidates_of
from wattloop.tune.problem import Quality
from wattloop.tune.search_table import quality_of
from wattloop.tune.ties import cost_j, ties_of

__all__ = ["SearchSummary", "summary_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSummary:
    """A search in a few numbers.

    Attributes:
        stopped: the limit that ended it; empty when it came to its own end, or goes on.
        scope, provenance: of all energies.
        energy_j: spent, what was repeated and idle devices included; None when nothing is known.
        uncertainty_j: half-width, of what was measured.
        repeated_j: of that, what was trained again because the search was killed.
        idle_j: of that, devices that waited for others.
        candidates, segments: begun, and ended.
        best: the configuration to use, None as long as there is none; `why` in a sentence, which
            for none tells how near the target one came and what failed.
        front: of several objectives, the configurations that no other beats in all of them.
        default: the configuration people would have used, where it was trained.
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
        """Plain data for JSON."""
        data = {name: getattr(self, name) for name in self.__slots__}
        for name in ("best", "default"):
            data[name] = None if data[name] is None else data[name].to_dict()
        data["front"] = [candidate.to_dict() for candidate in self.front]
        data["ties"] = [candidate.candidate for candidate in self.ties]
        return data

    def status_of(self, candidate: CandidateResult) -> str:
        """How it ended, for people: in a finished search none waits to be resumed."""
        if candidate.reached:
            return "good enough"
        if candidate.status == "paused" and self.status == "finished" and not self.stopped:
            return "stopped early"
        return candidate.status.replace("_", " ")


def summary_of(
    store: Store,
    experiment: Experiment,
    candidates: Sequence[CandidateResult] | None = None,
    chosen: Mapping[str, Any] | None = None,
) -> SearchSummary:
    """The summary of a stored search, finished or not.

    Args:
        store: that has it.
        experiment: the search.
        candidates: of it, where they are at hand.
        chosen: its best configuration as it stands, in place of what it wrote when it last ended.
    """
    facts = experiment.facts
    if candidates is None:
        candidates = candidates_of(store, experiment.experiment_id, quality_of(facts))
    by_name = {c.candidate: c for c in candidates}
    chosen = chosen or facts.get("best") or {}
    best = by_name.get(str(chosen.get("candidate")))
    default = _default(candidates, facts)
    known = [c for c in candidates if c.energy_j is not None]
    energy_j = None
    idle_j = sum(c.idle_j for c in candidates)
    if known:
        energy_j = sum((c.energy_j or 0.0) + c.repeated_j for c in known) + idle_j
    saved_j = None
    if best is not None and default is not None:
        one, other = cost_j(default), cost_j(best)
        saved_j = None if one is None or other is None else one - other
    kinds = sorted({c.provenance for c in candidates if c.provenance})
    ties, tie = ties_of(best, candidates, facts)
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
        why=str(chosen.get("why") or "") or ("" if best else _why_none(candidates, facts)),
        front=tuple(by_name[name] for name in facts.get("front") or () if name in by_name),
        default=default,
        saved_j=saved_j,
        ties=ties,
        tie=tie,
    )


def _default(
    candidates: Sequence[CandidateResult], facts: dict[str, Any]
) -> CandidateResult | None:
    wanted = facts.get("default")
    if not wanted:
        return None
    for candidate in candidates:
        own = {**candidate.levers, **candidate.parameters}
        if all(own.get(name) == value for name, value in wanted.items()):
            return candidate
    return None


def _why_none(candidates: Sequence[CandidateResult], facts: dict[str, Any]) -> str:
    """How near the target they came, and what failed; empty where nothing is known."""
    told = (_nearest(candidates, quality_of(facts)), _faults(candidates))
    return "; ".join(text for text in told if text)


def _nearest(candidates: Sequence[CandidateResult], quality: Quality | None) -> str:
    came = {c.candidate: c.best for c in candidates if c.best is not None}
    if quality is None or quality.target is None or not came:
        return ""
    pick = max if quality.maximize else min
    name = pick(came, key=lambda candidate: came[candidate])
    return (
        f"none has reached {quality.metric} {quality.target:g}, {name} came nearest with "
        f"{format_number(came[name])}"
    )


def _faults(candidates: Sequence[CandidateResult]) -> str:
    """How many configurations failed, and what one of them said; empty where none did."""
    failed = [c for c in candidates if c.segments > 0 and not c.good]
    if not failed:
        return ""
    said = [f", {c.candidate}: {c.messages[-1]}" for c in failed if c.messages]
    return f"{len(failed)} of {len(candidates)} configurations failed{''.join(said[-1:])}"
