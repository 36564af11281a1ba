"""API of a campaign's cell over time: the stored scenario simulated again."""

from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from wattloop.serve.api.experiments import state_of
from wattloop.serve.errors import Impossible, NotThere, faults, needs_what_is_there
from wattloop.serve.state import AppState, State
from wattloop.store.experiments import Experiment, TrialRecord, each_trial, find_experiment

router = APIRouter(tags=["experiments"])

Cells = dict[tuple[str, int], TrialRecord]


class CellQuery(BaseModel):
    """Policy and seed; the first ones unless given."""

    model_config = ConfigDict(extra="ignore")

    policy: str = Field("", max_length=200)
    seed: int | None = Field(None, ge=0)


class OverTimeAnswer(BaseModel):
    """Power of the whole cluster in equal intervals, simulated."""

    policy: str
    seed: int
    same_as_stored: bool
    times_s: list[float]
    mean_w: list[float]
    budget_w: list[float | None]


class OverTime(NamedTuple):
    """One simulation, repeated by the simulator's process.

    Attributes:
        times_s, mean_w, budget_w: power of the cluster in equal spans; the budget where there is.
        same: whether it is, event by event, what the campaign had.
        html: its charts, as parts of a page.
    """

    policy: str
    seed: int
    times_s: list[float]
    mean_w: list[float]
    budget_w: list[float | None]
    same: bool
    html: str


@router.get("/campaigns/{campaign_id}/over-time", responses=faults(404, 409))
async def campaign_over_time(
    house: State, campaign_id: str, query: Annotated[CellQuery, Query()]
) -> OverTimeAnswer:
    """Return power over time of one policy on one seed."""

    def made() -> OverTime:
        experiment = find_experiment(house.store, campaign_id, "campaign")
        return over_time_of(house, experiment, cells_of(house, experiment), query)

    shown = await house.simulations.run(made)
    return OverTimeAnswer(
        policy=shown.policy,
        seed=shown.seed,
        same_as_stored=shown.same,
        times_s=shown.times_s,
        mean_w=shown.mean_w,
        budget_w=shown.budget_w,
    )


def cells_of(house: AppState, experiment: Experiment) -> Cells:
    """Return (policy, seed) -> trial of finished trials."""

    def make() -> Cells:
        return {
            (str(trial.settings["policy"]), int(trial.settings["seed"])): trial
            for trial in each_trial(house.store, experiment.experiment_id)
            if trial.outcome and trial.outcome.get("error") is None
        }

    return house.cache.get(("cells", *state_of(house.store, experiment)), make)


def over_time_of(
    house: AppState, experiment: Experiment, cells: Cells, query: CellQuery
) -> OverTime:
    """Return one simulation over time for page and API.

    Raises:
        NotThere: no such simulation in the campaign.
        Impossible: it cannot be made again here.
    """
    fitting = [
        cell
        for cell in cells
        if query.policy in ("", cell[0]) and (query.seed is None or query.seed == cell[1])
    ]
    if not fitting:
        raise NotThere("this campaign has no simulation of that policy and seed")
    policy, seed = fitting[0]
    trial = cells[policy, seed]
    given = trial.settings.get("given") or policy
    if not isinstance(given, str):
        raise Impossible(f"{policy}: given with parameters as a mapping; not drawn on a page")
    with needs_what_is_there():
        return house.simulated.get(
            ("over time", experiment.experiment_id, policy, seed),
            lambda: OverTime(
                policy=policy,
                seed=seed,
                **house.simulator.call(
                    "over_time",
                    spec=experiment.spec,
                    outcome=dict(trial.outcome or {}),
                    given=given,
                    policy=policy,
                    seed=seed,
                ),
            ),
        )
