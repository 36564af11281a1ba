"""*Jobs* page: totals and a table of jobs with badges, and one job by node."""

from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from wattloop.report.document import Chart
from wattloop.report.figures.run import slope_figure
from wattloop.serve.api.jobs import (
    JobListQuery,
    SlopesAnswer,
    job_answer,
    jobs_answer,
    slopes_answer,
)
from wattloop.serve.api.live import live_answers
from wattloop.serve.api.overview import tariff_of
from wattloop.serve.blocks import blocks_html
from wattloop.serve.state import AppState, State
from wattloop.store.job_queries import known_values


class Badge(NamedTuple):
    """An icon with its meaning.

    Attributes:
        name: what it is called.
        tone: `good`, `info` or `warning`.
        meaning: a sentence.
    """

    name: str
    tone: str
    meaning: str


LABELS = {
    "high": Badge("high", "good", "energy / (limit x time) of the devices is above 0.9"),
    "medium": Badge("medium", "info", "energy / (limit x time) is between 0.4 and 0.9"),
    "low": Badge("low", "warning", "energy / (limit x time) of the devices is below 0.4"),
}
INSIGHTS = {
    "high_efficiency": Badge("high energy efficiency", "good", "the hardware is well filled"),
    "low_efficiency": Badge("low energy efficiency", "warning", "the devices were mostly waiting"),
    "cpu_underload": Badge("CPU underload", "info", "the CPU is underused compared with the GPU"),
    "gpu_underload": Badge(
        "GPU underload", "warning", "the GPU is underused compared with the CPU"
    ),
    "gpu_imbalance": Badge(
        "GPU imbalance", "warning", "at least one GPU is underused compared with the others"
    ),
    "node_imbalance": Badge(
        "node imbalance", "warning", "at least one node is underused compared with the others"
    ),
    "shared": Badge(
        "shared",
        "info",
        "other runs used the same devices at the same time; each joule counts once",
    ),
}
router = APIRouter()
CHOICES = ("cluster", "partition", "project", "label", "status", "host")
LIVE_SHOWN = 10
COLUMNS = (
    *(("name", "run"), ("cost", "cost"), ("energy", "energy"), ("started", "begun")),
    *(("duration", "duration"), ("carbon", "CO2e"), ("label", "efficiency"), ("status", "status")),
    *(("project", "project"), ("user", "user"), ("host", "host"), ("cluster", "cluster")),
    *(("partition", "partition"), ("exclusive", "exclusive"), ("insights", "insights")),
)
"""Columns of the list; a reader may hide all but the first."""


PROVENANCES = {
    "measured": Badge("M", "good", "measured: every part was read from a sensor"),
    "modelled": Badge("Mo", "info", "modelled from other readings"),
    "estimated": Badge("E", "warning", "estimated, for example from utilisation"),
    "simulated": Badge("S", "warning", "simulated: a virtual GPU or a simulation"),
    "replayed": Badge("R", "info", "replayed from a recording"),
}
COMPLETENESS = {
    "incomplete": Badge("−", "warning", "incomplete: a known part of the machine was not read"),
    "quarantined": Badge("Q", "warning", "quarantined: not believed, and in no total"),
}


class JobPageQuery(JobListQuery):
    """Filter, order and page of the list; trials are folded unless asked for."""

    trials: Literal["all", "fold"] = "fold"


@router.get("/jobs")
@router.get("/jobs/")
def jobs(request: Request, state: State, query: Annotated[JobPageQuery, Query()]) -> HTMLResponse:
    """Show totals, filters and a page of jobs."""
    state.tidy()
    answer = jobs_answer(state, query)
    slopes, chart = _slopes(state, query)
    live = live_answers(state)
    return state.page(
        "jobs.html",
        request,
        answer=answer,
        query=query,
        choices=_choices(state),
        slopes=slopes,
        chart=chart,
        tariff=state.answers.get("tariff", lambda: tariff_of(state)),
        live=live[:LIVE_SHOWN],
        live_more=max(0, len(live) - LIVE_SHOWN),
        labels=LABELS,
        insights=INSIGHTS,
        provenances=PROVENANCES,
        completeness=COMPLETENESS,
        columns=COLUMNS,
        link=lambda **changes: "/jobs?" + _with(request, changes),
    )


def listed_rows(state: AppState, **filters: Any) -> list[dict[str, Any]]:
    """Return rows of the folded list that match fields of `JobListQuery`, for other pages."""
    query = JobListQuery.model_validate({**filters, "trials": "fold"})
    return [row.model_dump() for row in jobs_answer(state, query).jobs]


@router.get("/jobs/{job_key:path}")
def job(request: Request, state: State, job_key: str) -> HTMLResponse:
    """Show one job, node by node."""
    answer = job_answer(state.store, job_key)
    return state.page(
        "job.html",
        request,
        answer=answer,
        labels=LABELS,
        insights=INSIGHTS,
        provenances=PROVENANCES,
        completeness=COMPLETENESS,
    )


def _choices(state: AppState) -> dict[str, list[str]]:
    """Return the values of filters; a new project may appear some seconds late."""
    return state.answers.get(
        "choices", lambda: {name: known_values(state.store, name) for name in CHOICES}
    )


def _slopes(state: AppState, query: JobListQuery) -> tuple[SlopesAnswer, Markup]:
    """Fit and draw energy over duration of matching jobs."""
    wanted = query.model_dump(exclude={"sort", "order", "page", "size", "trials"})

    def make() -> tuple[SlopesAnswer, Markup]:
        found = slopes_answer(state.store, query)
        if not found.slopes:
            return found, Markup("")
        lines = [(line.device, line.slope_w, line.intercept_j) for line in found.slopes]
        drawn = Chart("slopes", slope_figure(found.points, lines), "Energy of jobs by duration")
        return found, blocks_html([drawn])

    return state.answers.get(("slopes", *wanted.values()), make)


def _with(request: Request, changes: dict[str, object]) -> str:
    """Change values of the query; empty ones are left out, so that links stay short."""
    kept = {key: value for key, value in request.query_params.items() if value and key != "token"}
    kept |= {key: str(value) for key, value in changes.items()}
    return urlencode({key: value for key, value in kept.items() if value != ""})
