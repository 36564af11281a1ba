"""*Run* page: results, power over time, accounting and advice."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from wattloop.report.document import Note
from wattloop.report.run import grid_facts, labels, remarks, sensors, windows_table
from wattloop.report.subject import notes_of
from wattloop.serve.api.runs import advice_of, find_any_run
from wattloop.serve.blocks import blocks_html
from wattloop.serve.state import State
from wattloop.store.details import read_windows
from wattloop.store.samples import series_of

router = APIRouter()

NO_SENSOR = Note(
    "No sensor was read, so no energy is known of this run.",
    tone="warning",
    command="wattloop devices",
    source="says which sensors there are, and what keeps others from being read",
)


@router.get("/runs/{run_id}")
def run(request: Request, house: State, run_id: str) -> HTMLResponse:
    """Show one run, also a live one."""
    record = find_any_run(house.store, run_id)
    accounting = record.accounting or {}
    windows = read_windows(house.store, record.run_id)
    found = [
        *([sensors(record)] if record.result is not None else []),
        None if series_of(record.feeds) else NO_SENSOR,
        labels(accounting),
        *remarks(record),
        grid_facts(accounting) if accounting else None,
        windows_table(windows),
    ]
    return house.page(
        "run.html",
        request,
        record=record,
        is_live=record.status.value == "running",
        has_samples=any(series.kind != "signal" for series in series_of(record.feeds)),
        has_limits=any(
            one.get("tdp_w") for feed in record.feeds for one in feed.get("domains") or ()
        ),
        has_windows=bool(windows),
        has_signals=any(series.kind == "signal" for series in series_of(record.feeds)),
        advice=blocks_html(notes_of(advice_of(house, record))),
        blocks=blocks_html([block for block in found if block is not None]),
    )
