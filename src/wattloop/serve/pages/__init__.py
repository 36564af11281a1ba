"""HTML pages: one router per page; their data come from `api/`."""

from fastapi import APIRouter

from wattloop.serve.api.metrics import router as metrics
from wattloop.serve.pages.api_page import router as api_page
from wattloop.serve.pages.assets import router as assets
from wattloop.serve.pages.clusters import router as clusters
from wattloop.serve.pages.compare import router as compare
from wattloop.serve.pages.experiments import router as experiments
from wattloop.serve.pages.jobs import router as jobs
from wattloop.serve.pages.nodes import router as nodes
from wattloop.serve.pages.over_time import router as over_time
from wattloop.serve.pages.predict import router as predict
from wattloop.serve.pages.run import router as run

__all__ = ["ROUTERS"]

ROUTERS: tuple[APIRouter, ...] = (
    *(assets, metrics, api_page, jobs, nodes, run, compare, experiments, clusters, over_time),
    predict,
)
