"""Full training of a search's winner, compared with the default configuration."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from wattloop.control.lever import Setting
from wattloop.core.clock import RealClock
from wattloop.core.errors import ConfigError
from wattloop.core.process import stops_deferred, stops_raise
from wattloop.core.results import EnergyError, ratio_error
from wattloop.core.settings import Settings
from wattloop.core.units import format_energy, short_energy
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.database import Store
from wattloop.store.experiments import (
    Experiment,
    create_experiment,
    find_experiment,
    new_experiment_id,
    set_experiment_status,
)
from wattloop.store.journal_import import import_orphaned
from wattloop.trials.experiment_lock import end_leftovers, lock_experiment
from wattloop.tune.executors.training_executor import CandidateFiles
from wattloop.tune.results import (
    CandidateResult,
    SearchSummary,
    aggregate_candidates,
    summarize_search,
)
from wattloop.tune.search_problem import Problem
from wattloop.tune.search_setup import (
    COMMAND,
    TrainingSource,
    current_choice,
    executor_for,
    parse_device_groups,
    parse_ray_slots,
    problem_without,
)
from wattloop.tune.search_store import KIND, SearchRecord
from wattloop.tune.segment import Segment, Until, Value
from wattloop.tune.space import Linked
from wattloop.tune.spec import SearchSpec, stored_spec

NOTHING_SAVED = "nothing is saved"


@dataclass(frozen=True, slots=True, kw_only=True)
class FullRun:
    """One configuration trained in full.

    Attributes:
        energy_j, time_s: to the target where there is one and it was reached, else to its end.
        uncertainty_j: half-width, from the sensors; two runs of one training differ by more.
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
    """Comparison of the winner with the default.

    Attributes:
        saved_j: energy of a run of the default minus that of the winner; None when one of the two
            is not known or not good enough to compare.
        saved_uncertainty_j: half-width of that, without errors that both runs share (one model on
            one machine), with one epoch where a target ended a run.
        break_even_runs: after so many runs the energy spent searching is saved; None when nothing
            is saved.
        certain: whether the saving is larger than its uncertainty; if not, the two are a tie.
        notes: caveats for a comparison of these numbers with the search's.
    """

    final_id: str
    search: SearchSummary
    winner: FullRun
    default: FullRun | None
    saved_j: float | None = None
    saved_uncertainty_j: float = 0.0
    saved_s: float | None = None
    break_even_runs: float | None = None
    certain: bool = False
    why: str = ""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        data = {**asdict(self), "search": self.search.to_dict()}
        for run in ("winner", "default"):
            if data[run] is not None:
                del data[run]["error"]
        return data


def compare_runs(
    final_id: str, search: SearchSummary, winner: FullRun, default: FullRun | None, problem: Problem
) -> FinalResult:
    result = FinalResult(final_id=final_id, search=search, winner=winner, default=default)
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
        why = "the default does not reach the target, so its energy is not comparable"
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
    """Return the half-width of the saving; the error of a shared energy model cancels."""
    one, other = default.error, winner.error
    if one is None or other is None or not one.energy_j:
        return math.hypot(default.uncertainty_j, winner.uncertainty_j)
    shared = one.models.keys() & other.models.keys()
    left_j = one.energy_j * ratio_error(one, other)
    return math.hypot(one.without(shared), other.without(shared), left_j)


def _epoch_j(run: FullRun) -> float:
    """Return the energy of an epoch: energy to a target is known to within one epoch."""
    if not run.reached or run.energy_j is None or run.epochs <= 0:
        return 0.0
    return run.energy_j / run.epochs


def format_saving(result: FinalResult) -> str:
    search = result.search
    spent = "an unknown amount" if search.energy_j is None else format_energy(search.energy_j)
    scope = f"{search.scope or 'unknown'} energy, {search.provenance}"
    if result.saved_j is None:
        return f"spent {spent} searching; what it saves is not known: {result.why} ({scope})"
    if result.saved_j <= 0:
        why = "" if result.why == NOTHING_SAVED else f": {result.why}"
        return f"spent {spent} searching; nothing is saved{why} ({scope})"
    saved = format_energy(result.saved_j)
    within = short_energy(result.saved_uncertainty_j, result.saved_j)
    share = 100 * result.saved_j / (result.default.energy_j or 1) if result.default else 0.0
    text = f"spent {spent} searching, saves {saved} ± {within} a run ({share:.0f}%)"
    if not result.certain:
        text += ": a tie, within the noise of single runs; repeat it to be sure"
    elif result.break_even_runs is not None:
        text += f", pays back after {_runs(result)}"
    return f"{text} ({scope})"


