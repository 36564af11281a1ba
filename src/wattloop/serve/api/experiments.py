"""API of sweeps, searches, campaigns and studies: lists and results."""

from collections.abc import Hashable
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel
from sqlalchemy import func, select

from wattloop.report.stored_results import looked_at, stored_search, stored_sweep
from wattloop.schedule.campaigns.store import known_outcomes
from wattloop.schedule.campaigns.summary import per_cell
from wattloop.serve.errors import faults
from wattloop.serve.state import State
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment, find_experiment, list_experiments
from wattloop.store.schema import trials
from wattloop.study.record import STEPS, next_step
from wattloop.trials.runner import with_status_now

router = APIRouter(tags=["experiments"])

Kind = Literal["sweep", "search", "campaign", "study"]


UNENDED = ("running", "begun")


class ExperimentAnswer(BaseModel):
    """One line of a list."""

    experiment_id: str
    kind: str
    name: str
    status: str
    created_wall_s: float
    host: str
    trials: int
    ended: int


class ExperimentsAnswer(BaseModel):
    """Experiments, newest first."""

    experiments: list[ExperimentAnswer]


@router.get("/sweeps")
def sweeps(house: State) -> ExperimentsAnswer:
    """List all sweeps."""
    return experiments_answer(house.store, "sweep")


@router.get("/sweeps/{sweep_id}", responses=faults(404))
def sweep(house: State, sweep_id: str) -> dict[str, Any]:
    """Return the result of a sweep: every point with its gains."""
    result = stored_sweep(house.store, sweep_id)
    return {**result.experiment.to_dict(), **result.summary()}


@router.get("/searches")
def searches(house: State) -> ExperimentsAnswer:
    """List all searches."""
    return experiments_answer(house.store, "search")


@router.get("/searches/{search_id}", responses=faults(404))
def search(house: State, search_id: str) -> dict[str, Any]:
    """Return the result of a search: its summary and every configuration."""
    experiment = stored_search(house.store, search_id)
    candidates, summary = looked_at(house.store, experiment)
    return {**summary.to_dict(), "trials": [candidate.to_dict() for candidate in candidates]}


@router.get("/campaigns")
def campaigns(house: State) -> ExperimentsAnswer:
    """List all campaigns of `simulate`."""
    return experiments_answer(house.store, "campaign")


@router.get("/campaigns/{campaign_id}", responses=faults(404))
def campaign(house: State, campaign_id: str) -> dict[str, Any]:
    """Return the specification of a campaign, and the metrics of every policy and seed."""
    experiment = with_status_now(house.store, find_experiment(house.store, campaign_id, "campaign"))
    outcomes = known_outcomes(house.store, experiment)
    return {**experiment.to_dict(), "results": per_cell(outcomes)}


@router.get("/studies")
def studies(house: State) -> ExperimentsAnswer:
    """List all studies."""
    return experiments_answer(house.store, "study")


@router.get("/studies/{study_id}", responses=faults(404))
def study(house: State, study_id: str) -> dict[str, Any]:
    """Return the six steps of a study with their results, and the next step."""
    experiment = find_experiment(house.store, study_id, "study")
    return {**experiment.to_dict(), "next": next_step(experiment.facts.get("steps") or {})}


def state_of(store: Store, experiment: Experiment) -> tuple[Hashable, ...]:
    """Return a value that changes whenever the stored experiment does."""
    now = with_status_now(store, experiment)
    own = trials.c.experiment_id == experiment.experiment_id
    with store.reading() as connection:
        ended = connection.execute(
            select(func.count()).where(own, trials.c.status.notin_(UNENDED))
        ).scalar_one()
    steps: dict[str, Any] = experiment.facts.get("steps") or {}
    done_s = tuple(float(step.get("done_wall_s") or 0.0) for step in steps.values())
    final: dict[str, Any] = experiment.facts.get("final") or {}
    return experiment.experiment_id, now.status, int(ended), done_s, final.get("final_id")


def experiments_answer(store: Store, kind: Kind) -> ExperimentsAnswer:
    """Return the list for page and API."""
    counts = _counts(store)
    found = []
    for stored in list_experiments(store, kind):
        # a study is done by a person, step by step: no process locks it in between
        experiment = stored if kind == "study" else with_status_now(store, stored)
        all_trials, ended = counts.get(experiment.experiment_id, (0, 0))
        if kind == "study":
            done = {"objective", *(experiment.facts.get("steps") or {})}
            all_trials, ended = len(STEPS), len(done)
        found.append(
            ExperimentAnswer(
                experiment_id=experiment.experiment_id,
                kind=experiment.kind,
                name=experiment.name,
                status=experiment.status,
                created_wall_s=experiment.created_wall_s,
                host=str(experiment.facts.get("host") or ""),
                trials=all_trials,
                ended=ended,
            )
        )
    return ExperimentsAnswer(experiments=found)


def _counts(store: Store) -> dict[str, tuple[int, int]]:
    """Count begun and ended trials in the database: there may be tens of thousands."""
    ended = func.count().filter(trials.c.status.notin_(UNENDED))
    query = select(trials.c.experiment_id, func.count(), ended).group_by(trials.c.experiment_id)
    with store.reading() as connection:
        return {str(row[0]): (int(row[1]), int(row[2])) for row in connection.execute(query)}
