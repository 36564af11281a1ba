"""Downloads of runs as CSV, JSON or Parquet."""

import tempfile
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from wattloop.serve.errors import faults
from wattloop.serve.state import State
from wattloop.store.export import export
from wattloop.store.runs import find_run

router = APIRouter(prefix="/runs", tags=["runs"])

TYPES = {
    "csv": "text/csv",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
}


@router.get(
    "/{run_id}/download",
    response_class=FileResponse,
    responses={200: {"content": {kind: {} for kind in TYPES.values()}}, **faults(404)},
)
def download(
    house: State,
    run_id: str,
    what: Annotated[Literal["samples", "signals", "windows", "steps", "runs"], Query()] = "samples",
    kind: Annotated[Literal["csv", "json", "parquet"], Query(alias="format")] = "csv",
) -> FileResponse:
    """Return samples, signals, windows, steps, or the run itself, as a file."""
    record = find_run(house.store, run_id)
    folder = tempfile.TemporaryDirectory(prefix="wattloop-download-")
    name = f"{record.run_id}-{what}.{kind}"
    path = Path(folder.name) / f"download.{kind}"  # not a name from the request
    try:
        export(house.store, [record], what=what, file_format=kind, target=str(path))
    except BaseException:
        folder.cleanup()
        raise
    return FileResponse(
        path, media_type=TYPES[kind], filename=name, background=BackgroundTask(folder.cleanup)
    )
