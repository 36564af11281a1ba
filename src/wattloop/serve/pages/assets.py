"""Style sheet and scripts, all served from this machine."""

import json
from functools import lru_cache

from fastapi import APIRouter
from fastapi.responses import Response

from wattloop.report.figures.chart import CONFIG, DARK, PALETTE
from wattloop.report.html import style_sheet
from wattloop.serve.state import static_text

router = APIRouter(prefix="/static")
KEEP = {"Cache-Control": "public, max-age=3600"}


@router.get("/style.css")
def style() -> Response:
    """Serve the style sheet of reports and pages."""
    text = style_sheet() + static_text("style.css")
    return Response(text, media_type="text/css", headers=KEEP)


@router.get("/wattloop.js")
def script() -> Response:
    """Serve the script that draws charts and switches between light and dark."""
    theme = json.dumps({"palette": PALETTE, "config": CONFIG, "dark": DARK})
    text = f"const THEME = {theme};\n{static_text('wattloop.js')}"
    return Response(text, media_type="text/javascript", headers=KEEP)


@router.get("/curves.js")
def curves() -> Response:
    """Serve the script that draws power curves, also of live runs."""
    return Response(static_text("curves.js"), media_type="text/javascript", headers=KEEP)


@router.get("/vega.js")
def vega() -> Response:
    """Serve the Vega scripts that draw charts."""
    return Response(vega_text(), media_type="text/javascript", headers=KEEP)


@lru_cache(maxsize=1)
def vega_text() -> str:
    """Return the Vega scripts; some megabytes, read once."""
    from wattloop.report.figures.render import vega_bundle

    return vega_bundle()
