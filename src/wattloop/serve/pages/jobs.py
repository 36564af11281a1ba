"""*Jobs* page: totals and a table of jobs with badges, and one job by node."""

import time
from typing import Annotated, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from wattloop.cap.savings import (
    format_interval,
    format_kwh,
    format_percent,
    read_savings,
    sum_savings,
)
from wattloop.core.units import format_mass
from wattloop.report.document import Chart
from wattloop.report.figures.power import slope_figure
from wattloop.serve.api.jobs import (
    JobListQuery,
    SlopesAnswer,
    job_answer,
    jobs_answer,
    slopes_answer,
)
from wattloop.serve.blocks import blocks_html
from wattloop.serve.state import AppState, State
from wattloop.store.job_queries import known_values
from wattloop.store.run_record import UNALLOCATED_KIND
from wattloop.store.runs import RunRecord, live_runs


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


class SavedCard(NamedTuple):
    """Saving of the last days, in words."""

    energy: str
    remark: str


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
SAVED_DAYS = 30


@router.get("/")
@router.get("/jobs")
@router.get("/jobs/")
def jobs(request: Request, state: State, query: Annotated[JobListQuery, Query()]) -> HTMLResponse:
    """Show totals, filters and a page of jobs."""
    state.tidy()
    answer = jobs_answer(state, query)
    slopes, chart = _slopes(state, query)
    live = state.answers.get("live", lambda: _live_jobs(state))
    return state.page(
        "jobs.html",
        request,
        answer=answer,
        query=query,
        choices=_choices(state),
        slopes=slopes,
        chart=chart,
        live=live[:LIVE_SHOWN],
        live_more=max(0, len(live) - LIVE_SHOWN),
        labels=LABELS,
        insights=INSIGHTS,
        link=lambda **changes: "/?" + _with(request, changes),
        saved=state.answers.get("savings", lambda: _saved(state)),
        saved_days=SAVED_DAYS,
    )


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
    )


def _saved(state: AppState) -> SavedCard | None:
    """Return what runs with a saver saved lately; None where there was none."""
    since_wall_s = time.time() - SAVED_DAYS * 86_400
    total = sum_savings(read_savings(state.store, state.settings, since_wall_s))
    if not total.runs:
        return None
    energy, remarks = "nothing", []
    if total.saved_j is not None and total.saved_pct is not None:
        energy = format_kwh(total.saved_j)
        runs = f"{total.compared} run{'s' * (total.compared != 1)}"
        remarks.append(f"{format_percent(total.saved_pct)} of the GPU energy of {runs}")
    remarks += [f"{format_interval(cost)} {unit}" for unit, cost in total.cost.items()]
    if total.carbon_g is not None:
        remarks.append(f"{format_mass(total.carbon_g.value)}CO2e")
    if total.expected_j is not None:
        runs = f"{total.observed} run{'s' * (total.observed != 1)}"
        remarks.append(f"{runs} could have saved {format_kwh(total.expected_j)} (modelled)")
    return SavedCard(energy, "; ".join(remarks) or "no run was compared with its reference")


def _live_jobs(state: AppState) -> list[RunRecord]:
    """Return running jobs, without the nodes' unattributed runs, which always run."""
    return [run for run in live_runs(state.store) if run.kind != UNALLOCATED_KIND]


def _choices(state: AppState) -> dict[str, list[str]]:
    """Return the values of filters; a new project may appear some seconds late."""
    return state.answers.get(
        "choices", lambda: {name: known_values(state.store, name) for name in CHOICES}
    )


def _slopes(state: AppState, query: JobListQuery) -> tuple[SlopesAnswer, Markup]:
    """Fit and draw energy over duration of matching jobs."""
    wanted = query.model_dump(exclude={"sort", "order", "page", "size"})

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
