"""Export a stored search as an Optuna study, for `optuna-dashboard sqlite:///FILE.db`."""

import sqlite3
import warnings
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.pool import StaticPool

from wattloop.accounting.energy_delay import Point
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.settings import Settings
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment, find_experiment, read_trials
from wattloop.tune.objective import NEED_QUALITY, TrainingCost
from wattloop.tune.results import CandidateResult, aggregate_candidates, find_default
from wattloop.tune.search_problem import Problem
from wattloop.tune.space import Space
from wattloop.tune.spec import stored_spec
from wattloop.tune.strategies.optuna import distributions, import_optuna, new_study

JOURNALS = (".log", ".journal")
"""File endings of a journal, as in optuna-dashboard."""


def new_storage(file: str) -> Any:
    """Open an Optuna storage in a file, which may have other studies."""
    optuna = import_optuna("an Optuna study")
    path = Path(user_path(file))
    if not path.parent.is_dir():
        raise ConfigError(f"{file}: the folder {path.parent} does not exist")
    if path.suffix in JOURNALS:
        _check_journal(path)
        backend = optuna.storages.journal.JournalFileBackend(str(path))
        return optuna.storages.JournalStorage(backend)
    _check_database(path)
    return optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs=_fast())


def _check_database(path: Path) -> None:
    if not path.exists():
        return
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            connection.execute("SELECT name FROM sqlite_master").fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise ConfigError(f"{path}: no SQLite file ({error}); give another name") from None


