"""*Nodes* page: what is wrong on each node; its power now, against its limits."""

import time
from datetime import datetime

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from wattloop.fleet.nodes import LATELY_S, NodeHealth, node_health
from wattloop.serve.api.nodes import NodeAnswer, node_answers, power_answer
from wattloop.serve.state import AppState, State

router = APIRouter()
JOBS_SHOWN = 8


@router.get("/nodes")
def nodes(request: Request, state: State) -> HTMLResponse:
    """Show state, power, runs, clock offset and refusals of each node, also of those that only
    have runs.
    """
    answers = {one.node: one for one in node_answers(state.nodes)}
    health = {one.node: one for one in nodes_health(state)}
    names = sorted({*answers, *health})
    rows = [(name, answers.get(name), health.get(name)) for name in names]
    return state.page(
        "nodes.html",
        request,
        power=power_answer(state.nodes),
        rows=rows,
        wrong=sum(needs_attention(answer, state_) for _, answer, state_ in rows),
        reporting=len(answers),
        refusals=state.refusals.count,
        refused_journals=state.ingest.refused(),
        jobs_shown=JOBS_SHOWN,
        since=datetime.fromtimestamp(time.time() - LATELY_S).date().isoformat(),
    )


def nodes_health(state: AppState) -> list[NodeHealth]:
    """Return all nodes that reported or ran something in seven days; some seconds old."""
    return state.answers.get("nodes", lambda: node_health(state.store))


def needs_attention(answer: NodeAnswer | None, health: NodeHealth | None) -> bool:
    """Tell whether an agent or the runs of a node say that something is wrong."""
    reported = answer is not None and bool(answer.faults or answer.stale or answer.refusal)
    return reported or (health is not None and bool(health.unread or health.failed))
