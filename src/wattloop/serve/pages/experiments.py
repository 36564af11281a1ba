"""*Sweeps*, *Searches*, *Simulate* and *Study*: lists, and each one's report as a page."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from wattloop.report.of_campaign import report_of_campaign
from wattloop.report.of_search import report_of_search
from wattloop.report.of_study import report_of_study
from wattloop.report.of_sweep import report_of_sweep
from wattloop.serve.api.experiments import experiments_answer
from wattloop.serve.blocks import sections_html
from wattloop.serve.house import InHouse
from wattloop.store.experiments import find_experiment

__all__ = ["router"]

router = APIRouter()


@router.get("/sweeps")
def sweeps(request: Request, house: InHouse) -> HTMLResponse:
    """All sweeps."""
    return house.page(
        "experiments.html",
        request,
        title="Sweeps",
        answer=experiments_answer(house.store, "sweep"),
        example="wattloop sweep caps.yaml -- python train.py",
    )


@router.get("/sweeps/{sweep_id}")
def sweep(request: Request, house: InHouse, sweep_id: str) -> HTMLResponse:
    """Metrics against the cap, best points, EDP against time."""
    found = report_of_sweep(house.store, find_experiment(house.store, sweep_id, "sweep"))
    return house.page("document.html", request, document=found, sections=sections_html(found))


@router.get("/searches")
def searches(request: Request, house: InHouse) -> HTMLResponse:
    """All searches."""
    return house.page(
        "experiments.html",
        request,
        title="Searches",
        answer=experiments_answer(house.store, "search"),
        example="wattloop tune run search.yaml",
    )


@router.get("/searches/{search_id}")
def search(request: Request, house: InHouse, search_id: str) -> HTMLResponse:
    """Pareto front, regression, matrix, families of runs."""
    found = report_of_search(house.store, find_experiment(house.store, search_id, "search"))
    return house.page("document.html", request, document=found, sections=sections_html(found))


@router.get("/simulate")
def campaigns(request: Request, house: InHouse) -> HTMLResponse:
    """All campaigns."""
    return house.page(
        "experiments.html",
        request,
        title="Simulate",
        answer=experiments_answer(house.store, "campaign"),
        example="wattloop simulate thesis-pareto --policies pollux,zeus,helios --seeds 10",
    )


@router.get("/simulate/{campaign_id}")
def campaign(request: Request, house: InHouse, campaign_id: str) -> HTMLResponse:
    """Policies side by side."""
    found = report_of_campaign(house.store, find_experiment(house.store, campaign_id, "campaign"))
    return house.page("document.html", request, document=found, sections=sections_html(found))


@router.get("/study")
def studies(request: Request, house: InHouse) -> HTMLResponse:
    """All studies."""
    return house.page(
        "experiments.html",
        request,
        title="Study",
        answer=experiments_answer(house.store, "study"),
        example="wattloop study init",
    )


@router.get("/study/{study_id}")
def study(request: Request, house: InHouse, study_id: str) -> HTMLResponse:
    """The six steps with their state."""
    found = report_of_study(house.store, find_experiment(house.store, study_id, "study"))
    return house.page("document.html", request, document=found, sections=sections_html(found))
