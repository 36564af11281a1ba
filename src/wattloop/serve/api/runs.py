"""Runs: what was measured, and its curves."""

import math
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from wattloop.serve.house import InHouse
from wattloop.store.curves import read_curve
from wattloop.store.database import Store
from wattloop.store.details import read_windows
from wattloop.store.live import live_runs
from wattloop.store.runs import RunRecord, find_run
from wattloop.store.series import Series, series_of

__all__ = ["CurvesAnswer", "curves_answer", "find_any_run", "router"]

router = APIRouter(prefix="/runs", tags=["runs"])


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
    """A window within the run, in seconds since its start."""

    name: str
    begin_s: float
    end_s: float
    energy_j: float | None


class CurvesAnswer(BaseModel):
    """All curves of a run, as fine as fits."""

    run_id: str
    curves: list[CurveAnswer]
    windows: list[BandAnswer]


@router.get("/{run_id}")
def run(house: InHouse, run_id: str) -> dict[str, Any]:
    """Everything known of a run but its samples."""
    return find_any_run(house.store, run_id).to_dict()


@router.get("/{run_id}/curves")
def curves(
    house: InHouse,
    run_id: str,
    points: Annotated[int, Query(ge=10, le=20_000)] = 1_000,
    begin_s: Annotated[float | None, Query(ge=0)] = None,
    end_s: Annotated[float | None, Query(ge=0)] = None,
) -> CurvesAnswer:
    """Power of every domain over time, with windows; a span of it with `begin_s` and `end_s`."""
    record = find_any_run(house.store, run_id)
    return curves_answer(house.store, record, points, (begin_s, end_s))


def find_any_run(store: Store, run_id: str) -> RunRecord:
    """A stored run, or one that still goes on."""
    for record in live_runs(store):
        if record.run_id == run_id:
            return record
    return find_run(store, run_id)


def curves_answer(
    store: Store, record: RunRecord, points: int, span_s: tuple[float | None, float | None]
) -> CurvesAnswer:
    """What the page draws."""
    start_s = record.started_s
    span = tuple(None if edge is None else start_s + edge for edge in span_s)
    found = []
    limits = {} if record.result is None else {d.name: d.tdp_w for d in record.result.domains}
    scopes = {d["name"]: str(d["scope"]) for f in record.feeds for d in f.get("domains") or ()}
    best: dict[str, Series] = {}
    for series in series_of(record.feeds):
        if series.kind == "signal":
            continue
        # one curve per domain; a gauge rather than a counter, it needs no difference
        if series.name not in best or best[series.name].kind != "gauge":
            best[series.name] = series
    for name, series in best.items():
        curve = read_curve(store, record.run_id, series, points, (span[0], span[1]))
        found.append(
            CurveAnswer(
                name=name,
                scope=scopes.get(name, ""),
                unit="W",
                kind=series.kind,
                times_s=[t - start_s for t in curve.times_s],
                mean=[_number(v) for v in curve.mean],
                low=[_number(v) for v in curve.lowest],
                high=[_number(v) for v in curve.highest],
                tdp_w=limits.get(name),
            )
        )
    bands = [
        BandAnswer(
            name=w.name, begin_s=w.begin_s - start_s, end_s=w.end_s - start_s, energy_j=w.energy_j
        )
        for w in read_windows(store, record.run_id)
    ]
    return CurvesAnswer(run_id=record.run_id, curves=found, windows=bands)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