def _runs(result: FinalResult) -> str:
    assert result.break_even_runs is not None
    assert result.saved_j is not None
    middle = result.break_even_runs
    low = middle * result.saved_j / (result.saved_j + result.saved_uncertainty_j)
    text = _count(middle)
    if result.certain:
        high = middle * result.saved_j / (result.saved_j - result.saved_uncertainty_j)
        if _count(low) != _count(high):
            text += f" ({_count(low)} to {_count(high)})"
    return f"{text} run{'s' if text != '1' else ''}"


def _count(runs: float) -> str:
    return f"{runs:.1f}" if runs < 10 and round(runs, 1) != round(runs) else f"{runs:.0f}"


FINAL = "final"
WINNER, DEFAULT = "winner", "default"
ELSEWHERE = (
    "the search ran on a Ray cluster and this on the devices of this machine: what is spent on a "
    "run here may not compare with what the search spent"
)


def train_final(
    reference: str,
    store: Store,
    settings: Settings,
    *,
    training: TrainingSource = COMMAND,
    to_the_end: bool = False,
    configuration: Mapping[str, Value] | None = None,
) -> FinalResult:
    """Train the winner of a search, and the default unless the search has done that.

    With `configuration` that one is trained in place of the winner.

    Both train on this machine: where the search ran on a cluster the default is trained here as
    well, and the result says so.

    Raises:
        ConfigError: the search has no winner yet, or a function is needed.
        DeviceBusy: another process runs the search.
    """
    search = find_experiment(store, reference, KIND)
    spec = stored_spec(search.spec)
    if search.facts.get("function") and not training.name:
        raise ConfigError(
            f"{search.experiment_id} trains the Python function {search.facts['function']}; call "
            "SearchResult.final() in that program"
        )
    best = current_choice(store, search, settings)
    if best is None:
        raise ConfigError(
            f"{search.experiment_id} has found no configuration that is good enough yet; go on "
            "with 'wattloop tune resume', or lower the target"
        )
    summary = summarize_search(store, search)
    problem = problem_without(spec.problem(settings), search.facts.get("without") or {})
    runs = _Runs(store, search, spec, problem, settings, training, to_the_end=to_the_end)
    parameters = dict(best.parameters)
    if configuration is not None:
        linked = {n for n, p in problem.space.parameters.items() if isinstance(p, Linked)}
        free = {name: value for name, value in configuration.items() if name not in linked}
        own, levers = problem.space.split(problem.space.complete(free))
        parameters, best = dict(own), replace(best, levers=dict(levers), learning_rate=None)
    elif best.learning_rate is not None and problem.rate is not None:
        parameters[problem.rate] = best.learning_rate
    default = None
    # The devices of Ray workers are not those measured here.
    elsewhere = parse_ray_slots(str(search.facts.get("parallel") or "")) is not None
    # A running search, or programs of a killed one, would be in the measured energy.
    with lock_experiment(store, search.experiment_id), runs:
        end_leftovers(store, search.experiment_id)
        winner = runs.train(WINNER, parameters, best.levers)
        if problem.default:
            own, levers = problem.space.split(problem.space.complete(problem.default))
            if own == parameters and dict(levers) == dict(best.levers):
                default = winner
            else:
                train_again = to_the_end or elsewhere
                default = None if train_again else _known(summary, problem)
                default = default or runs.train(DEFAULT, own, levers)
    result = compare_runs(runs.experiment.experiment_id, summary, winner, default, problem)
    if elsewhere:
        result = replace(result, notes=(ELSEWHERE,))
    _keep(store, search, result)
    return result


