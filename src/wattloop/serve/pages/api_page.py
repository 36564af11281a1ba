"""*API* page: every call on one page, without scripts of another host."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from wattloop.serve.state import State

router = APIRouter()


@router.get("/api")
def api_page(request: Request, house: State) -> HTMLResponse:
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
    return house.page("api.html", request, calls=calls)
