"""HTML pages: one router per page; their data come from `api/`."""

from wattloop.serve.api import metrics
from wattloop.serve.openapi import router as api_page
from wattloop.serve.pages import assets, experiments, jobs, nodes, overview, predict, run

__all__ = ["ROUTERS"]

_PAGES = (assets, metrics, overview, jobs, nodes, run, experiments, predict)
ROUTERS = (*(page.router for page in _PAGES), api_page)
