"""The server put together."""

from fastapi import FastAPI
from starlette.middleware.base import BaseHTTPMiddleware

from wattloop.serve.api import ROUTERS as API
from wattloop.serve.faults import API_ROOT, FAULTS, add_fault_handlers
from wattloop.serve.house import House
from wattloop.serve.options import ServeOptions
from wattloop.serve.pages import ROUTERS as PAGES
from wattloop.serve.security import guarded
from wattloop.store.database import open_store
from wattloop.store.job_list import fill_run_facts
from wattloop.version import __version__

__all__ = ["create_app"]


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
        app.include_router(router, prefix=API_ROOT, responses=FAULTS)
    for router in PAGES:
        app.include_router(router, include_in_schema=False)
    add_fault_handlers(app)
    return app
