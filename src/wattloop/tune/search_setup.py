"""Set-up of a search from its specification: strategy, executor, store, resumption."""

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from wattloop.core.errors import ConfigError, ExperimentNotFound, WattloopError
from wattloop.core.settings import Settings
from wattloop.store.database import Store
from wattloop.store.experiments import (
    Experiment,
    TrialRecord,
    delete_experiment,
    find_experiment,
    list_experiments,
    set_experiment_status,
)
from wattloop.trials.experiment_lock import program_variables, refuse_locked
from wattloop.tune.executors.base import ExecutorParts, TrialExecutor
from wattloop.tune.levers import cannot_be_set
from wattloop.tune.search_loop import Search, SearchCallback, SearchStopped
from wattloop.tune.search_problem import Problem
from wattloop.tune.search_store import KIND, OVER, SearchRecord, open_search
from wattloop.tune.segment import CAP_LEVER, without_gc
from wattloop.tune.space import Space
from wattloop.tune.spec import SearchSpec, stored_spec
from wattloop.tune.strategies import strategy_for
from wattloop.tune.strategies.base import Chosen, Strategy
from wattloop.tune.trial import Trial

VISIBLE = "CUDA_VISIBLE_DEVICES"


def parse_device_groups(asked: int | str) -> list[tuple[str, ...]]:
    """Parse groups of GPUs: `2` is two GPUs, `0,1;2,3` two pairs, `gpu:0` one GPU."""
    text = str(asked).strip()
    seen = os.environ.get(VISIBLE)
    if text.isdigit() and ";" not in text:
        count = int(text)
        numbers = [str(n) for n in range(count)] if seen is None else seen.split(",")
        if not 1 <= count <= len(numbers):
            raise ConfigError(f"parallel {asked}: {VISIBLE} is '{seen}'; ask for fewer")
        return [(number.strip(),) for number in numbers[:count]]
    groups = [
        tuple(word.strip().removeprefix("gpu:") for word in group.split(",") if word.strip())
        for group in text.split(";")
    ]
    named = [number for group in groups for number in group]
    if not all(groups) or not all(number.isdigit() for number in named):
        raise ConfigError(
            f"parallel {asked}: write how many GPUs, or groups such as 0;1 or 0,1;2,3"
        )
    if len(set(named)) < len(named):
        raise ConfigError(f"parallel {asked}: a GPU is named twice; trainings must not share one")
    return groups


Function = Callable[[Trial], Any]
Maker = Callable[[ExecutorParts], TrialExecutor]


@dataclass(frozen=True, slots=True)
class TrainingSource:
    """Training in place of the command of a specification."""

    function: Function | None = None
    bench: Maker | None = None

    @property
    def name(self) -> str:
        """Return the name of the function or of the executor's factory; empty for a command."""
        own = self.function or self.bench
        if own is None:
            return ""
        module = getattr(own, "__module__", "") or ""
        return f"{module}.{getattr(own, '__qualname__', type(own).__name__)}"


COMMAND = TrainingSource()
"""The command of the specification."""


def executor_for(
    spec: SearchSpec,
    problem: Problem,
    settings: Settings,
    record: SearchRecord,
    training: TrainingSource,
) -> TrialExecutor:
    facts = record.experiment.facts
    parts = ExecutorParts(
        problem=problem,
        settings=settings,
        folder=record.folder,
        tags=record.tags,
        scope=facts.get("scope") or spec.scope,
        search_id=record.search_id,
        variables=program_variables(record.store, record.search_id),
    )
    if training.bench is not None:
        return training.bench(parts)
    parallel = facts.get("parallel")
    if parallel is None:
        return _single_executor(spec, training.function, parts, settings)
    from wattloop.tune.executors.parallel import ParallelExecutor

    if spec.scope not in (None, ParallelExecutor.scope):
        raise ConfigError(
            f"scope {spec.scope}: trainings side by side can only be told apart by the energy of "
            "their GPUs; leave out scope, or run one at a time"
        )
    own = replace(parts, scope=ParallelExecutor.scope)
    make = functools.partial(_single_executor, spec, training.function, own)
    asked = parse_ray_slots(str(parallel))
    if asked is not None:
        from wattloop.tune.executors.ray import RayExecutor

        return RayExecutor(make, settings, slots=asked[0], gpus=asked[1])
    return ParallelExecutor(make, settings, parse_device_groups(parallel))