def _check_journal(path: Path) -> None:
    """Refuse to append to a file that Optuna has not written: JSON lines with its `op_code`."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb") as lines:
        first = lines.readline(4096)
    if b'"op_code"' not in first:
        raise ConfigError(f"{path}: no journal of Optuna; give another name")


def _fast() -> dict[str, Any]:
    """Skip the disk sync after each trial: the file can be written again."""

    class Quick(sqlite3.Connection):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.execute("PRAGMA synchronous=OFF")
            self.execute("PRAGMA journal_mode=MEMORY")

    return {"connect_args": {"factory": Quick}, "poolclass": StaticPool}


# The store stays the record. Each candidate is a trial: the objective is its value, quality per
# epoch its intermediate values, and energy, time, status and provenance its user attributes. A
# candidate that was stopped before its target is *pruned*, one that failed has *failed*.

LARGER_IS_BETTER = ("quotient", "quality")
"""Objectives that people maximize although the search minimizes them, where more quality is better;
SM2's f always is.
"""
UNITS = {
    **{"energy": "J", "time": "s", "edp": "J s", "ed2p": "J s^2", "e2dp": "J^2 s"},
    **{"carbon": "g", "quotient": "/J"},
}
Listener = Callable[[int, int], None]


def export_study(
    store: Store,
    search_id: str,
    file: str,
    *,
    settings: Settings | None = None,
    listener: Listener | None = None,
) -> str:
    """Write a search into a new study of a file, and return the study's name.

    `file`: a new file, or one with other studies; a database, or with `.log` at its end a journal
    of Optuna, which is written twenty times faster.
    `settings`: where prices and carbon intensity come from, if the objective needs them.

    Raises:
        ConfigError: Optuna is missing, the file is not a database, or has that study already.
        ExperimentNotFound: no such search.
    """
    optuna = import_optuna("an Optuna study")
    experiment = find_experiment(store, search_id, "search")
    spec = stored_spec(experiment.spec)
    problem = spec.problem(settings)
    records = read_trials(store, experiment.experiment_id)
    candidates = aggregate_candidates(records, problem.quality)
    curves = _curves(records)
    study = _study(optuna, experiment, problem, file)
    known = distributions(problem.space)
    values = _values(optuna, problem, candidates)
    begun = datetime.fromtimestamp(experiment.created_wall_s)
    for number, candidate in enumerate(candidates):
        trial = _trial(optuna, problem, known, candidate, curves.get(candidate.candidate, {}))
        if trial.state is optuna.trial.TrialState.COMPLETE:
            trial.values = values[candidate.candidate]
        # Trials are laid end to end: the store knows only how long each took.
        trial.datetime_start = begun
        begun += timedelta(seconds=candidate.time_s)
        if trial.state.is_finished():
            trial.datetime_complete = begun
        study.add_trial(trial)
        if listener is not None:
            listener(number + 1, len(candidates))
    return str(study.study_name)


def _study(optuna: Any, experiment: Experiment, problem: Problem, file: str) -> Any:
    name = experiment.name or experiment.experiment_id
    try:
        names = problem.objective.names
        directions = ["maximize" if _turned(problem, n) else "minimize" for n in names]
        study = new_study(directions, storage=new_storage(file), study_name=name)
    except optuna.exceptions.DuplicatedStudyError:
        raise ConfigError(
            f"{file}: it has a study '{name}' already; give another file, or remove this one"
        ) from None
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - SQLAlchemy's and Alembic's have no common base
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise ConfigError(f"{file}: cannot be written as a study: {reason}") from None
    with warnings.catch_warnings():
        # "experimental" in every version since 3.2; only titles of the dashboard depend on it
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names([_metric_name(problem, n) for n in problem.objective.names])
    study.set_user_attr("wattloop:search", experiment.experiment_id)
    study.set_user_attr("wattloop:strategy", stored_spec(experiment.spec).strategy.name)
    study.set_user_attr("wattloop:scope", str(experiment.facts.get("scope") or ""))
    if problem.quality.metric:
        study.set_user_attr("wattloop:metric", problem.quality.metric)
        study.set_user_attr("wattloop:target", problem.quality.target)
    return study


def _turned(problem: Problem, name: str) -> bool:
    return name == "sm2" or (problem.objective.maximize_quality and name in LARGER_IS_BETTER)


def _metric_name(problem: Problem, name: str) -> str:
    if name == "quality":
        return problem.quality.metric
    return f"{name} ({UNITS[name]})" if name in UNITS else name


def _reference(problem: Problem, candidates: list[CandidateResult]) -> Point | None:
    good = [c for c in candidates if c.good and c.energy_j]
    found = find_default(good, problem.default) or next(iter(good), None)
    return None if found is None else Point(found.time_s, found.energy_j or 0.0)


def _values(
    optuna: Any, problem: Problem, candidates: list[CandidateResult]
) -> dict[str, list[float]]:
    """Return the values of all complete trials together: SM2 weighs them against each other."""
    done = optuna.trial.TrialState.COMPLETE
    complete = [c for c in candidates if _state(optuna, problem, c) is done]
    trained = [_trained(problem, candidate) for candidate in complete]
    compared = problem.objective.compared(trained, _reference(problem, candidates))
    signs = [-1.0 if _turned(problem, name) else 1.0 for name in problem.objective.names]
    return {
        candidate.candidate: [sign * score for sign, score in zip(signs, scores, strict=True)]
        for candidate, scores in zip(complete, compared, strict=True)
    }


def _trained(problem: Problem, candidate: CandidateResult) -> TrainingCost:
    """Return the training up to the target, or all of it where more quality is worth more."""
    to_target = not NEED_QUALITY & set(problem.objective.names)
    reached = to_target and candidate.to_target_s is not None
    rate = candidate.learning_rate
    if rate is None and problem.rate:
        written = candidate.parameters.get(problem.rate)
        rate = float(written) if isinstance(written, int | float) else None
    return TrainingCost(
        time_s=candidate.to_target_s if reached else candidate.time_s,  # type: ignore[arg-type]  # `reached` says it is there
        energy_j=candidate.to_target_j if reached else candidate.energy_j,
        quality=candidate.best if candidate.best is not None else candidate.quality,
        epochs=candidate.epochs or None,
        learning_rate=rate,
    )


def _trial(
    optuna: Any,
    problem: Problem,
    known: dict[str, Any],
    candidate: CandidateResult,
    curve: dict[int, float],
) -> Any:
    own = {**candidate.parameters, **candidate.levers}
    inside = {n: v for n, v in own.items() if n in known and _allowed(problem.space, n, v)}
    state = _state(optuna, problem, candidate)
    several = problem.objective.several
    complete = state is optuna.trial.TrialState.COMPLETE
    return optuna.trial.create_trial(
        state=state,
        params=inside,
        distributions={name: known[name] for name in inside},
        values=[0.0] * len(problem.objective.names) if complete else None,
        intermediate_values={} if several else curve,
        user_attrs=_attributes(candidate, {n: v for n, v in own.items() if n not in inside}),
    )


def _allowed(space: Space, name: str, value: Any) -> bool:
    try:
        space.parameters[name].checked(value)
    except ConfigError:
        return False
    return True


def _state(optuna: Any, problem: Problem, candidate: CandidateResult) -> Any:
    states = optuna.trial.TrialState
    if candidate.segments == 0:
        return states.RUNNING
    if not candidate.good:
        return states.FAIL
    (scores,) = problem.objective.compared([_trained(problem, candidate)])
    if any(score == float("inf") for score in scores):
        return states.FAIL
    if problem.quality.target is not None and not candidate.reached:
        return states.PRUNED
    return states.COMPLETE


def _attributes(candidate: CandidateResult, more: dict[str, Any]) -> dict[str, Any]:
    names = (
        *("candidate", "status", "energy_j", "uncertainty_j", "time_s", "power_w", "quality"),
        *("best", "epochs", "reached", "to_target_j", "to_target_s", "learning_rate"),
        *("provenance", "run_ids"),
    )
    attributes = {name: getattr(candidate, name) for name in names}
    attributes["message"] = "; ".join(candidate.messages)
    found = {**attributes, **candidate.metrics, **more}
    return {name: value for name, value in found.items() if value not in (None, "", [])}


def _curves(records: list[Any]) -> dict[str, dict[int, float]]:
    """Map candidate to epoch to quality; fractional epochs are left out."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        segment = record.settings.get("segment") or {}
        if not segment.get("keep", True):
            continue
        curve = found.setdefault(str(segment.get("candidate")), {})
        for point in record.outcome.get("curve") or ():
            if point["quality"] is not None and float(point["epoch"]).is_integer():
                curve[int(point["epoch"])] = float(point["quality"])
    return found
