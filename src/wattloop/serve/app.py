"""The server put together."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware

from wattloop.core.errors import ConfigError, ExperimentNotFound, RunNotFound, WattloopError
from wattloop.serve.api import ROUTERS as API
from wattloop.serve.house import House
from wattloop.serve.options import ServeOptions
from wattloop.serve.pages import ROUTERS as PAGES
from wattloop.serve.security import guarded
from wattloop.store.database import open_store
from wattloop.store.ingest import Unexpected
from wattloop.store.job_list import fill_run_facts
from wattloop.version import __version__

__all__ = ["create_app"]

API_ROOT = "/api/v1"


def create_app(options: ServeOptions) -> FastAPI:
    """The dashboard over one store.

    Raises:
        ConfigError: the options contradict each other.
        StoreError: the store cannot be opened.
    """
    store = open_store(options.store)
    if not store.read_only:
        fill_run_facts(store)
    app = FastAPI(
        title="Wattloop",
        version=__version__,
        openapi_url=f"{API_ROOT}/openapi.json",
        docs_url=None,  # the usual page loads its scripts from another host
        redoc_url=None,
    )
    app.state.house = House(options, store)
    app.add_middleware(BaseHTTPMiddleware, dispatch=guarded(options))
    for router in API:
        app.include_router(router, prefix=API_ROOT)
    for router in PAGES:
        app.include_router(router, include_in_schema=False)
    app.add_exception_handler(WattloopError, _fault)
    app.add_exception_handler(HTTPException, _refused)
    return app


async def _fault(request: Request, error: Exception) -> Response:
    """What the person can do about, in words; never a traceback."""
    if isinstance(error, Unexpected):
        return JSONResponse({"detail": str(error), "offset": error.offset}, 409)
    if isinstance(error, RunNotFound | ExperimentNotFound):
        status = 404
    elif isinstance(error, ConfigError):
        status = 422
    else:
        status = 503
    return _answer(request, status, str(error))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _answer(request, error.status_code, str(error.detail))


def _answer(request: Request, status: int, message: str) -> Response:
    if request.url.path.startswith(API_ROOT):
        return JSONResponse({"detail": message}, status)
    house: House = request.app.state.house
    return house.page("fault.html", request, status=status, message=message, number=status)
