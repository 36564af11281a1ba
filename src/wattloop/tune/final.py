"""The winner of a search trained in full, and what it saves against the default configuration."""

from collections.abc import Mapping
from dataclasses import replace

from wattloop.control.lever import Setting
from wattloop.core.clock import RealClock
from wattloop.core.errors import ConfigError
from wattloop.core.model_error import EnergyError
from wattloop.core.settings import Settings
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.database import Store
from wattloop.store.experiments import (
    Experiment,
    TrialRecord,
    begin_trial,
    create_experiment,
    end_trial,
    find_experiment,
    new_experiment_id,
    set_experiment_status,
)
from wattloop.store.journal_import import import_orphaned
from wattloop.trials.claim import claimed, end_leftovers
from wattloop.trials.limits import stops_deferred, stops_raise
from wattloop.tune.benches import COMMAND, Training, bench_for
from wattloop.tune.candidate_results import CandidateResult, candidates_from
from wattloop.tune.checkpoint import CandidateFiles
from wattloop.tune.device_groups import device_groups
from wattloop.tune.engines.ray_words import slots_asked
from wattloop.tune.problem import Problem
from wattloop.tune.progress import Progress
from wattloop.tune.running import problem_without
from wattloop.tune.saving import FinalResult, FullRun, compared
from wattloop.tune.saving_words import saving_in_words
from wattloop.tune.search_record import KIND, SearchRecord
from wattloop.tune.segment import Segment, Until, Value
from wattloop.tune.spec import SearchSpec, spec_from
from wattloop.tune.standing import chosen_now
from wattloop.tune.summary import SearchSummary, summary_of

__all__ = ["FINAL", "FinalResult", "train_final"]

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
    training: Training = COMMAND,
    to_the_end: bool = False,
) -> FinalResult:
    """Train the winner of a search, and the default unless the search has done that.

    Both train on this machine: where the search ran on a cluster the default is trained here as
    well, and the result says so.

    Args:
        reference: the search.
        store: that has it.
        settings: how to measure.
        training: the specification's command unless given.
        to_the_end: go on after the target was reached.

    Raises:
        ConfigError: the search has no winner yet, or a function is needed.
        DeviceBusy: the search goes on in another process.
    """
    search = find_experiment(store, reference, KIND)
    spec = spec_from(search.spec)
    if search.facts.get("function") and not training.name:
        raise ConfigError(
            f"{search.experiment_id} trains the Python function {search.facts['function']}; call "
            "SearchResult.final() in that program"
        )
    best = chosen_now(store, search, settings)
    if best is None:
        raise ConfigError(
            f"{search.experiment_id} has found no configuration that is good enough yet; go on "
            "with 'wattloop tune resume', or lower the target"
        )
    summary = summary_of(store, search)
    problem = problem_without(spec.problem(settings), search.facts.get("without") or {})
    runs = _Runs(store, search, spec, problem, settings, training, to_the_end=to_the_end)
    parameters = dict(best.parameters)
    if best.learning_rate is not None and problem.rate is not None:
        parameters[problem.rate] = best.learning_rate
    default = None
    elsewhere = _ran_on_cluster(search)
    # a search that goes on, or what a killed one left running, would be in the numbers
    with claimed(store, search.experiment_id), runs:
        end_leftovers(search.experiment_id)
        winner = runs.train(WINNER, parameters, best.levers)
        if problem.default:
            own, levers = problem.space.split(problem.space.complete(problem.default))
            if own == parameters and dict(levers) == dict(best.levers):
                default = winner
            else:
                anew = to_the_end or elsewhere
                default = None if anew else _known(summary, problem)
                default = default or runs.train(DEFAULT, own, levers)
    result = compared(runs.experiment.experiment_id, summary, winner, default, problem)
    if elsewhere:
        result = replace(result, notes=(ELSEWHERE,))
    _keep(store, search, result)
    return result


def _ran_on_cluster(search: Experiment) -> bool:
    """Whether workers of Ray trained, whose devices are not those that are measured here."""
    return slots_asked(str(search.facts.get("parallel") or "")) is not None


