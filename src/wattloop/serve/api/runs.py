"""API of runs: results, curves, advice, comparison and downloads."""

import math
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse
from pydantic import BaseModel
from starlette.background import BackgroundTask

from wattloop.advise.advice import Advice
from wattloop.advise.advisor import advice_on
from wattloop.cap.saver.totals import group_savings, read_savings, sum_savings
from wattloop.core.errors import ConfigError
from wattloop.integrations.run_phases import StepTotals
from wattloop.integrations.serving import read_serving_totals
from wattloop.integrations.stored_steps import (
    read_phase_spans,
    read_repeats,
    read_run_totals,
    read_step_costs,
    read_step_totals,
)
from wattloop.serve.errors import conflict_on_error, faults
from wattloop.serve.state import AppState, State
from wattloop.store.comparison import RunComparison, compare
from wattloop.store.database import Store
from wattloop.store.export import export
from wattloop.store.run_record import read_windows
from wattloop.store.runs import RunRecord, find_run, has_run, live_journal
from wattloop.store.sample_queries import read_curve
from wattloop.store.samples import Series, power_series, series_of

router = APIRouter(tags=["runs"])


class CurveAnswer(BaseModel):
    """Power of one domain in watts, or a signal, over seconds since the start."""

    name: str
    scope: str
    unit: str
    kind: str
    times_s: list[float]
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]
    tdp_w: float | None


class BandAnswer(BaseModel):
    """A window or a part of a phase, in seconds since the start of the run."""

    name: str
    begin_s: float
    end_s: float
    energy_j: float | None


class CurvesAnswer(BaseModel):
    """All curves of a run, downsampled to the requested size."""

    run_id: str
    curves: list[CurveAnswer]
    windows: list[BandAnswer]
    phases: list[BandAnswer] = []


class AdviceAnswer(BaseModel):
    """Advice, the best first."""

    run_id: str
    advice: list[dict[str, Any]]


@router.get("/runs/{run_id}", responses=faults(404))
def run(state: State, run_id: str) -> dict[str, Any]:
    """Return everything about a run except its samples.

    `step_totals` is null without steps, `serving` without a language-model server.
    """
    record = find_any_run(state.store, run_id)
    totals = step_totals(state, record)
    serving = state.cache.get(
        ("serving_totals", record.run_id, record.status),
        lambda: read_serving_totals(state.store, record),
    )
    return record.to_dict() | {
        "step_totals": None if totals is None else totals.to_dict(),
        "serving": None if serving is None else serving.to_dict(),
    }


def step_totals(state: AppState, record: RunRecord) -> StepTotals | None:
    """Return steps and phases for page and API; a run has none stored until it has ended."""
    return state.cache.get(
        ("step_totals", record.run_id, record.status),
        lambda: read_step_totals(state.store, record),
    )


@router.get("/runs/{run_id}/curves", responses=faults(404))
def curves(
    state: State,
    run_id: str,
    points: Annotated[int, Query(ge=10, le=20_000)] = 1_000,
    begin_s: Annotated[float | None, Query(ge=0, allow_inf_nan=False)] = None,
    end_s: Annotated[float | None, Query(ge=0, allow_inf_nan=False)] = None,
    signals: Annotated[bool, Query(description="Utilisation, clocks, ... instead.")] = False,
) -> CurvesAnswer:
    """Return power of every domain over time, with windows; of `begin_s` to `end_s` if given."""
    record = find_any_run(state.store, run_id)
    span_s = (begin_s, end_s)
    if signals:
        return CurvesAnswer(
            run_id=record.run_id,
            curves=_curves(
                state.store,
                record,
                [s for s in series_of(record.feeds) if s.kind == "signal"],
                points,
                span_s,
            ),
            windows=[],
        )
    return curves_answer(state.store, record, points, span_s)


@router.get("/runs/{run_id}/advice", responses=faults(404))
def advice(state: State, run_id: str) -> AdviceAnswer:
    """Return what the run wasted and how to save it; empty without advice."""
    record = find_any_run(state.store, run_id)
    return AdviceAnswer(
        run_id=record.run_id, advice=[a.to_dict() for a in run_advice(state, record)]
    )


def run_advice(state: AppState, record: RunRecord) -> list[Advice]:
    """Return advice for the page; cached for finished runs."""
    if record.result is None:
        return []
    return state.cache.get(
        ("advice", record.run_id), lambda: advice_on(state.store, record, state.settings)
    )


def find_any_run(store: Store, run_id: str) -> RunRecord:
    """Return a stored or a running run."""
    with store.reading() as connection:
        is_kept = has_run(connection, run_id)
    live = None if is_kept else live_journal(store, run_id)
    return find_run(store, run_id) if live is None else live[0]


