"""Error answers: JSON for programs, a page for people; never a traceback.

One rule for all calls: 422 is a request that its description in the document does not allow, 404
names something that is not there, 409 cannot be done with what is there.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from wattloop.core.errors import (
    ConfigError,
    ExperimentNotFound,
    RunNotFound,
    RunSenseless,
    WattloopError,
)
from wattloop.serve.state import AppState
from wattloop.store.ingest.uploads import WrongOffset

API_ROOT = "/api/v1"
RETRY_S = "5"
"""Retry-After of answers that the busy store could not give."""
NOT_BY_THIS_METHOD = 405
NOT_NOW = 503


class NotFound(ConfigError):
    """The request names something that does not exist."""


class Conflict(ConfigError):
    """A valid request that the stored data do not allow."""


class FaultAnswer(BaseModel):
    """Error and remedy."""

    detail: str


TEXTS = {
    401: "The token is missing or wrong.",
    403: "This token does not allow it, or the server takes nothing.",
    404: "Something that is named is not there.",
    409: "It cannot be done with what is there; the answer says why.",
    413: "The body is too large.",
    421: "Not served under this name.",
    422: "Not what the document describes; the answer says where.",
    NOT_NOW: "The store cannot be asked now; the header `Retry-After` says when to try again.",
}


def faults(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return error answers of a call for the OpenAPI document."""
    return {status: {"model": FaultAnswer, "description": TEXTS[status]} for status in statuses}


@contextmanager
def conflict_on_error() -> Iterator[None]:
    """Turn errors of checked requests into `Conflict`: the data are at fault."""
    try:
        yield
    except (NotFound, Conflict):
        raise
    except ConfigError as error:
        raise Conflict(str(error)) from None


def add_fault_handlers(app: FastAPI) -> None:
    """Install handlers that give all errors one form."""
    app.add_exception_handler(WattloopError, answer_fault)
    app.add_exception_handler(HTTPException, answer_refusal)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(Exception, _unexpected)


async def answer_fault(request: Request, error: Exception) -> Response:
    """Answer a Wattloop error."""
    if isinstance(error, WrongOffset):
        return JSONResponse({"detail": str(error), "offset": error.offset}, 409)
    status = http_status(error)
    headers = {"Retry-After": RETRY_S} if status == NOT_NOW else None
    return _answer(request, status, str(error), headers)


def http_status(error: Exception) -> int:
    """Return the HTTP status of a Wattloop error."""
    if isinstance(error, RunNotFound | ExperimentNotFound | NotFound):
        return 404
    if isinstance(error, Conflict):
        return 409
    return 422 if isinstance(error, RunSenseless | ConfigError) else NOT_NOW


async def answer_refusal(request: Request, error: Exception) -> Response:
    """Answer an error that names its status."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == NOT_BY_THIS_METHOD:
        headers["Allow"] = ", ".join(_methods(request))
    return _answer(request, error.status_code, str(error.detail), headers)


def _methods(request: Request) -> list[str]:
    """Return all methods of an address: each route knows only its own."""
    fitting = (
        route
        for route in request.app.router.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    )
    return sorted({method for route in fitting for method in route.methods or ()})


async def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    said = [
        f"{'.'.join(str(part) for part in one['loc'][1:]) or one['loc'][0]}: {one['msg']}"
        for one in error.errors()
    ]
    return _answer(request, 422, "; ".join(dict.fromkeys(said)))


async def _unexpected(request: Request, error: Exception) -> Response:
    """Log an unexpected error and answer it in the usual form."""
    said = f"a fault of the server ({type(error).__name__}); its log says more"
    return _answer(request, 500, said)


def refusal_body(path: str, message: str) -> tuple[str, str]:
    """Return body and media type of a refusal before the request is read."""
    if path.startswith(API_ROOT):
        return json.dumps({"detail": message}), "application/json"
    return f"{message}\n", "text/plain"


def _answer(
    request: Request, status: int, message: str, headers: dict[str, str] | None = None
) -> Response:
    # half a character that came in a query cannot be sent back as it is
    text = message.encode("utf-8", "replace").decode()
    if request.url.path.startswith(API_ROOT):
        return JSONResponse({"detail": text}, status, headers=headers)
    state: AppState = request.app.state.wattloop
    page = state.page("fault.html", request, status=status, message=text, number=status)
    page.headers.update(headers or {})
    return page
