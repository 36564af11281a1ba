"""JSON API of the dashboard, under /api/v1."""

from wattloop.serve.api import experiments, ingest, jobs, live, nodes, oracle, predict, runs

__all__ = ["ROUTERS"]
ROUTERS = tuple(
    part.router for part in (jobs, live, ingest, nodes, runs, experiments, predict, oracle)
)