def curves_answer(
    store: Store, record: RunRecord, points: int, span_s: tuple[float | None, float | None]
) -> CurvesAnswer:
    """Return curves for page and API."""
    start_s = record.started_s
    bands = [
        BandAnswer(
            name=w.name, begin_s=w.begin_s - start_s, end_s=w.end_s - start_s, energy_j=w.energy_j
        )
        for w in read_windows(store, record.run_id)
    ]
    found = _curves(store, record, list(power_series(record.feeds).values()), points, span_s)
    phases = [
        BandAnswer(
            name=span.name,
            begin_s=span.begin_s - start_s,
            end_s=span.end_s - start_s,
            energy_j=None,
        )
        for span in read_phase_spans(store, record)
    ]
    return CurvesAnswer(run_id=record.run_id, curves=found, windows=bands, phases=phases)


def _curves(
    store: Store,
    record: RunRecord,
    wanted: list[Series],
    points: int,
    span_s: tuple[float | None, float | None],
) -> list[CurveAnswer]:
    start_s = record.started_s
    begin_s, end_s = (None if edge is None else start_s + edge for edge in span_s)
    domains = [domain for feed in record.feeds for domain in feed.get("domains") or ()]
    limits = {domain["name"]: domain.get("tdp_w") for domain in domains}
    if record.result is not None:
        limits |= {domain.name: domain.tdp_w for domain in record.result.domains}
    scopes = {domain["name"]: str(domain["scope"]) for domain in domains}
    found = []
    for series in wanted:
        curve = read_curve(store, record.run_id, series, points, (begin_s, end_s))
        is_signal = series.kind == "signal"
        found.append(
            CurveAnswer(
                name=series.name,
                scope=scopes.get(series.name, ""),
                unit=series.unit if is_signal else "W",
                kind=series.kind,
                times_s=[t - start_s for t in curve.times_s],
                mean=[_number(v) for v in curve.mean],
                low=[_number(v) for v in curve.lowest],
                high=[_number(v) for v in curve.highest],
                tdp_w=None if is_signal else limits.get(series.name),
            )
        )
    return found


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


MOST_RUNS = 12


@router.get("/compare", responses=faults(404, 409))
def compared(
    state: State, run: Annotated[list[str], Query(min_length=2, max_length=MOST_RUNS)]
) -> dict[str, Any]:
    """Return each quantity of every run, its difference from the first, and its significance."""
    return compare_runs(state.store, run).to_dict()


def compare_runs(store: Store, names: list[str]) -> RunComparison:
    """Compare the named runs with the first."""
    if not 2 <= len(names) <= MOST_RUNS:
        raise ConfigError(f"name 2 to {MOST_RUNS} runs to compare")
    records = [find_run(store, name) for name in names]
    with conflict_on_error():  # two names may mean one run
        return compare(records, read_step_costs(store, records), read_repeats(store, records))


@router.get("/savings")
def savings(
    state: State,
    since_s: Annotated[float | None, Query(ge=0, allow_inf_nan=False)] = None,
    by: Annotated[Literal["user", "job", "project", "gpu"] | None, Query()] = None,
) -> dict[str, Any]:
    """Return what runs with a saver saved since a time (seconds since 1970), with 90% intervals.

    `total` is the sum, `groups` the sums of `by`, `runs` the evidence of each run.
    """
    found = state.answers.get(
        ("savings", since_s), lambda: read_savings(state.store, state.settings, since_s)
    )
    groups = {} if by is None else group_savings(found, by)
    return {
        "total": sum_savings(found).to_dict(),
        "groups": [{"name": name, **each.to_dict()} for name, each in groups.items()],
        "runs": [run.to_dict() for run in found],
    }


TYPES = {
    "csv": "text/csv",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
}


@router.get(
    "/runs/{run_id}/download",
    response_class=FileResponse,
    responses={200: {"content": {kind: {} for kind in TYPES.values()}}, **faults(404)},
)
def download(
    state: State,
    run_id: str,
    what: Annotated[
        Literal["samples", "signals", "windows", "steps", "phases", "runs"], Query()
    ] = "samples",
    kind: Annotated[Literal["csv", "json", "parquet"], Query(alias="format")] = "csv",
) -> FileResponse:
    """Return samples, signals, windows, steps, phases, or the run itself, as a file."""
    record = find_run(state.store, run_id)
    folder = tempfile.TemporaryDirectory(prefix="wattloop-download-")
    name = f"{record.run_id}-{what}.{kind}"
    path = Path(folder.name) / f"download.{kind}"  # not a name from the request
    try:
        totals = read_run_totals(state.store, [record]) if what in ("runs", "phases") else {}
        export(state.store, [record], what=what, file_format=kind, target=str(path), totals=totals)
    except BaseException:
        folder.cleanup()
        raise
    return FileResponse(
        path, media_type=TYPES[kind], filename=name, background=BackgroundTask(folder.cleanup)
    )
