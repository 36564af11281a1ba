"""*Nodes* page: power of each node now, against its limits."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from wattloop.serve.api.nodes import node_answers, power_answer
from wattloop.serve.state import State

router = APIRouter()
JOBS_SHOWN = 8


@router.get("/nodes")
def nodes(request: Request, state: State) -> HTMLResponse:
    """Show power, age, jobs, clock offset and refusals of each node."""
    return state.page(
        "nodes.html",
        request,
        power=power_answer(state.nodes),
        nodes=node_answers(state.nodes),
        refusals=state.refusals.count,
        refused_journals=state.ingest.refused(),
        jobs_shown=JOBS_SHOWN,
    )
