"""API of clusters: groups of a search's runs by strategy, features and number."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from wattloop.analyze.clusters import Clusters, clusters
from wattloop.analyze.roles import with_energy
from wattloop.analyze.table import RunTable, nearest
from wattloop.report.stored_results import stored_search
from wattloop.report.tables import search_table
from wattloop.serve.api.experiments import state_of
from wattloop.serve.errors import NotThere, faults, needs_what_is_there
from wattloop.serve.state import AppState, State
from wattloop.store.experiments import Experiment

router = APIRouter(tags=["experiments"])


class ClusterQuery(BaseModel):
    """Strategy, features and number of clusters."""

    model_config = ConfigDict(extra="ignore")

    strategy: Literal["results", "all", "hybrid"] = "hybrid"
    k: Annotated[int, Field(ge=2, le=20)] | Literal[""] = Field(
        "", description="Clusters; by silhouette unless given."
    )
    parameter: list[str] = Field([], max_length=40, description="All unless given.")
    result: list[str] = Field([], max_length=40, description="All unless given.")


class ClustersAnswer(BaseModel):
    """Clusters, numbered by mean energy if known."""

    search_id: str
    strategy: str
    clusters: int
    silhouette: float
    used: list[str]
    little_influence: list[str]
    means: list[dict[str, Any]]
    labels: dict[str, int]


@router.get("/searches/{search_id}/clusters", responses=faults(404, 409))
def search_clusters(
    house: State, search_id: str, query: Annotated[ClusterQuery, Query()]
) -> ClustersAnswer:
    """Return the means of every cluster, and the cluster of every run."""
    experiment = stored_search(house.store, search_id)
    found = clusters_of(house, experiment, query)
    return ClustersAnswer(
        search_id=experiment.experiment_id,
        strategy=found.strategy,
        clusters=int(found.facts["clusters"]),
        silhouette=found.silhouette,
        used=list(found.used),
        little_influence=list(found.little),
        means=[dict(row) for row in found.rows],
        labels={
            name: int(label)
            for name, label in zip(found.table.names, found.labels.tolist(), strict=True)
        },
    )


def table_of_search(house: AppState, experiment: Experiment) -> RunTable:
    """Return the configurations of a search; cached until another trial ends."""
    key = ("table", *state_of(house.store, experiment))
    return house.cache.get(key, lambda: with_energy(search_table(house.store, experiment)))


def clusters_of(house: AppState, experiment: Experiment, query: ClusterQuery) -> Clusters:
    """Compute the clusters for page and API.

    Raises:
        NotThere: no such column.
        Impossible: nothing to group.
    """
    asked = (query.strategy, query.k, tuple(query.parameter), tuple(query.result))
    known = table_of_search(house, experiment)
    for name in (*query.parameter, *query.result):
        if name not in known.columns:
            raise NotThere(
                f"{name!r}: no column of {known.name}; {nearest(name, list(known.columns))}"
            )
    with needs_what_is_there():
        return house.cache.get(
            ("clusters", *state_of(house.store, experiment), *asked),
            lambda: clusters(
                known,
                query.strategy,
                k=None if query.k == "" else query.k,
                parameters=query.parameter or None,
                results=query.result or None,
            ),
        )
