"""JSON API of the dashboard, under /api/v1."""

from fastapi import APIRouter

from wattloop.serve.api.clusters import router as clusters
from wattloop.serve.api.compare import router as compare
from wattloop.serve.api.downloads import router as downloads
from wattloop.serve.api.experiments import router as experiments
from wattloop.serve.api.ingest import router as ingest
from wattloop.serve.api.jobs import router as jobs
from wattloop.serve.api.live import router as live
from wattloop.serve.api.nodes import router as nodes
from wattloop.serve.api.oracle import router as predict_batch
from wattloop.serve.api.over_time import router as over_time
from wattloop.serve.api.predict import router as predict
from wattloop.serve.api.runs import router as runs

__all__ = ["ROUTERS"]

ROUTERS: tuple[APIRouter, ...] = (
    jobs,
    live,
    downloads,
    ingest,
    nodes,
    runs,
    compare,
    experiments,
    clusters,
    over_time,
    predict,
    predict_batch,
)
