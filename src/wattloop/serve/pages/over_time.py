"""*Simulate* page over time: power of the cluster, and the allocation of GPUs."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from wattloop.core.errors import ConfigError
from wattloop.report.document import Note
from wattloop.serve.api.over_time import CellQuery, cells_of, over_time_of
from wattloop.serve.blocks import blocks_html
from wattloop.serve.errors import status_of
from wattloop.serve.state import PATIENCE_S, State
from wattloop.store.experiments import find_experiment

router = APIRouter()


@router.get("/simulate/{campaign_id}/over-time")
def over_time_page(
    request: Request, house: State, campaign_id: str, query: Annotated[CellQuery, Query()]
) -> HTMLResponse:
    """Show a form, and the chosen simulation."""
    experiment = find_experiment(house.store, campaign_id, "campaign")
    cells = cells_of(house, experiment)
    status = 200
    try:
        shown = house.simulated.soon(
            ("over time asked", experiment.experiment_id, len(cells), query.policy, query.seed),
            lambda: over_time_of(house, experiment, cells, query),
            PATIENCE_S,
        )
        if shown is None:
            return house.waiting(request)
        blocks = Markup(shown.html)
        policy, seed = shown.policy, shown.seed
    except ConfigError as error:
        blocks = blocks_html([Note(str(error), tone="warning", title="Not possible:")])
        status, policy, seed = status_of(error), query.policy, query.seed or 0
    return house.page(
        "over_time.html",
        request,
        status=status,
        experiment=experiment,
        policies=list(dict.fromkeys(cell[0] for cell in cells)),
        seeds=sorted({cell[1] for cell in cells}),
        policy=policy,
        seed=seed,
        blocks=blocks,
    )
