"""The OpenAPI document (FastAPI's, with required roles and without impossible answers) and the
*API* page that shows it.
"""

from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse

from wattloop.serve.options import ServeOptions
from wattloop.serve.security import BEARER, COOKIE, QUERY
from wattloop.serve.state import State

router = APIRouter()

ABOUT = """\
What the pages show, as JSON. Units are in the names: `_j` joules, `_w` watts, `_s` seconds, `_g`
grams; `_wall_s` is a time of day in seconds since 1970. `null` is not known, never zero.

A fault is `{"detail": "what, and what to do"}`: 422 where a request is not what this document
describes, 404 where it names something that is not there, 409 where it cannot be done with what is
there, 503 with `Retry-After` where the store cannot be asked now.
"""
TAGS = {
    "overview": "Energy, cost and CO2e of periods and days.",
    "jobs": "Runs, and jobs of batch systems with the runs of all their nodes.",
    "runs": "One measured execution: figures, curves, advice, files.",
    "experiments": "Sweeps, searches, campaigns and studies.",
    "predict": "Time, power and energy of what has not run yet.",
    "nodes": "Machines of a fleet, and what they draw now.",
    "ingest": "Journals of runs of other machines.",
}
SCHEMES = {
    BEARER.scheme_name: {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of `--token` or `--tokens`. The only one that may write.",
    },
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "The same token, for reading: what a browser has after `/?token=`.",
    },
    "query": {
        "type": "apiKey",
        "in": "query",
        "name": QUERY,
        "description": "The same token, for reading; it is then kept as a cookie.",
    },
}


def describe(app: FastAPI, options: ServeOptions) -> None:
    """Give the app its OpenAPI document, made at the first request."""

    def made() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, options)
        return app.openapi_schema

    app.openapi = made  # type: ignore[method-assign] # as FastAPI's manual says


def _document(app: FastAPI, options: ServeOptions) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=ABOUT,
        routes=app.routes,
        tags=[{"name": name, "description": about} for name, about in TAGS.items()],
    )
    document["components"]["securitySchemes"] = SCHEMES
    # calls that write name their own; on this machine's address no token is needed to read
    without_token: list[dict[str, Any]] = [{}] if options.is_local else []
    document["security"] = [*without_token, *({name: []} for name in SCHEMES)]
    for methods in document["paths"].values():
        for call in methods.values():
            for parameter in call.get("parameters", ()):
                parameter["schema"] = _there(parameter["schema"])
            if not call.get("parameters") and "requestBody" not in call:
                call["responses"].pop("422", None)  # nothing that could make no sense
    return document


def _there(schema: dict[str, Any]) -> dict[str, Any]:
    """Describe an optional parameter as absent, never as `null` like Python's default."""
    kinds = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if len(kinds) == len(schema.get("anyOf", ())):
        return schema
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    return {**rest, **kinds[0]} if len(kinds) == 1 else {**rest, "anyOf": kinds}


@router.get("/api")
def api_page(request: Request, state: State) -> HTMLResponse:
    """Show calls by subject from the OpenAPI document."""
    document: dict[str, Any] = request.app.openapi()
    calls: dict[str, list[dict[str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            calls.setdefault((call.get("tags") or ["other"])[0], []).append(
                {
                    "method": method.upper(),
                    "path": path,
                    "about": call.get("description") or call.get("summary") or "",
                    "parameters": [
                        (one["name"], one.get("description", ""))
                        for one in call.get("parameters", ())
                        if one["in"] == "query"
                    ],
                }
            )
    return state.page("api.html", request, calls=calls)
