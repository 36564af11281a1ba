"""Style sheet and scripts, all served from this machine."""

import subprocess
import sys
from functools import lru_cache
from importlib.metadata import version

from fastapi import APIRouter
from fastapi.responses import Response

from wattloop.core.cache import FileCache
from wattloop.core.errors import ConfigError
from wattloop.core.files import cache_folder
from wattloop.report.figures.render import needs_libraries, style_sheet, theme_script
from wattloop.serve.state import static_text
from wattloop.version import __version__

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
    text = theme_script() + static_text("wattloop.js")
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
    """Return the Vega scripts; some megabytes, made once for each version of what brings them.

    They are made in a child process: the JavaScript engine that does it would stay in memory.

    Raises:
        ConfigError: what draws charts is not installed.
    """
    needs_libraries()
    files = FileCache(
        cache_folder("vega"), suffix=".js", most=2, load=bytes.decode, dump=str.encode
    )
    return files.get([version("vl-convert-python"), __version__], _made_in_child)


def _made_in_child() -> str:
    script = (
        "import sys; from wattloop.report.figures.render import vega_bundle; "
        "sys.stdout.buffer.write(vega_bundle().encode())"
    )
    # -P: a file json.py in the current folder is not imported
    found = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, check=False)
    if found.returncode:
        said = found.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise ConfigError(f"the scripts that draw charts could not be made: {' '.join(said)}")
    return found.stdout.decode()
