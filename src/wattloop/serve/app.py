"""The FastAPI application of the dashboard: routers, middleware, background tasks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from wattloop.core.errors import StoreUnwritable
from wattloop.fleet.nodes import known_nodes
from wattloop.fleet.tokens import TokenFile
from wattloop.measure.live import FollowedJournals
from wattloop.serve.api import ROUTERS as API
from wattloop.serve.api.nodes import delivery
from wattloop.serve.errors import API_ROOT, add_fault_handlers, faults
from wattloop.serve.maintenance import MaintenanceThread
from wattloop.serve.openapi import describe
from wattloop.serve.options import ServeOptions
from wattloop.serve.pages import ROUTERS as PAGES
from wattloop.serve.requests import DeliveryMiddleware
from wattloop.serve.security import Guard
from wattloop.serve.state import AppState
from wattloop.serve.worker import ImportQueue
from wattloop.store import schema
from wattloop.store.database import Store, open_store
from wattloop.store.job_queries import fill_jobs, fill_run_facts
from wattloop.version import __version__

ANY_CALL = (401, 403, 421, 422, 503)
"""Error statuses that every call may answer."""


def create_app(options: ServeOptions) -> FastAPI:
    """Create the dashboard over one store.

    Raises:
        ConfigError: the options contradict each other.
        StoreError: the store cannot be opened.
    """
    tokens = None if options.tokens is None else TokenFile(options.tokens)
    store = open_store(options.store)
    if not store.read_only:
        fill_run_facts(store)
        fill_jobs(store)
    else:
        _check_readable(store)
    state = AppState(options, store)
    state.nodes.load(known_nodes(store))
    app = FastAPI(
        title="Wattloop",
        version=__version__,
        openapi_url=f"{API_ROOT}/openapi.json",
        docs_url=None,  # the usual page loads its scripts from another host
        redoc_url=None,
        lifespan=_living,
    )
    app.state.wattloop = state
    app.add_middleware(DeliveryMiddleware, answer=delivery)
    app.add_middleware(Guard, options=options, tokens=tokens, refusals=state.refusals)
    for router in API:
        app.include_router(router, prefix=API_ROOT, responses=faults(*ANY_CALL))
    for router in PAGES:
        app.include_router(router, include_in_schema=False)
    add_fault_handlers(app)
    describe(app, options)
    return app


@asynccontextmanager
async def _living(app: FastAPI) -> AsyncIterator[None]:
    """Start and stop the background tasks of the server."""
    state: AppState = app.state.wattloop
    # those that were closed take nothing any more
    state.imports, state.followed = ImportQueue(state.ingest), FollowedJournals()
    maintenance = None if state.store.read_only else MaintenanceThread(state)
    if maintenance is not None:
        maintenance.start()
    yield
    if maintenance is not None:
        maintenance.stop()
    state.close()


def _check_readable(store: Store) -> None:
    """Refuse a read-only store of an earlier release, which has no rows for jobs."""
    with store.reading() as connection:
        if schema.is_current(connection, store.where):
            return
    raise StoreUnwritable(
        f"{store.where}: of an earlier release, and it cannot be brought up to date where it is; "
        "copy the file to where it can be written, and name the copy with --store"
    )
