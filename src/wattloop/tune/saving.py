"""What the winner of a search saves against the default, and when the search has paid."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from wattloop.control.lever import Setting
from wattloop.core.model_error import EnergyError, ratio_error
from wattloop.tune.problem import Problem
from wattloop.tune.segment import Value
from wattloop.tune.summary import SearchSummary

__all__ = ["NOTHING_SAVED", "FinalResult", "FullRun", "compared"]

NOTHING_SAVED = "nothing is saved"


@dataclass(frozen=True, slots=True, kw_only=True)
class FullRun:
    """One configuration trained in full.

    Attributes:
        energy_j, time_s: to the target where there is one and it was reached, else to its end.
        uncertainty_j: half-width, from the sensors; two runs of one training differ by more.
        from_search: whether the search had trained it in full already.
        files: the folder in which it saved something.
        error: the uncertainty taken apart; None when not known.
    """

    parameters: Mapping[str, Value]
    levers: Mapping[str, Setting]
    status: str
    quality: float | None
    reached: bool
    epochs: float
    time_s: float
    energy_j: float | None
    uncertainty_j: float
    provenance: str
    run_id: str | None = None
    message: str = ""
    from_search: bool = False
    files: str = ""
    error: EnergyError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalResult:
    """Whether the search has paid.

    Attributes:
        saved_j: energy of a run of the default minus that of the winner; None when one of the two
            is not known or not good enough to compare.
        saved_uncertainty_j: half-width of that, as far as the two runs differ in error (one model
            of one machine errs alike in both), with one epoch where a target ended a run.
        break_even_runs: after so many runs the energy spent searching is saved; None when nothing
            is saved.
        certain: whether the saving is larger than its uncertainty; if not, the two are a tie.
        notes: what to beware of when these numbers are compared with the search's.
    """

    final_id: str
    search: SearchSummary
    winner: FullRun
    default: FullRun | None
    saved_j: float | None
    saved_uncertainty_j: float
    saved_s: float | None
    break_even_runs: float | None
    certain: bool
    why: str
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = {**asdict(self), "search": self.search.to_dict()}
        for run in ("winner", "default"):
            if data[run] is not None:
                del data[run]["error"]
        return data


def compared(
    final_id: str,
    search: SearchSummary,
    winner: FullRun,
    default: FullRun | None,
    problem: Problem,
) -> FinalResult:
    """Whether the winner saves anything, and when that has paid for the search."""
    result = FinalResult(
        final_id=final_id,
        search=search,
        winner=winner,
        default=default,
        saved_j=None,
        saved_uncertainty_j=0.0,
        saved_s=None,
        break_even_runs=None,
        certain=False,
        why="",
    )
    if default is None:
        return replace(result, why="no default configuration is stated to compare with")
    if default is winner:
        return replace(result, saved_j=0.0, saved_s=0.0, why="the default is the best")
    if winner.energy_j is None or default.energy_j is None:
        return replace(result, why="the energy of one of the two could not be read")
    target = problem.quality.target
    if target is not None and not winner.reached:
        return replace(result, why="the winner did not reach the target when trained in full")
    if target is not None and not default.reached:
        why = "the default does not reach the target, so its energy is no measure"
        return replace(result, why=why)
    saved_j = default.energy_j - winner.energy_j
    uncertainty_j = math.hypot(_uncertainty_j(default, winner), _epoch_j(default), _epoch_j(winner))
    runs = None
    if saved_j > 0 and search.energy_j is not None:
        runs = search.energy_j / saved_j
    return replace(
        result,
        saved_j=saved_j,
        saved_uncertainty_j=uncertainty_j,
        saved_s=default.time_s - winner.time_s,
        break_even_runs=runs,
        certain=saved_j > uncertainty_j,
        why="" if saved_j > 0 else NOTHING_SAVED,
    )


def _uncertainty_j(default: FullRun, winner: FullRun) -> float:
    """Half-width of what is saved; the error of a model that made both energies cancels."""
    one, other = default.error, winner.error
    if one is None or other is None or not one.energy_j:
        return math.hypot(default.uncertainty_j, winner.uncertainty_j)
    shared = one.models.keys() & other.models.keys()
    left_j = one.energy_j * ratio_error(one, other)
    return math.hypot(one.without(shared), other.without(shared), left_j)


def _epoch_j(run: FullRun) -> float:
    """Quality is looked at when an epoch ends: energy to a target is known to within one."""
    if not run.reached or run.energy_j is None or run.epochs <= 0:
        return 0.0
    return run.energy_j / run.epochs
