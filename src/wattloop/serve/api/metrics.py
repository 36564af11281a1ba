"""Totals in Prometheus format, at /metrics.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Iterator

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from sqlalchemy import func, select

from wattloop.serve.state import State
from wattloop.store.database import Store
from wattloop.store.formats.prometheus import family_lines
from wattloop.store.runs import live_runs
from wattloop.store.schema import run_facts, runs
from wattloop.version import __version__

router = APIRouter()
TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(state: State) -> PlainTextResponse:
    """Return runs, joules and grams by cluster, project and host, and the number of live runs."""
    return PlainTextResponse("".join(f"{line}\n" for line in _lines(state.store)), media_type=TYPE)


def _lines(store: Store) -> Iterator[str]:
    labels = (run_facts.c.cluster, run_facts.c.project, runs.c.host, run_facts.c.provenance)
    query = (
        select(
            *labels,
            func.count(),
            func.sum(runs.c.energy_j),
            func.sum(run_facts.c.facility_j),
            func.sum(run_facts.c.carbon_g),
        )
        .select_from(runs.join(run_facts, run_facts.c.run_id == runs.c.run_id))
        # what another run counts, and what runs within a run measured, is in that run's figures
        .where(runs.c.counted, runs.c.parent_run_id.is_(None))
        .group_by(*labels)
    )
    with store.reading() as connection:
        found = [tuple(row) for row in connection.execute(query)]
    names = ("cluster", "project", "host", "provenance")
    families = (
        ("wattloop_runs", "Runs that were kept.", 4),
        ("wattloop_energy_joules", "Energy of everything that was read.", 5),
        ("wattloop_facility_energy_joules", "Energy from the grid, estimated with the PUE.", 6),
        ("wattloop_carbon_grams", "Emissions of the energy from the grid.", 7),
    )
    version = {"version": __version__}
    yield from family_lines("wattloop_info", "Version of the server.", [(version, 1)])
    yield from family_lines("wattloop_live_runs", "Runs that go on.", [({}, len(live_runs(store)))])
    for family, text, column in families:
        rows = [
            (dict(zip(names, map(str, row), strict=False)), float(row[column]))
            for row in found
            if row[column] is not None
        ]
        yield from family_lines(family, text, rows)
