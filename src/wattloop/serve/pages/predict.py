"""*Predict* page: a form, and the prediction with interval and terms."""

from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from wattloop.core.errors import ConfigError, RunNotFound
from wattloop.hardware.gpus import gpu_of_table, known_gpus
from wattloop.predict.run_total import job_on_gpu, job_table, measured_job
from wattloop.report.document import Block, Note
from wattloop.serve.api.overview import tariff_of
from wattloop.serve.api.predict import PredictForm, forecast_question, known_models
from wattloop.serve.blocks import blocks_html
from wattloop.serve.errors import http_status
from wattloop.serve.pages.jobs import listed_rows
from wattloop.serve.state import AppState, State
from wattloop.store.runs import RunRecord, find_run

router = APIRouter()
OFFERED = 50


@router.get("/predict")
async def predict(
    request: Request, state: State, query: Annotated[PredictForm, Query()]
) -> HTMLResponse:
    """Show a form and its result."""
    record = _measured(state, query.run)
    blocks, status = Markup(""), 200
    moved = Markup("") if record is None else blocks_html(_moved(state, record, query.gpu))
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
        record=record,
        offered=_offered(state, record),
        moved=moved,
    )


def _moved(state: AppState, record: RunRecord, gpu: str) -> list[Block]:
    """Return the job of a measured run on the GPU that is asked for."""
    tariff = tariff_of(state)
    settings = state.settings._replace(tariff_per_kwh=tariff.per_kwh, currency=tariff.currency)
    try:
        found = job_on_gpu(measured_job(record, settings, gpu), gpu_of_table(gpu))
    except ConfigError as error:
        return [Note(f"{error}.", tone="warning", title="Not possible:")]
    command = f"wattloop predict --run {record.run_id} --gpu {found.gpu.name}"
    text = " ".join(f"{note[0].upper()}{note[1:]}." for note in found.notes)
    said = Note(text, tone="info", command=command, source=found.source)
    return [job_table(found), said]


def _offered(state: AppState, record: RunRecord | None) -> list[dict[str, Any]]:
    """Return runs to choose: the one that is asked for, then the newest."""
    rows = [row for row in listed_rows(state, size=OFFERED) if row["run_id"]]
    if record is not None and record.run_id not in {row["run_id"] for row in rows}:
        names = ("run_id", "name", "started_wall_s", "energy_j")
        rows.insert(0, {name: getattr(record, name) for name in names})
    return rows


def _measured(state: AppState, run_id: str) -> RunRecord | None:
    """Return the run that the prediction is compared with."""
    with suppress(RunNotFound):
        return find_run(state.store, run_id) if run_id else None
    return None
