"""*Nodes* page: power of each node now, against its limits."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from wattloop.serve.api.nodes import node_answers, power_answer
from wattloop.serve.state import State

router = APIRouter()

JOBS_SHOWN = 8


@router.get("/nodes")
def nodes(request: Request, house: State) -> HTMLResponse:
    """Show power, age, jobs, clock offset and refusals of each node."""
    return house.page(
        "nodes.html",
        request,
        power=power_answer(house.book),
        nodes=node_answers(house.book),
        refusals=house.refusals.count,
        refused_journals=house.ingest.refused(),
        jobs_shown=JOBS_SHOWN,
    )
