"""What went wrong, as JSON for a program and as a page for a person; never a traceback."""

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
from wattloop.serve.house import House
from wattloop.store.ingest import Unexpected

__all__ = [
    "API_ROOT",
    "FAULTS",
    "FaultAnswer",
    "add_fault_handlers",
    "answer_fault",
    "answer_refusal",
]

API_ROOT = "/api/v1"
RETRY_S = "5"
"""When somebody may ask again whom the store could not answer."""
NOT_BY_THIS_METHOD = 405


class FaultAnswer(BaseModel):
    """What went wrong and what to do about it."""

    detail: str


FAULTS: dict[int | str, dict[str, Any]] = {
    status: {"model": FaultAnswer, "description": text}
    for status, text in {
        401: "The token is missing or wrong.",
        403: "This server takes nothing.",
        404: "There is no such thing.",
        NOT_BY_THIS_METHOD: "Not by this method; the header `Allow` says by which.",
        421: "Not served under this name.",
        422: "The question makes no sense; the answer says why.",
        503: "The store cannot be read now.",
    }.items()
}
"""What any call may answer beside its own."""


def add_fault_handlers(app: FastAPI) -> None:
    """One form for all faults."""
    app.add_exception_handler(WattloopError, answer_fault)
    app.add_exception_handler(HTTPException, answer_refusal)
    app.add_exception_handler(RequestValidationError, _senseless)


async def answer_fault(request: Request, error: Exception) -> Response:
    """What is said of an error of ours."""
    if isinstance(error, Unexpected):
        return JSONResponse({"detail": str(error), "offset": error.offset}, 409)
    if isinstance(error, RunNotFound | ExperimentNotFound):
        status = 404
    elif isinstance(error, RunSenseless | ConfigError):
        status = 422
    else:
        return _answer(request, 503, str(error), {"Retry-After": RETRY_S})
    return _answer(request, status, str(error))


async def answer_refusal(request: Request, error: Exception) -> Response:
    """What is said of an error that names its status."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == NOT_BY_THIS_METHOD:
        headers["Allow"] = ", ".join(_methods(request))
    return _answer(request, error.status_code, str(error.detail), headers)


def _methods(request: Request) -> list[str]:
    """All that an address knows: each of its routes knows only its own."""
    fitting = (
        route
        for route in request.app.router.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    )
    return sorted({method for route in fitting for method in route.methods or ()})


async def _senseless(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    said = [
        f"{'.'.join(str(part) for part in one['loc'][1:]) or one['loc'][0]}: {one['msg']}"
        for one in error.errors()
    ]
    return _answer(request, 422, "; ".join(dict.fromkeys(said)))


def _answer(
    request: Request, status: int, message: str, headers: dict[str, str] | None = None
) -> Response:
    # half a character that came in a query cannot be sent back as it is
    text = message.encode("utf-8", "replace").decode()
    if request.url.path.startswith(API_ROOT):
        return JSONResponse({"detail": text}, status, headers=headers)
    house: House = request.app.state.house
    page = house.page("fault.html", request, status=status, message=text, number=status)
    page.headers.update(headers or {})
    return page