def _keep(store: Store, search: Experiment, result: FinalResult) -> None:
    """Write the result into the record of the search, for its report."""
    told = {**result.to_dict(), "said": format_saving(result)}
    del told["search"]
    now = find_experiment(store, search.experiment_id, KIND)
    set_experiment_status(store, search.experiment_id, now.status, {"final": told})


class _Runs:
    """Full trainings as a separate experiment."""

    def __init__(
        self,
        store: Store,
        search: Experiment,
        spec: SearchSpec,
        problem: Problem,
        settings: Settings,
        training: TrainingSource,
        *,
        to_the_end: bool,
    ) -> None:
        wall_s = RealClock().wall_s()
        self.experiment = Experiment(
            experiment_id=new_experiment_id(FINAL, wall_s),
            kind=FINAL,
            name=search.name,
            created_wall_s=wall_s,
            spec=search.spec,
            facts={
                "search": search.experiment_id,
                "scope": search.facts.get("scope"),
                **_devices(search.facts.get("parallel")),
            },
        )
        self._store, self._problem = store, problem
        self._record = SearchRecord(store, self.experiment)
        self._executor = executor_for(spec, problem, settings, self._record, training)
        self._to_the_end = to_the_end

    def __enter__(self) -> "_Runs":
        create_experiment(self._store, self.experiment)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._executor.close()
        self._record.close()
        status = "finished" if kind is None else "interrupted"
        set_experiment_status(self._store, self.experiment.experiment_id, status)

    def train(
        self, name: str, parameters: Mapping[str, Value], levers: Mapping[str, Setting]
    ) -> FullRun:
        target = self._problem.quality.target is not None and not self._to_the_end
        segment = Segment(
            key=name,
            candidate=name,
            parameters=dict(parameters),
            levers=dict(levers),
            until=Until(epochs=self._problem.limits.epochs, at_target=target),
            seed=self._problem.seed,
        )
        identity = self.experiment.experiment_id
        with stops_raise(), lock_experiment(self._store, identity), stops_deferred() as stops:
            end_leftovers(self._store, identity)
            self._record.begin(segment)
            with stops.lifted():
                progress = self._executor.run(segment)
            record = self._record.end(segment, progress)
            import_orphaned(self._store, finalize_orphaned_run)
        files = CandidateFiles(self._record.folder, name).checkpoint
        (result,) = aggregate_candidates([record], self._problem.quality)
        return _full_run(
            result,
            levers=segment.levers,
            epochs=progress.epochs,
            uncertainty_j=progress.uncertainty_j,
            run_id=progress.run_id,
            message=progress.message,
            files=str(files) if files.is_dir() and any(files.iterdir()) else "",
        )


def _devices(parallel: int | str | None) -> dict[str, str]:
    """Return as many GPUs as a training of the search had; others would add idle energy."""
    if parallel is None or parse_ray_slots(str(parallel)) is not None:
        return {}
    return {"parallel": ",".join(f"gpu:{number}" for number in parse_device_groups(parallel)[0])}


def _full_run(found: CandidateResult, **more: Any) -> FullRun:
    energy_j = found.to_target_j if found.to_target_j is not None else found.energy_j
    time_s = found.to_target_s if found.to_target_s is not None else found.time_s
    known = found.error is not None and energy_j is not None
    run = FullRun(
        parameters=found.parameters,
        levers=found.levers,
        status=found.status,
        quality=found.best,
        reached=found.reached,
        epochs=found.epochs,
        time_s=time_s,
        energy_j=energy_j,
        uncertainty_j=found.uncertainty_j,
        provenance=found.provenance,
        # of the energy to the target where it was reached, else of the whole run
        error=found.error.scaled(energy_j, time_s) if known else None,  # type: ignore[union-attr,arg-type]  # `known` says they are there
    )
    return replace(run, **more)


def _known(summary: SearchSummary, problem: Problem) -> FullRun | None:
    """Return the default's run from the search, if complete and without a search for a cap."""
    found = summary.default
    if found is None or found.energy_j is None or problem.cap is not None:
        return None
    if not (found.reached or found.status == "ended"):
        return None
    return _full_run(found, from_search=True)
