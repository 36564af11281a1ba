"""*Clusters* page of a search: choose strategy, features, number and view."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from wattloop.analyze.clusters import STRATEGIES
from wattloop.core.errors import ConfigError
from wattloop.report.document import Block, Chart, Note
from wattloop.report.figures.clusters import cluster_figures
from wattloop.report.findings import findings_blocks
from wattloop.report.stored_results import stored_search
from wattloop.serve.api.clusters import ClusterQuery, clusters_of, table_of_search
from wattloop.serve.api.experiments import state_of
from wattloop.serve.blocks import blocks_html
from wattloop.serve.errors import status_of
from wattloop.serve.state import PATIENCE_S, AppState, State
from wattloop.store.experiments import Experiment

router = APIRouter()


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
    request: Request, house: State, search_id: str, query: Annotated[ClusterForm, Query()]
) -> HTMLResponse:
    """Show a form, the clusters, and their means."""
    experiment = stored_search(house.store, search_id)
    key = ("cluster page", *state_of(house.store, experiment), query.model_dump_json())
    status, table = 200, None
    try:
        table = house.cache.soon(
            (*key, "table"), lambda: table_of_search(house, experiment), PATIENCE_S
        )
        found = house.cache.soon(
            key, lambda: blocks_html(_blocks(house, experiment, query)), PATIENCE_S
        )
        if table is None or found is None:
            return house.waiting(request)
    except ConfigError as error:
        status = status_of(error)
        found = blocks_html([Note(str(error), tone="warning", title="Not possible:")])
    columns = (
        ([], [])
        if table is None
        else (list(table.parameters), [n for n in table.results if table.is_numeric(n)])
    )
    return house.page(
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


def _blocks(house: AppState, experiment: Experiment, query: ClusterForm) -> list[Block]:
    found = clusters_of(house, experiment, query)
    charts = cluster_figures(found, int(query.dimensions))
    if {"clusters-2d", "clusters-3d"} <= charts.keys():
        del charts["clusters-2d" if query.dimensions == "3" else "clusters-3d"]
    drawn = [Chart(name, chart, ALTERNATIVES.get(name, name)) for name, chart in charts.items()]
    means, *others = findings_blocks(found)
    return [drawn[0], means, *drawn[1:], *others]