def _keep(store: Store, search: Experiment, result: FinalResult) -> None:
    """With the search, whose report tells it."""
    told = {**result.to_dict(), "said": saving_in_words(result)}
    del told["search"]
    now = find_experiment(store, search.experiment_id, KIND)
    set_experiment_status(store, search.experiment_id, now.status, {"final": told})


class _Runs:
    """Full trainings as an experiment of their own."""

    def __init__(
        self,
        store: Store,
        search: Experiment,
        spec: SearchSpec,
        problem: Problem,
        settings: Settings,
        training: Training,
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
        self._bench = bench_for(spec, problem, settings, self._record, training)
        self._to_the_end = to_the_end
        self._status = "interrupted"

    def __enter__(self) -> "_Runs":
        create_experiment(self._store, self.experiment)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bench.close()
        status = "finished" if kind is None else "interrupted"
        set_experiment_status(self._store, self.experiment.experiment_id, status)

    def train(
        self, name: str, parameters: Mapping[str, Value], levers: Mapping[str, Setting]
    ) -> FullRun:
        """One configuration from its beginning to its end."""
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
        with stops_raise(), claimed(self._store, identity), stops_deferred() as stops:
            end_leftovers(identity)
            settings = {"segment": segment.to_dict(), "asked": 0}
            begun = begin_trial(self._store, identity, name, settings)
            with stops.lifted():
                progress = self._bench.run(segment)
            record = TrialRecord(
                key=name,
                number=begun.number,
                status=progress.status.value,
                settings=begun.settings,
                outcome={**progress.to_dict(), "told": 1},
                run_id=progress.run_id,
            )
            end_trial(self._store, identity, record)
            import_orphaned(self._store, finalize_orphaned_run)
        files = CandidateFiles(self._record.folder, name).checkpoint
        full = _full(segment, progress, record, self._problem)
        return replace(full, files=str(files) if files.is_dir() and any(files.iterdir()) else "")


def _devices(parallel: int | str | None) -> dict[str, str]:
    """GPUs as one training of the search had them: others would be in the energy, idle or not."""
    if parallel is None or slots_asked(str(parallel)) is not None:
        return {}
    return {"parallel": ",".join(f"gpu:{number}" for number in device_groups(parallel)[0])}


def _full(segment: Segment, progress: Progress, record: TrialRecord, problem: Problem) -> FullRun:
    (result,) = candidates_from([record], problem.quality)
    return FullRun(
        parameters=segment.parameters,
        levers=segment.levers,
        status=progress.status.value,
        quality=progress.best,
        reached=result.reached,
        epochs=progress.epochs,
        time_s=result.to_target_s if result.to_target_s is not None else result.time_s,
        energy_j=result.to_target_j if result.to_target_j is not None else result.energy_j,
        uncertainty_j=progress.uncertainty_j,
        provenance=progress.provenance,
        run_id=progress.run_id,
        message=progress.message,
        error=_error_to_target(result),
    )


def _known(summary: SearchSummary, problem: Problem) -> FullRun | None:
    """The default as the search trained it, where that was in full and no cap was looked for."""
    found = summary.default
    if found is None or found.energy_j is None or problem.cap is not None:
        return None
    if not (found.reached or found.status == "ended"):
        return None
    return FullRun(
        parameters=found.parameters,
        levers=found.levers,
        status=found.status,
        quality=found.best,
        reached=found.reached,
        epochs=found.epochs,
        time_s=found.to_target_s if found.to_target_s is not None else found.time_s,
        energy_j=found.to_target_j if found.to_target_j is not None else found.energy_j,
        uncertainty_j=found.uncertainty_j,
        provenance=found.provenance,
        from_search=True,
        error=_error_to_target(found),
    )


def _error_to_target(found: CandidateResult) -> EnergyError | None:
    """Of the energy that counts: to the target where there is one and it was reached."""
    energy_j = found.to_target_j if found.to_target_j is not None else found.energy_j
    time_s = found.to_target_s if found.to_target_s is not None else found.time_s
    if found.error is None or energy_j is None:
        return None
    return found.error.scaled(energy_j, time_s)
