"""*Compare* page: two or more runs, and which differences are significant."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from wattloop.core.units import (
    format_change,
    format_duration,
    format_energy,
    format_number,
    format_power,
)
from wattloop.report.document import Block, Chart, DocumentTable, Note
from wattloop.report.figures.power import power_figure
from wattloop.serve.api.compare import comparison_of
from wattloop.serve.blocks import blocks_html
from wattloop.serve.state import AppState, State
from wattloop.store.comparison import Cell, Comparison
from wattloop.store.job_queries import job_page
from wattloop.store.runs import RunRecord, find_run
from wattloop.store.samples import series_of

router = APIRouter()

OFFERED = 30
LONGEST_HEAD = 32
SCOPES = ("gpu", "cpu", "dram", "node")
SHOWN: dict[str, Callable[[float], str]] = {
    "s": format_duration,
    "W": format_power,
    "J": lambda energy_j: format_energy(energy_j).partition(" (")[0],
    "J s": lambda edp_js: f"{format_energy(edp_js).partition(' (')[0]} s",
}
"""Numbers for people, by unit."""


@router.get("/compare")
def compare_page(
    request: Request,
    house: State,
    run: Annotated[list[str] | None, Query(max_length=12)] = None,
) -> HTMLResponse:
    """Show a form, and the comparison of the chosen runs."""
    names = list(dict.fromkeys(name for name in run or [] if name))
    shown = Markup("")
    chosen = [find_run(house.store, name) for name in names]
    if len(names) > 1:
        found = comparison_of(house.store, names)
        # runs that are over do not change
        key = ("compare", *(record.run_id for record in found.records))
        shown = house.cache.get(key, lambda: blocks_html(_blocks(house, found)))
    return house.page(
        "compare.html",
        request,
        chosen=[record.run_id for record in chosen],
        offered=_offered(house, chosen),
        blocks=shown,
    )


def _offered(house: AppState, chosen: Sequence[RunRecord]) -> list[Mapping[str, Any]]:
    """Return the chosen runs in their order, then the newest others."""
    first = [
        {
            "run_id": record.run_id,
            "name": record.name,
            "started_wall_s": record.started_wall_s,
            "energy_j": record.energy_j,
        }
        for record in chosen
    ]
    known = {record.run_id for record in chosen}
    newest = job_page(house.store, limit=OFFERED)
    return [*first, *(row for row in newest if row["run_id"] not in known)]


def _blocks(house: AppState, found: Comparison) -> list[Block]:
    heads = [_head(record) for record in found.records]
    columns = ["quantity", heads[0]]
    for head in heads[1:]:
        columns += [head, "difference"]
    rows = tuple(
        (
            f"{quantity.name} {quantity.scope}".strip(),
            *_cells(quantity.cells, quantity.unit),
        )
        for quantity in found.quantities
    )
    table = DocumentTable(
        tuple(columns),
        rows,
        caption=f"Compared with {heads[0]}; a difference within the uncertainty is marked '?'",
        numbers=frozenset(range(1, len(columns))),
        notes=found.notes,
    )
    blocks: list[Block] = [table]
    runs = {f"{record.name} {record.run_id[-6:]}": record for record in found.records}
    silent = [name for name, record in runs.items() if not series_of(record.feeds)]
    for scope in SCOPES:
        chart = power_figure(house.store, runs, scope, 0.0)
        if chart is not None:
            blocks.append(Chart(f"power-{scope}", chart, f"Power of {scope} of each run over time"))
    if silent:
        blocks.append(Note(f"No samples were kept of {', '.join(silent)}: no curve."))
    return blocks


def _head(record: RunRecord) -> str:
    """Shorten a name to the width of a column."""
    name = record.name or record.run_id
    return name if len(name) <= LONGEST_HEAD else f"{name[: LONGEST_HEAD - 9]}…{name[-8:]}"


def _cells(cells: tuple[Cell, ...], unit: str) -> list[str]:
    found = [_value(cells[0], unit)]
    for cell in cells[1:]:
        found.append(_value(cell, unit))
        if cell.difference is None:
            found.append("–")
        else:
            found.append(f"{format_change(cell.difference)}{'' if cell.real else ' ?'}")
    return found


def _value(cell: Cell, unit: str) -> str:
    if cell.value is None:
        return "–"
    shown = SHOWN.get(unit)
    return f"{format_number(cell.value, group=',')} {unit}" if shown is None else shown(cell.value)
