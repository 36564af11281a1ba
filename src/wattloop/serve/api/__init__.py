"""JSON API of the dashboard, under /api/v1."""

from wattloop.serve.api import (
    experiments,
    ingest,
    jobs,
    live,
    nodes,
    oracle,
    overview,
    predict,
    runs,
)

__all__ = ["ROUTERS"]
ROUTERS = tuple(
    part.router
    for part in (overview, jobs, live, ingest, nodes, runs, experiments, predict, oracle)
)
