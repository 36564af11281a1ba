"""Totals of stored runs and the state of nodes for Prometheus, at /metrics."""

from collections.abc import Callable, Iterator, Sequence

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from wattloop.cap.saver.totals import read_savings, sum_savings
from wattloop.fleet.nodes import NodeNow
from wattloop.serve.state import AppState, State
from wattloop.store.formats.prometheus import (
    OPENMETRICS_TYPE,
    TEXT_TYPE,
    MetricFamily,
    MetricSample,
    render_families,
)
from wattloop.store.runs import TOTALS_BY, live_runs, stored_totals
from wattloop.version import __version__

router = APIRouter()
GRID = "Energy from the grid, estimated with the PUE."


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(state: State, request: Request) -> PlainTextResponse:
    """Return joules and grams by cluster, project and host, live runs, and power of nodes now."""
    openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
    families = [*_stored(state), *_saved(state), *_nodes(state.nodes.now())]
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


def _stored(state: AppState) -> Iterator[MetricFamily]:
    version = [MetricSample({"version": __version__}, 1.0)]
    yield MetricFamily("wattloop_info", "Version of the server.", version)
    live = [MetricSample({}, float(len(live_runs(state.store))))]
    yield MetricFamily("wattloop_live_runs", "Runs that go on.", live)
    ever = "also of deleted runs; a run counts when it is stored."
    families = (
        ("wattloop_runs", "runs", "Runs that were kept."),
        ("wattloop_energy_joules", "energy_j", "Energy of everything that was read."),
        ("wattloop_facility_energy_joules", "facility_j", GRID),
        ("wattloop_carbon_grams", "carbon_g", "Emissions of the energy from the grid."),
        ("wattloop_stored_runs_total", "runs", f"Runs, {ever}"),
        ("wattloop_stored_energy_joules_total", "energy_j", f"Energy, {ever}"),
        ("wattloop_stored_facility_energy_joules_total", "facility_j", f"From the grid, {ever}"),
        ("wattloop_stored_carbon_grams_total", "carbon_g", f"Emissions, {ever}"),
    )
    now, ever_stored = stored_totals(state.store)
    counters = state.stored_counters.shown(ever_stored)
    for family, figure, text in families:
        samples = [
            MetricSample({name: str(row[name]) for name in TOTALS_BY}, float(row[figure]))
            for row in (counters if family.endswith("_total") else now)
            if row[figure] is not None
        ]
        yield MetricFamily(family, text, samples)