def _single_executor(
    spec: SearchSpec, function: Function | None, parts: ExecutorParts, settings: Settings
) -> TrialExecutor:
    """Return an executor of one training at a time, in this process, measured with `settings`."""
    options: dict[str, Any] = {"folder": parts.folder, "tags": parts.tags, "scope": parts.scope}
    if function is not None:
        from wattloop.tune.executors.function import FunctionExecutor

        return FunctionExecutor(function, parts.problem, settings, **options)
    from wattloop.tune.executors.command import CommandExecutor

    return CommandExecutor(
        spec.command,
        parts.problem,
        settings,
        search_id=parts.search_id,
        variables=parts.variables,
        checkpoint=spec.checkpoint,
        metrics_file=spec.metrics_file,
        **options,
    )


SPENDING = ("energy", "time", "trials")
"""Limits of a search that may be raised after it has reached one of them."""


@dataclass(frozen=True, slots=True)
class PreparedSearch:
    """Search that is ready to run, new or resumed."""

    experiment: Experiment
    is_resumed: bool
    spec: SearchSpec
    problem: Problem
    record: SearchRecord
    search: Search
    without: Mapping[str, str]
    """Hardware parameters that are left out because they cannot be set -> why."""

    @property
    def is_over(self) -> bool:
        facts = self.experiment.facts
        return self.is_resumed and self.experiment.status == "finished" and not facts.get("stopped")

    def run(self) -> SearchStopped:
        return self.search.run()


def prepare_search(
    spec: SearchSpec,
    store: Store,
    settings: Settings,
    *,
    training: TrainingSource = COMMAND,
    resume: bool = True,
    resume_only: bool = False,
    parallel: int | str | None = None,
    listener: SearchCallback | None = None,
) -> PreparedSearch:
    """Return the unfinished search of this specification, or a new one.

    `training`: the specification's command unless given.
    `parallel`: how many GPUs train side by side, or groups of them (`device_groups`), or those of a
    Ray cluster (`slots_asked`); one training at a time unless given.

    Raises:
        ConfigError: neither function nor command, or a strategy that cannot work here.
        DeviceBusy: another process runs it.
    """
    mark = fingerprint(spec, training)
    ray = None if parallel is None else parse_ray_slots(str(parallel))
    # Only the workers of a cluster know whether they can set a lever.
    whole = spec.problem(settings)
    without = cannot_be_set(whole.space, settings, whole.cap) if ray is None else {}
    problem = problem_without(whole, without)
    facts = {
        "quality": asdict(problem.quality),
        "default": dict(problem.default),
        "objective": problem.objective.to_dict(),
        "function": training.name,
        "without": without,
        **({} if parallel is None else {"parallel": parallel}),
    }
    if not training.name and not spec.command:
        raise ConfigError(
            "nothing to train: give a command after '--' or as 'command:' in the specification"
        )
    strategy_for(spec, problem)  # refuses what cannot work before anything is stored
    if parallel is not None and ray is None:
        parse_device_groups(parallel)
    experiment, is_resumed = open_search(
        store, spec.to_dict(), mark, name=spec.name, facts=facts, resume=resume, only=resume_only
    )
    if is_resumed:
        refuse_locked(store, experiment.experiment_id)
    limits = spec.to_dict().get("limits") or {}
    if is_resumed and limits:
        _keep_limits(store, experiment, limits)
    try:
        return _assemble(experiment, spec, store, settings, training, listener, is_resumed)
    except WattloopError as error:
        if not is_resumed:  # a search that could never start must not be resumed
            delete_experiment(store, experiment.experiment_id)
        elif parallel is None and (before := experiment.facts.get("parallel")) is not None:
            raise ConfigError(
                f"{experiment.experiment_id}, which was begun with --parallel {before}, cannot go "
                f"on here: {error}; --new starts a new search, one training at a time"
            ) from None
        raise


def resume_search(
    reference: str | None,
    store: Store,
    settings: Settings,
    *,
    training: TrainingSource = COMMAND,
    limits: Mapping[str, Any] | None = None,
    listener: SearchCallback | None = None,
) -> PreparedSearch:
    """Return a stored search to resume; unless one is named, the last unfinished one.

    `reference`: identifier, its beginning or end, name, or `last`.
    `training`: the specification's command unless given.
    `limits`: in place of those it was started with, as in a specification.

    Raises:
        ExperimentNotFound: no such search.
        ConfigError: it trains a Python function, and none was given.
        DeviceBusy: another process runs it.
    """
    experiment = (
        _unfinished(store) if reference is None else find_experiment(store, reference, KIND)
    )
    refuse_locked(store, experiment.experiment_id)
    # Limits given at an earlier resumption apply until others are given.
    raised = {**(experiment.facts.get("limits") or {}), **(limits or {})}
    own = experiment.spec.get("limits") or {}
    spec = stored_spec(
        {**experiment.spec, "limits": {**own, **raised}} if raised else experiment.spec
    )
    if limits:
        _keep_limits(store, experiment, raised)
    known = experiment.facts.get("function")
    if known and not training.name:
        raise ConfigError(
            f"{experiment.experiment_id} trains the Python function {known}; go on with it by "
            "running the same program again"
        )
    return _assemble(experiment, spec, store, settings, training, listener, True)


