"""Python API of a search: one call that runs it, or resumes it after an interruption."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattloop.control.lever import Setting
from wattloop.core.settings import Settings, load_settings
from wattloop.store.database import Store, open_store
from wattloop.store.experiments import find_experiment
from wattloop.tune.final import FinalResult, train_final
from wattloop.tune.results import CandidateResult, SearchSummary, search_table, summarize_search
from wattloop.tune.search_loop import SearchCallback
from wattloop.tune.search_setup import (
    Maker,
    PreparedSearch,
    TrainingSource,
    prepare_search,
    resume_search,
)
from wattloop.tune.segment import Value
from wattloop.tune.space import Space
from wattloop.tune.spec import SearchSpec, given_fields, spec_from
from wattloop.tune.trial import Trial

Train = Callable[[Trial], Any] | str | Sequence[str]
_log = logging.getLogger("wattloop.tune")


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The configuration to use: how to train it, the reason, and its result in the search."""

    parameters: Mapping[str, Value]
    levers: Mapping[str, Setting]
    learning_rate: float | None
    why: str
    found: CandidateResult


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search that has finished or stopped at a limit; the store holds it too."""

    search_id: str
    stopped: str
    """The limit that ended it; empty when there was nothing more to try."""
    summary: SearchSummary
    spec: SearchSpec
    settings: Settings
    _training: TrainingSource

    @property
    def best(self) -> Best | None:
        """Return the configuration to use; None when none reached the target."""
        found = self.summary.best
        if found is None:
            return None
        return Best(
            parameters=found.parameters,
            levers=found.levers,
            learning_rate=found.learning_rate,
            why=self.summary.why,
            found=found,
        )

    def table(self) -> list[dict[str, Any]]:
        """Return one flat row per configuration, ready for `pandas.DataFrame`."""
        with open_store(self.settings.store_location) as store:
            return search_table(store, self.search_id)

    def final(self, *, to_the_end: bool = False) -> FinalResult:
        """Train the best configuration in full, and the default, and compare them."""
        with open_store(self.settings.store_location) as store:
            return train_final(
                self.search_id, store, self.settings, training=self._training, to_the_end=to_the_end
            )

    def resume(self, **limits: Any) -> "SearchResult":
        """Continue the search; `limits` replace those it had (`energy="2kWh"`, `trials=50`)."""
        with open_store(self.settings.store_location) as store:
            own = self._training
            ready = resume_search(self.search_id, store, self.settings, training=own, limits=limits)
            return _run_prepared(ready, store, self.settings, own)


def search(  # noqa: PLR0913 - the options of a specification, all but three with defaults
    train: Train | None = None,
    *,
    space: Mapping[str, Any] | Space,
    metric: str,
    goal: str | None = None,
    target: float | None = None,
    strategy: str | Mapping[str, Any] | None = None,
    objective: str | Sequence[str] | Mapping[str, Any] | None = None,
    default: Mapping[str, Value] | None = None,
    hardware: Mapping[str, Any] | None = None,
    energy: str | float | None = None,
    time: str | float | None = None,
    trials: int | None = None,
    epochs: float | None = None,
    trial_timeout: str | float | None = None,
    scope: str | None = None,
    seed: int = 0,
    name: str = "",
    rate: str | None = None,
    checkpoint: bool = False,
    metrics_file: str | None = None,
    parallel: int | str | None = None,
    bench: Maker | None = None,
    new: bool = False,
    listener: SearchCallback | None = None,
    settings: Settings | None = None,
    store: str | None = None,
) -> SearchResult:
    """Find the configuration that reaches the target for the least energy.

    Called again with the same arguments, after a kill or an interruption, it resumes where it
    stopped.

    Args:
        train: a function that takes a `Trial`, or a command.
        bench: factory of a custom executor, such as `TorchExecutor`, in place of `train`.
        space: parameter -> values, `{"min": .., "max": ..}` or a `Parameter`.
        metric: what `trial.report` calls the quality.
        goal: whether to `maximize` or `minimize` it.
        target: what is good enough; without one and without an objective the best quality wins.
        strategy: by name, or a mapping with its options; unless given `race`, or `asha` where
            neither a target nor an objective is.
        objective: what to make small among those that are good enough; energy unless given.
        default: the configuration people would use without a search.
        hardware: levers that may be set, such as `{"power_limit": "auto"}`; nothing unless given.
        energy: that the search may spend, such as `"2kWh"`.
        time: that it may take, such as `"8h"`.
        trials: configurations that may be begun.
        epochs: of one training.
        trial_timeout: the longest that one stretch of a training may take.
        scope: whose energy counts; unless given the widest that is read, without idle GPUs.
        seed: of everything random.
        name: of the search.
        rate: the parameter that is the learning rate.
        checkpoint: whether a command saves its state when it is asked to end.
        metrics_file: file that a command writes, in addition to its output.
        parallel: how many GPUs train side by side, or groups such as `"0,1;2,3"`, or `"ray"` for
            those of a Ray cluster (`"ray:4x2"`: four trainings on two each); one training at
            a time unless given. A function must then be defined at the top of a module.
        new: start a new search, even when the same search is unfinished.
        listener: receives the events of the search.
        settings: how to measure; from environment and file unless given.
        store: database to use, in place of the one in the settings.

    Raises:
        ConfigError: a wrong option, or a training that never reports its metric.
        DeviceBusy: another process runs the same search.
        StoreError: the results cannot be written.
    """
    settings = load_settings() if settings is None else settings
    if store is not None:
        settings = settings.overridden({"store": store}, "search()")
    limits = given_fields(
        energy=energy, time=time, trials=trials, epochs=epochs, trial_timeout=trial_timeout
    )
    written: dict[str, Any] = {
        "name": name,
        "metric": given_fields(name=metric, goal=goal, target=target),
        "parameters": space.parameters if isinstance(space, Space) else dict(space),
        "hardware": hardware,
        "objective": objective,
        "limits": limits,
        "default": default,
        "strategy": strategy,
        "rate": rate,
        "seed": seed,
        "scope": scope,
        "checkpoint": checkpoint,
        "metrics_file": metrics_file,
        "command": None if callable(train) else train,
    }
    spec = spec_from(given_fields(**written))
    for remark in spec.remarks:
        _log.warning("%s", remark)
    training = TrainingSource(train if callable(train) else None, bench)
    with open_store(settings.store_location) as opened:
        ready = prepare_search(
            spec,
            opened,
            settings,
            training=training,
            resume=not new,
            parallel=parallel,
            listener=listener,
        )
        return _run_prepared(ready, opened, settings, training)


def _run_prepared(
    ready: PreparedSearch, store: Store, settings: Settings, training: TrainingSource
) -> SearchResult:
    stopped = ready.run()
    experiment = find_experiment(store, ready.experiment.experiment_id)
    return SearchResult(
        experiment.experiment_id,
        stopped.limit,
        summarize_search(store, experiment),
        ready.spec,
        settings,
        training,
    )
