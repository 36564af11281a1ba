"""Pages, one file each: a router with GET routes whose data come from `api/`."""

from fastapi import APIRouter

from wattloop.serve.api.metrics import router as metrics
from wattloop.serve.pages.assets import router as assets
from wattloop.serve.pages.compare import router as compare
from wattloop.serve.pages.experiments import router as experiments
from wattloop.serve.pages.jobs import router as jobs
from wattloop.serve.pages.predict import router as predict
from wattloop.serve.pages.run import router as run

__all__ = ["ROUTERS"]

ROUTERS: tuple[APIRouter, ...] = (assets, metrics, jobs, run, compare, experiments, predict)
