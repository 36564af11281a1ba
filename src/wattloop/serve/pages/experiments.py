"""*Sweeps*, *Searches*, *Simulate* and *Study* pages: lists, and each one's report."""

from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from wattloop.report.campaign import report_of_campaign
from wattloop.report.document import Document
from wattloop.report.search import report_of_search
from wattloop.report.study import report_of_study
from wattloop.report.sweep import report_of_sweep
from wattloop.serve.api.experiments import Kind, experiments_answer, state_of
from wattloop.serve.blocks import sections_html
from wattloop.serve.page_cache import ReportPage
from wattloop.serve.state import PATIENCE_S, AppState, State
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment, find_experiment

router = APIRouter()

Report = Callable[[Store, Experiment], Document]


@router.get("/sweeps")
def sweeps(request: Request, house: State) -> HTMLResponse:
    return _listed(house, request, "sweep", "Sweeps", "wattloop sweep caps.yaml -- python train.py")


@router.get("/sweeps/{sweep_id}")
def sweep(request: Request, house: State, sweep_id: str) -> HTMLResponse:
    """Show metrics against the cap, best points, EDP against time."""
    return _shown(house, request, sweep_id, "sweep", report_of_sweep)


@router.get("/searches")
def searches(request: Request, house: State) -> HTMLResponse:
    return _listed(house, request, "search", "Searches", "wattloop tune run search.yaml")


@router.get("/searches/{search_id}")
def search(request: Request, house: State, search_id: str) -> HTMLResponse:
    """Show Pareto front, parallel coordinates, regression, matrix, clusters of runs."""
    more = ("clusters", "Clusters: choose strategy, features and number")
    return _shown(house, request, search_id, "search", report_of_search, more)


@router.get("/simulate")
def campaigns(request: Request, house: State) -> HTMLResponse:
    example = "wattloop simulate thesis-pareto --policies pollux,zeus,helios --seeds 10"
    return _listed(house, request, "campaign", "Simulate", example)


@router.get("/simulate/{campaign_id}")
def campaign(request: Request, house: State, campaign_id: str) -> HTMLResponse:
    """Show policies side by side."""
    more = ("over-time", "Over time: power, and who had which GPU")
    return _shown(house, request, campaign_id, "campaign", report_of_campaign, more)


@router.get("/study")
def studies(request: Request, house: State) -> HTMLResponse:
    return _listed(house, request, "study", "Study", "wattloop study init")


@router.get("/study/{study_id}")
def study(request: Request, house: State, study_id: str) -> HTMLResponse:
    """Show the six steps with their state."""
    return _shown(house, request, study_id, "study", report_of_study)


def _listed(
    house: AppState, request: Request, kind: Kind, title: str, example: str
) -> HTMLResponse:
    answer = experiments_answer(house.store, kind)
    return house.page(
        "experiments.html", request, title=title, kind=kind, answer=answer, example=example
    )


def _shown(
    house: AppState,
    request: Request,
    name: str,
    kind: Kind,
    report: Report,
    more: tuple[str, str] | None = None,
) -> HTMLResponse:
    """Render a report; cached for every state of the experiment, across servers."""
    experiment = find_experiment(house.store, name, kind)

    def make() -> ReportPage:
        found = report(house.store, experiment)
        return ReportPage(found.title, found.subtitle, list(sections_html(found)))

    made = house.cache.soon(
        ("page", *state_of(house.store, experiment)),
        lambda: house.kept_pages.get(house.store, experiment, make),
        PATIENCE_S,
    )
    if made is None:
        return house.waiting(request)
    return house.page(
        "document.html",
        request,
        document=made,
        sections=[(heading, Markup(content)) for heading, content in made.sections],
        more=more,
        shown_id=experiment.experiment_id,
    )
