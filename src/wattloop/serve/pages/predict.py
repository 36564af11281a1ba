"""*Predict* page: a form, and the prediction with interval and terms."""

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from wattloop.core.errors import ConfigError, RunNotFound
from wattloop.hardware.gpus import known_gpus
from wattloop.report.document import Note
from wattloop.serve.api.predict import PredictForm, forecast_question, known_models
from wattloop.serve.blocks import blocks_html
from wattloop.serve.errors import http_status
from wattloop.serve.state import AppState, State
from wattloop.store.runs import RunRecord, find_run

router = APIRouter()


@router.get("/predict")
async def predict(
    request: Request, state: State, query: Annotated[PredictForm, Query()]
) -> HTMLResponse:
    """Show a form and its result."""
    blocks, status = Markup(""), 200
    if query.model:
        try:
            blocks = Markup((await forecast_question(state, query))["html"])
        except ConfigError as error:
            blocks = blocks_html([Note(str(error), tone="warning", title="Not possible:")])
            status = http_status(error)
    return state.page(
        "predict.html",
        request,
        status=status,
        query=query,
        models=known_models(),
        gpus=[gpu.name for gpu in known_gpus()],
        blocks=blocks,
        record=_measured(state, query.run),
    )


def _measured(state: AppState, run_id: str) -> RunRecord | None:
    """Return the run that the prediction is compared with."""
    with suppress(RunNotFound):
        return find_run(state.store, run_id) if run_id else None
    return None
