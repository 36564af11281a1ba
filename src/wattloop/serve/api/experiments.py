"""API of sweeps, searches, campaigns and studies: lists, results, clusters, power over time."""

from collections.abc import Hashable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import func, select

from wattloop.analyze.clusters import Clusters, clusters
from wattloop.analyze.roles import with_energy
from wattloop.analyze.table import RunTable, nearest
from wattloop.report.stored_results import (
    headline,
    read_search,
    search_table,
    stored_search,
    stored_sweep,
)
from wattloop.schedule.campaigns.store import known_outcomes
from wattloop.schedule.campaigns.summary import per_cell
from wattloop.serve.errors import Conflict, NotFound, conflict_on_error, faults
from wattloop.serve.state import AppState, State
from wattloop.store.database import Store
from wattloop.store.experiments import (
    Experiment,
    TrialRecord,
    each_trial,
    find_experiment,
    list_experiments,
)
from wattloop.store.runs import list_trial_groups
from wattloop.store.schema import trials
from wattloop.study.record import STEPS, next_step, study_campaigns
from wattloop.trials.experiment_lock import with_status_now

router = APIRouter(tags=["experiments"])

Kind = Literal["sweep", "search", "campaign", "study"]
UNENDED = ("running", "begun")


class ExperimentAnswer(BaseModel):
    """One line of a list; `energy_j` is that of its measured runs, `result` what came out.

    `study` is the study that a campaign belongs to, empty for others.
    """

    experiment_id: str
    kind: str
    name: str
    status: str
    created_wall_s: float
    host: str
    trials: int
    ended: int
    energy_j: float | None = None
    result: str = ""
    study: str = ""


class ExperimentsAnswer(BaseModel):
    """Experiments, newest first."""

    experiments: list[ExperimentAnswer]


@router.get("/sweeps")
def sweeps(state: State) -> ExperimentsAnswer:
    """List all sweeps."""
    return experiments_answer(state, "sweep")


@router.get("/sweeps/{sweep_id}", responses=faults(404))
def sweep(state: State, sweep_id: str) -> dict[str, Any]:
    """Return the result of a sweep: every point with its gains."""
    result = stored_sweep(state.store, sweep_id)
    return {**result.experiment.to_dict(), **result.summary()}


@router.get("/searches")
def searches(state: State) -> ExperimentsAnswer:
    """List all searches."""
    return experiments_answer(state, "search")


@router.get("/searches/{search_id}", responses=faults(404))
def search(state: State, search_id: str) -> dict[str, Any]:
    """Return the result of a search: its summary and every configuration."""
    experiment = stored_search(state.store, search_id)
    candidates, summary = read_search(state.store, experiment)
    return {**summary.to_dict(), "trials": [candidate.to_dict() for candidate in candidates]}


@router.get("/campaigns")
def campaigns(state: State) -> ExperimentsAnswer:
    """List all campaigns of `simulate`."""
    return experiments_answer(state, "campaign")


@router.get("/campaigns/{campaign_id}", responses=faults(404))
def campaign(state: State, campaign_id: str) -> dict[str, Any]:
    """Return the specification of a campaign, and the metrics of every policy and seed."""
    experiment = with_status_now(state.store, find_experiment(state.store, campaign_id, "campaign"))
    outcomes = known_outcomes(state.store, experiment)
    return {**experiment.to_dict(), "results": per_cell(outcomes)}


@router.get("/studies")
def studies(state: State) -> ExperimentsAnswer:
    """List all studies."""
    return experiments_answer(state, "study")


@router.get("/studies/{study_id}", responses=faults(404))
def study(state: State, study_id: str) -> dict[str, Any]:
    """Return the six steps of a study with their results, and the next step."""
    experiment = find_experiment(state.store, study_id, "study")
    return {**experiment.to_dict(), "next": next_step(experiment.facts.get("steps") or {})}


def experiment_state(store: Store, experiment: Experiment) -> tuple[Hashable, ...]:
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


def experiments_answer(state: AppState, kind: Kind, *, every: bool = True) -> ExperimentsAnswer:
    """Return the list for page and API; campaigns of studies are left out unless `every`."""
    store = state.store
    counts = _counts(store)
    groups = state.answers.get("trial groups", lambda: list_trial_groups(store))
    measured = {group.experiment_id: group for group in groups}
    inside = study_campaigns(store) if kind in ("campaign", "study") else {}
    found = []
    for stored in list_experiments(store, kind):
        if stored.experiment_id in inside and not every:
            continue
        # a study is done by a person, step by step: no process locks it in between
        experiment = stored if kind == "study" else with_status_now(store, stored)
        group = measured.get(experiment.experiment_id)
        runs = 0 if group is None else group.runs
        # an experiment that was copied has its runs, not its trials
        all_trials, ended = counts.get(experiment.experiment_id, (runs, runs))
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
                energy_j=None if group is None else group.energy_j,
                result=_headline(state, experiment, ended),
                study=inside[stored.experiment_id].experiment_id
                if stored.experiment_id in inside
                else "",
            )
        )
    return ExperimentsAnswer(experiments=found)


def _headline(state: AppState, experiment: Experiment, ended: int) -> str:
    def make() -> str:
        return headline(state.store, experiment)

    if experiment.kind != "campaign":
        return make()
    # read from all of its trials, so once for each state
    key = ("headline", experiment.experiment_id, experiment.status, ended)
    return state.cache.soon(key, make, HEADLINE_S) or ""


HEADLINE_S = 0.02


