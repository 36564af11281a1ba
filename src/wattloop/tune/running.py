"""From a specification to a search that runs: strategy, bench, record, all put together."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from wattloop.core.errors import ConfigError, ExperimentNotFound, WattloopError
from wattloop.core.settings import Settings
from wattloop.store.database import Store
from wattloop.store.experiments import (
    Experiment,
    delete_experiment,
    find_experiment,
    set_experiment_status,
)
from wattloop.trials.claim import refuse_claimed
from wattloop.tune.benches import COMMAND, Training, bench_for
from wattloop.tune.device_groups import device_groups
from wattloop.tune.engines.ray_words import slots_asked
from wattloop.tune.levers import cannot_be_set
from wattloop.tune.listening import Listener
from wattloop.tune.problem import Problem
from wattloop.tune.search_loop import Search, Stopped
from wattloop.tune.search_record import KIND, OVER, SearchRecord, open_search
from wattloop.tune.segment import CAP_LEVER
from wattloop.tune.space import Space
from wattloop.tune.spec import SearchSpec, spec_from
from wattloop.tune.strategies import strategy_for

__all__ = ["Prepared", "fingerprint", "prepared", "problem_without", "resumed"]


SPENDING = ("energy", "time", "trials")
"""Limits of a search that may be raised when it has come to one of them."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A search that is ready to run, anew or from where it was."""

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
        """Whether it came to its own end before, not to a limit."""
        facts = self.experiment.facts
        return self.is_resumed and self.experiment.status == "finished" and not facts.get("stopped")

    def run(self) -> Stopped:
        """Run it to its end."""
        return self.search.run()


def prepared(
    spec: SearchSpec,
    store: Store,
    settings: Settings,
    *,
    training: Training = COMMAND,
    resume: bool = True,
    resume_only: bool = False,
    parallel: int | str | None = None,
    listener: Listener | None = None,
) -> Prepared:
    """The unfinished search of this specification, or a new one.

    Args:
        spec: what is searched.
        store: where it is kept.
        settings: how to measure.
        training: the specification's command unless given.
        resume: whether an unfinished one is gone on with.
        resume_only: whether a new one is refused.
        parallel: how many GPUs train side by side, or groups of them (`device_groups`), or those
            of a Ray cluster (`slots_asked`); one training at a time unless given.
        listener: told what happens.

    Raises:
        ConfigError: neither function nor command, or a strategy that cannot work here.
        DeviceBusy: another process runs it.
    """
    mark = fingerprint(spec, training)
    ray = None if parallel is None else slots_asked(str(parallel))
    # whether the workers of a cluster can set a lever is found out there
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
    _checked(spec, problem, training)
    if parallel is not None and ray is None:
        device_groups(parallel)
    experiment, is_resumed = open_search(
        store, spec.to_dict(), mark, name=spec.name, facts=facts, resume=resume, only=resume_only
    )
    if is_resumed:
        refuse_claimed(store, experiment.experiment_id)
    limits = spec.to_dict().get("limits") or {}
    if is_resumed and limits:
        _keep_limits(store, experiment, limits)
    try:
        return _put_together(experiment, spec, store, settings, training, listener, is_resumed)
    except WattloopError as error:
        if not is_resumed:  # nobody should go on with what could never begin
            delete_experiment(store, experiment.experiment_id)
        elif parallel is None and (before := experiment.facts.get("parallel")) is not None:
            raise ConfigError(
                f"{experiment.experiment_id}, which was begun with --parallel {before}, cannot go "
                f"on here: {error}; --new begins anew, one training at a time"
            ) from None
        raise


def resumed(
    reference: str | None,
    store: Store,
    settings: Settings,
    *,
    training: Training = COMMAND,
    limits: Mapping[str, Any] | None = None,
    listener: Listener | None = None,
) -> Prepared:
    """A stored search to go on with; unless one is named, the last that is unfinished.

    Args:
        reference: identifier, its beginning or end, name, or `last`.
        store: that has it.
        settings: how to measure.
        training: the specification's command unless given.
        limits: in place of those it was begun with, as a specification has them.
        listener: told what happens.

    Raises:
        ExperimentNotFound: there is none.
        ConfigError: it trains a Python function, and none was given.
        DeviceBusy: another process runs it.
    """
    experiment = (
        _unfinished(store) if reference is None else find_experiment(store, reference, KIND)
    )
    refuse_claimed(store, experiment.experiment_id)
    # limits given to an earlier going on hold until others are given
    raised = {**(experiment.facts.get("limits") or {}), **(limits or {})}
    own = experiment.spec.get("limits") or {}
    spec = spec_from(
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
    return _put_together(experiment, spec, store, settings, training, listener, True)


def fingerprint(spec: SearchSpec, training: Training = COMMAND) -> str:
    """The same for the same specification and training, whatever the search may spend."""
    written = spec.to_dict()
    own = written.get("limits") or {}
    limits = {name: value for name, value in own.items() if name not in SPENDING}
    told = {"spec": {**written, "limits": limits}, "function": training.name}
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def _keep_limits(store: Store, experiment: Experiment, limits: Mapping[str, Any]) -> None:
    """Whoever goes on with it without saying any goes on with these."""
    set_experiment_status(
        store, experiment.experiment_id, experiment.status, {"limits": dict(limits)}
    )


def _unfinished(store: Store) -> Experiment:
    from wattloop.store.experiments import list_experiments

    for experiment in list_experiments(store, KIND):
        if experiment.status not in OVER:
            return experiment
    raise ExperimentNotFound(f"{store.where}: no unfinished search; see 'wattloop tune list'")


def _put_together(
    experiment: Experiment,
    spec: SearchSpec,
    store: Store,
    settings: Settings,
    training: Training,
    listener: Listener | None,
    is_resumed: bool,
) -> Prepared:
    without = experiment.facts.get("without") or {}
    problem = problem_without(spec.problem(settings), without)
    record = SearchRecord(store, experiment)
    bench = bench_for(spec, problem, settings, record, training)
    search = Search(record, problem, strategy_for(spec, problem), bench, listener=listener)
    return Prepared(experiment, is_resumed, spec, problem, record, search, without)


def problem_without(problem: Problem, names: Iterable[str]) -> Problem:
    """The problem without hardware parameters that cannot be set on this machine.

    Raises:
        ConfigError: nothing is left to search.
    """
    gone = list(names)
    if not gone:
        return problem
    kept = {n: p for n, p in problem.space.parameters.items() if n not in gone}
    if not kept and problem.cap is None:
        raise ConfigError(
            f"nothing to search: {', '.join(gone)} cannot be set here and there is no other "
            "parameter; 'wattloop devices' says what would allow it"
        )
    default = {n: value for n, value in problem.default.items() if n not in gone}
    # where there is nothing but the cap, the training as it is remains
    cap = None if CAP_LEVER in gone and kept else problem.cap
    return replace(problem, space=Space(kept), default=default, cap=cap)


def _checked(spec: SearchSpec, problem: Problem, training: Training) -> None:
    """What would otherwise be found out after the search was written down."""
    if not training.name and not spec.command:
        raise ConfigError(
            "nothing to train: give a command after '--' or as 'command:' in the specification"
        )
    strategy_for(spec, problem)
