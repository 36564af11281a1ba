"""*Sweeps*, *Searches*, *Simulate* and *Study* pages: lists, reports, clusters, power over time."""

from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from wattloop.analyze.clusters import STRATEGIES
from wattloop.core.errors import ConfigError
from wattloop.report.campaign import report_of_campaign
from wattloop.report.document import Block, Chart, Document, Note
from wattloop.report.figures.clusters import cluster_figures
from wattloop.report.search import findings_blocks, report_of_search
from wattloop.report.stored_results import stored_search
from wattloop.report.study import report_of_study
from wattloop.report.sweep import report_of_sweep
from wattloop.serve.api.experiments import (
    CellQuery,
    ClusterQuery,
    Kind,
    experiment_state,
    experiments_answer,
    find_clusters,
    finished_cells,
    search_run_table,
    simulate_over_time,
)
from wattloop.serve.blocks import blocks_html, sections_html
from wattloop.serve.errors import http_status
from wattloop.serve.page_cache import ReportPage
from wattloop.serve.state import PATIENCE_S, AppState, State
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment, find_experiment
from wattloop.study.record import study_campaigns

router = APIRouter()

Report = Callable[[Store, Experiment], Document]


@router.get("/sweeps")
def sweeps(request: Request, state: State) -> HTMLResponse:
    return _listed(state, request, "sweep", "Sweeps", "wattloop sweep caps.yaml -- python train.py")


@router.get("/sweeps/{sweep_id}")
def sweep(request: Request, state: State, sweep_id: str) -> HTMLResponse:
    """Show metrics against the cap, best points, EDP against time."""
    return _shown(state, request, sweep_id, "sweep", report_of_sweep)


@router.get("/searches")
def searches(request: Request, state: State) -> HTMLResponse:
    return _listed(state, request, "search", "Searches", "wattloop tune run search.yaml")


@router.get("/searches/{search_id}")
def search(request: Request, state: State, search_id: str) -> HTMLResponse:
    """Show Pareto front, parallel coordinates, regression, matrix, clusters of runs."""
    more = ("clusters", "Clusters: choose strategy, features and number")
    return _shown(state, request, search_id, "search", report_of_search, more)


@router.get("/simulate")
def campaigns(request: Request, state: State) -> HTMLResponse:
    example = "wattloop simulate thesis-pareto --policies pollux,zeus,helios --seeds 10"
    return _listed(state, request, "campaign", "Simulate", example)


@router.get("/simulate/{campaign_id}")
def campaign(request: Request, state: State, campaign_id: str) -> HTMLResponse:
    """Show policies side by side."""
    more = ("over-time", "Over time: power, and who had which GPU")
    return _shown(state, request, campaign_id, "campaign", report_of_campaign, more)


@router.get("/study")
def studies(request: Request, state: State) -> HTMLResponse:
    return _listed(state, request, "study", "Study", "wattloop study init")


@router.get("/study/{study_id}")
def study(request: Request, state: State, study_id: str) -> HTMLResponse:
    """Show the six steps with their state."""
    return _shown(state, request, study_id, "study", report_of_study)


def _listed(
    state: AppState, request: Request, kind: Kind, title: str, example: str
) -> HTMLResponse:
    every = bool(request.query_params.get("all"))
    answer = experiments_answer(state, kind, every=every)
    inside = study_campaigns(state.store) if kind in ("campaign", "study") else {}
    return state.page(
        "experiments.html",
        request,
        title=title,
        kind=kind,
        answer=answer,
        example=example,
        inside=inside,
        every=every,
    )


def _shown(
    state: AppState,
    request: Request,
    name: str,
    kind: Kind,
    report: Report,
    more: tuple[str, str] | None = None,
) -> HTMLResponse:
    """Render a report; cached for every state of the experiment, across servers."""
    experiment = find_experiment(state.store, name, kind)

    def make() -> ReportPage:
        found = report(state.store, experiment)
        return ReportPage(found.title, found.subtitle, list(sections_html(found)))

    made = state.cache.soon(
        ("page", *experiment_state(state.store, experiment)),
        lambda: state.pages.get(state.store, experiment, make),
        PATIENCE_S,
    )
    if made is None:
        return state.waiting(request)
    return state.page(
        "document.html",
        request,
        document=made,
        sections=[(heading, Markup(content)) for heading, content in made.sections],
        more=more,
        shown_id=experiment.experiment_id,
    )


class ClusterForm(ClusterQuery):
    """Clustering options and view."""

    dimensions: Literal["2", "3"] = "2"


ALTERNATIVES = {
    "clusters-2d": "Runs in the plane of two main components, coloured by cluster",
    "clusters-3d": "Runs in the space of three main components, coloured by cluster",
    "clusters-columns": "Runs in any two columns, coloured by cluster",
    "silhouettes": "How well runs are separated, by number of clusters",
}


@router.get("/searches/{search_id}/clusters")
def clusters_page(
    request: Request, state: State, search_id: str, query: Annotated[ClusterForm, Query()]
) -> HTMLResponse:
    """Show a form, the clusters, and their means."""
    experiment = stored_search(state.store, search_id)
    key = ("cluster page", *experiment_state(state.store, experiment), query.model_dump_json())
    status, table = 200, None
    try:
        table = state.cache.soon(
            (*key, "table"), lambda: search_run_table(state, experiment), PATIENCE_S
        )
        found = state.cache.soon(
            key, lambda: blocks_html(_blocks(state, experiment, query)), PATIENCE_S
        )
        if table is None or found is None:
            return state.waiting(request)
    except ConfigError as error:
        status = http_status(error)
        found = blocks_html([Note(str(error), tone="warning", title="Not possible:")])
    columns = (
        ([], [])
        if table is None
        else (list(table.parameters), [n for n in table.results if table.is_numeric(n)])
    )
    return state.page(
        "clusters.html",
        request,
        status=status,
        experiment=experiment,
        query=query,
        strategies=STRATEGIES,
        parameters=columns[0],
        results=columns[1],
        blocks=found,
    )


def _blocks(state: AppState, experiment: Experiment, query: ClusterForm) -> list[Block]:
    found = find_clusters(state, experiment, query)
    charts = cluster_figures(found, int(query.dimensions))
    if {"clusters-2d", "clusters-3d"} <= charts.keys():
        del charts["clusters-2d" if query.dimensions == "3" else "clusters-3d"]
    drawn = [Chart(name, chart, ALTERNATIVES.get(name, name)) for name, chart in charts.items()]
    means, *others = findings_blocks(found)
    return [drawn[0], means, *drawn[1:], *others]


@router.get("/simulate/{campaign_id}/over-time")
def over_time_page(
    request: Request, state: State, campaign_id: str, query: Annotated[CellQuery, Query()]
) -> HTMLResponse:
    """Show a form, and the chosen simulation."""
    experiment = find_experiment(state.store, campaign_id, "campaign")
    cells = finished_cells(state, experiment)
    status = 200
    try:
        shown = state.simulated.soon(
            ("over time asked", experiment.experiment_id, len(cells), query.policy, query.seed),
            lambda: simulate_over_time(state, experiment, cells, query),
            PATIENCE_S,
        )
        if shown is None:
            return state.waiting(request)
        blocks = Markup(shown.html)
        policy, seed = shown.policy, shown.seed
    except ConfigError as error:
        blocks = blocks_html([Note(str(error), tone="warning", title="Not possible:")])
        status, policy, seed = http_status(error), query.policy, query.seed or 0
    return state.page(
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