def _counts(store: Store) -> dict[str, tuple[int, int]]:
    """Count begun and ended trials in the database: there may be tens of thousands."""
    ended = func.count().filter(trials.c.status.notin_(UNENDED))
    query = select(trials.c.experiment_id, func.count(), ended).group_by(trials.c.experiment_id)
    with store.reading() as connection:
        return {str(row[0]): (int(row[1]), int(row[2])) for row in connection.execute(query)}


class ClusterQuery(BaseModel):
    """Strategy, features and number of clusters."""

    model_config = ConfigDict(extra="ignore")

    strategy: Literal["results", "all", "hybrid"] = "hybrid"
    k: Annotated[int, Field(ge=2, le=20)] | Literal[""] = Field(
        "", description="Clusters; by silhouette unless given."
    )
    parameter: list[str] = Field([], max_length=40, description="All unless given.")
    result: list[str] = Field([], max_length=40, description="All unless given.")


class ClustersAnswer(BaseModel):
    """Clusters, numbered by mean energy if known."""

    search_id: str
    strategy: str
    clusters: int
    silhouette: float
    used: list[str]
    little_influence: list[str]
    means: list[dict[str, Any]]
    labels: dict[str, int]


@router.get("/searches/{search_id}/clusters", responses=faults(404, 409))
def search_clusters(
    state: State, search_id: str, query: Annotated[ClusterQuery, Query()]
) -> ClustersAnswer:
    """Return the means of every cluster, and the cluster of every run."""
    experiment = stored_search(state.store, search_id)
    found = find_clusters(state, experiment, query)
    return ClustersAnswer(
        search_id=experiment.experiment_id,
        strategy=found.strategy,
        clusters=int(found.facts["clusters"]),
        silhouette=found.silhouette,
        used=list(found.used),
        little_influence=list(found.little),
        means=[dict(row) for row in found.rows],
        labels={
            name: int(label)
            for name, label in zip(found.table.names, found.labels.tolist(), strict=True)
        },
    )


def search_run_table(state: AppState, experiment: Experiment) -> RunTable:
    """Return the configurations of a search; cached until another trial ends."""
    key = ("table", *experiment_state(state.store, experiment))
    return state.cache.get(key, lambda: with_energy(search_table(state.store, experiment)))


def find_clusters(state: AppState, experiment: Experiment, query: ClusterQuery) -> Clusters:
    """Compute the clusters for page and API.

    Raises:
        NotFound: no such column.
        Conflict: nothing to group.
    """
    asked = (query.strategy, query.k, tuple(query.parameter), tuple(query.result))
    known = search_run_table(state, experiment)
    for name in (*query.parameter, *query.result):
        if name not in known.columns:
            raise NotFound(
                f"{name!r}: no column of {known.name}; {nearest(name, list(known.columns))}"
            )
    with conflict_on_error():
        return state.cache.get(
            ("clusters", *experiment_state(state.store, experiment), *asked),
            lambda: clusters(
                known,
                query.strategy,
                k=None if query.k == "" else query.k,
                parameters=query.parameter or None,
                results=query.result or None,
            ),
        )


Cells = dict[tuple[str, int], TrialRecord]


class CellQuery(BaseModel):
    """Policy and seed; the first ones unless given."""

    model_config = ConfigDict(extra="ignore")

    policy: str = Field("", max_length=200)
    seed: int | None = Field(None, ge=0)


class OverTimeAnswer(BaseModel):
    """Power of the whole cluster in equal intervals, simulated; `same_as_stored` where it is, event
    by event, what the campaign had.
    """

    policy: str
    seed: int
    same_as_stored: bool
    times_s: list[float]
    mean_w: list[float]
    budget_w: list[float | None]


class OverTime(OverTimeAnswer):
    """One simulation, repeated by the simulator's process, with its charts as parts of a page."""

    html: str


@router.get("/campaigns/{campaign_id}/over-time", responses=faults(404, 409))
async def campaign_over_time(
    state: State, campaign_id: str, query: Annotated[CellQuery, Query()]
) -> OverTimeAnswer:
    """Return power over time of one policy on one seed."""

    def made() -> OverTime:
        experiment = find_experiment(state.store, campaign_id, "campaign")
        return simulate_over_time(state, experiment, finished_cells(state, experiment), query)

    return await state.simulations.run(made)


def finished_cells(state: AppState, experiment: Experiment) -> Cells:
    """Return (policy, seed) -> trial of finished trials."""

    def make() -> Cells:
        return {
            (str(trial.settings["policy"]), int(trial.settings["seed"])): trial
            for trial in each_trial(state.store, experiment.experiment_id)
            if trial.outcome and trial.outcome.get("error") is None
        }

    return state.cache.get(("cells", *experiment_state(state.store, experiment)), make)


def simulate_over_time(
    state: AppState, experiment: Experiment, cells: Cells, query: CellQuery
) -> OverTime:
    """Return one simulation over time for page and API.

    Raises:
        NotFound: no such simulation in the campaign.
        Conflict: it cannot be made again here.
    """
    fitting = [
        cell
        for cell in cells
        if query.policy in ("", cell[0]) and (query.seed is None or query.seed == cell[1])
    ]
    if not fitting:
        raise NotFound("this campaign has no simulation of that policy and seed")
    policy, seed = fitting[0]
    trial = cells[policy, seed]
    given = trial.settings.get("given") or policy
    if not isinstance(given, str):
        raise Conflict(f"{policy}: given with parameters as a mapping; not drawn on a page")
    with conflict_on_error():
        return state.simulated.get(
            ("over time", experiment.experiment_id, policy, seed),
            lambda: OverTime(
                policy=policy,
                seed=seed,
                **state.simulator.call(
                    "over_time",
                    spec=experiment.spec,
                    outcome=dict(trial.outcome or {}),
                    given=given,
                    policy=policy,
                    seed=seed,
                ),
            ),
        )