def fingerprint(spec: SearchSpec, training: TrainingSource = COMMAND) -> str:
    """Return a hash of specification and training, without the limits."""
    written = spec.to_dict()
    own = written.get("limits") or {}
    limits = {name: value for name, value in own.items() if name not in SPENDING}
    told = {"spec": {**written, "limits": limits}, "function": training.name}
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def _keep_limits(store: Store, experiment: Experiment, limits: Mapping[str, Any]) -> None:
    set_experiment_status(
        store, experiment.experiment_id, experiment.status, {"limits": dict(limits)}
    )


def _unfinished(store: Store) -> Experiment:
    for experiment in list_experiments(store, KIND):
        if experiment.status not in OVER:
            return experiment
    raise ExperimentNotFound(f"{store.where}: no unfinished search; see 'wattloop tune list'")


def _assemble(
    experiment: Experiment,
    spec: SearchSpec,
    store: Store,
    settings: Settings,
    training: TrainingSource,
    listener: SearchCallback | None,
    is_resumed: bool,
) -> PreparedSearch:
    without = experiment.facts.get("without") or {}
    problem = problem_without(spec.problem(settings), without)
    record = SearchRecord(store, experiment)
    executor = executor_for(spec, problem, settings, record, training)
    search = Search(record, problem, strategy_for(spec, problem), executor, listener=listener)
    return PreparedSearch(experiment, is_resumed, spec, problem, record, search, without)


def problem_without(problem: Problem, names: Iterable[str]) -> Problem:
    """Return the problem without hardware parameters that cannot be set on this machine."""
    gone = list(names)
    if not gone:
        return problem
    kept = {n: p for n, p in problem.space.parameters.items() if n not in gone}
    if not kept and problem.cap is None:
        raise ConfigError(
            f"nothing to search: {', '.join(gone)} cannot be set here and the space has no other "
            "parameter; 'wattloop devices' says what would allow it"
        )
    default = {n: value for n, value in problem.default.items() if n not in gone}
    # with only the cap in the space, the plain training remains
    cap = None if CAP_LEVER in gone and kept else problem.cap
    return replace(problem, space=Space(kept), default=default, cap=cap)


def current_choice(
    store: Store,
    experiment: Experiment,
    settings: Settings,
    records: Iterable[TrialRecord] | None = None,
) -> Chosen | None:
    """Return the choice of its strategy, told all that is stored (`records`, where read).

    A search that has ended or was interrupted has stored its choice; one that is running or was
    killed has not. If its specification cannot be read any more the result is None, not an error:
    viewing a search must not fail.
    """
    known = experiment.facts.get("best")
    if known or experiment.status in OVER:
        return None if not known else Chosen(**known)
    strategy = restored_strategy(store, experiment, settings, records)
    return None if strategy is None else strategy.best()


def restored_strategy(
    store: Store,
    experiment: Experiment,
    settings: Settings,
    records: Iterable[TrialRecord] | None = None,
) -> Strategy | None:
    """Return its strategy, told all that is stored; None where it cannot be built any more."""
    try:
        spec = stored_spec(experiment.spec)
        problem = problem_without(spec.problem(settings), experiment.facts.get("without") or {})
        strategy = strategy_for(spec, problem)
        with without_gc():
            strategy.recall(SearchRecord(store, experiment).history(records).events)
        return strategy
    except WattloopError:
        return None


def parse_ray_slots(text: str) -> tuple[int | None, int] | None:
    """Parse slots and GPUs per slot: `ray`, `ray:4`, `ray:4x2`; None for other texts."""
    if not text.startswith("ray"):
        return None
    found = re.fullmatch(r"ray(?::([1-9]\d*)(?:x([1-9]\d*))?)?", text)
    if found is None:
        raise ConfigError(
            f"parallel {text}: write 'ray' for every GPU of the cluster, 'ray:4' for four of them, "
            "or 'ray:4x2' for four trainings on two GPUs each"
        )
    count, gpus = found.groups()
    return None if count is None else int(count), int(gpus or 1)
