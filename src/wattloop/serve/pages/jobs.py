"""*Jobs*: totals and a table of runs, as EnergyScopium shows them."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from wattloop.serve.api.jobs import JobQuery, jobs_answer, slopes_answer
from wattloop.serve.house import InHouse
from wattloop.store.job_list import known_values

__all__ = ["router"]

router = APIRouter()

CHOICES = ("cluster", "partition", "project", "label", "status", "host")


@router.get("/")
def jobs(request: Request, house: InHouse, query: Annotated[JobQuery, Query()]) -> HTMLResponse:
    """Totals, filters and a page of jobs."""
    house.tidy()
    answer = jobs_answer(house.store, query)
    return house.page(
        "jobs.html",
        request,
        answer=answer,
        query=query,
        choices={name: known_values(house.store, name) for name in CHOICES},
        slopes=slopes_answer(house.store, query),
        link=lambda **changes: "/?" + _with(request, changes),
    )


def _with(request: Request, changes: dict[str, object]) -> str:
    """The query with some values changed; empty ones are left out, so that links stay short."""
    kept = {key: value for key, value in request.query_params.items() if value and key != "token"}
    kept |= {key: str(value) for key, value in changes.items()}
    return urlencode({key: value for key, value in kept.items() if value != ""})
