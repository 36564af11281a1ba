"""Totals of stored runs and the state of nodes for Prometheus, at /metrics."""

from collections.abc import Callable, Iterator, Sequence

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from sqlalchemy import func, select

from wattloop.cap.saver.totals import read_savings, sum_savings
from wattloop.fleet.nodes import NodeNow
from wattloop.serve.state import AppState, State
from wattloop.store.database import Store
from wattloop.store.formats.prometheus import (
    OPENMETRICS_TYPE,
    TEXT_TYPE,
    MetricFamily,
    MetricSample,
    render_families,
)
from wattloop.store.runs import live_runs
from wattloop.store.schema import run_facts, runs
from wattloop.version import __version__

router = APIRouter()


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(state: State, request: Request) -> PlainTextResponse:
    """Return joules and grams by cluster, project and host, live runs, and power of nodes now."""
    openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
    families = [*_stored(state.store), *_saved(state), *_nodes(state.nodes.now())]
    return PlainTextResponse(
        render_families(families, openmetrics=openmetrics),
        media_type=OPENMETRICS_TYPE if openmetrics else TEXT_TYPE,
    )


def _saved(state: AppState) -> Iterator[MetricFamily]:
    found = state.answers.get(
        ("savings", None), lambda: read_savings(state.store, state.settings, None)
    )
    saved = sum_savings(found).saved_j
    bounds = (
        () if saved is None else (("mean", saved.value), ("low", saved.low), ("high", saved.high))
    )
    samples = [MetricSample({"bound": name}, value) for name, value in bounds]
    text = "GPU energy that run --save saved, with its 90% interval."
    yield MetricFamily("wattloop_saved_energy_joules", text, samples)


def _nodes(nodes: Sequence[NodeNow]) -> Iterator[MetricFamily]:
    """Nodes of the fleet. The power of a silent node is unknown, not its last one."""
    live = [node for node in nodes if not node.is_stale]
    power = [
        MetricSample({"node": n.node, "domain": d, "provenance": n.status.provenance}, watts)
        for n in live
        for d, watts in n.status.power_w.items()
    ]
    yield MetricFamily("wattloop_node_power_watts", "Power of a node's domain now.", power)
    figures: tuple[tuple[str, str, Callable[[NodeNow], float]], ...] = (
        ("jobs", "Jobs on the node.", lambda n: len(n.status.jobs)),
        ("faults", "Faults that its agent reports.", lambda n: len(n.status.faults)),
        (
            "last_seen_timestamp_seconds",
            "Time of its last message.",
            lambda n: n.heard_wall_s,
        ),
    )
    for name, text, value in figures:
        samples = [MetricSample({"node": n.node}, float(value(n))) for n in nodes]
        yield MetricFamily(f"wattloop_node_{name}", text, samples)


def _stored(store: Store) -> Iterator[MetricFamily]:
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
    version = [MetricSample({"version": __version__}, 1.0)]
    yield MetricFamily("wattloop_info", "Version of the server.", version)
    live = [MetricSample({}, float(len(live_runs(store))))]
    yield MetricFamily("wattloop_live_runs", "Runs that go on.", live)
    for family, text, column in families:
        rows = [
            MetricSample(dict(zip(names, map(str, row), strict=False)), float(row[column]))
            for row in found
            if row[column] is not None
        ]
        yield MetricFamily(family, text, rows)
