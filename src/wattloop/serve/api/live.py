"""Live runs: power and energy so far of each, and the samples of one as server-sent events."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from wattloop.core.errors import RunNotFound
from wattloop.measure.live import LiveSnapshot
from wattloop.serve.errors import faults
from wattloop.serve.state import AppState, State
from wattloop.serve.worker import too_busy
from wattloop.store.journal import END, SAMPLES, JournalTail, SampleBlock
from wattloop.store.run_record import UNALLOCATED_KIND
from wattloop.store.runs import RunRecord, is_live, live_journal, live_journals
from wattloop.store.samples import Series, power_series, series_of

router = APIRouter(prefix="/runs", tags=["runs"])
POLL_S = 0.5
FOLLOWED = 24
"""Live runs whose journals are followed for their power; of a larger fleet, nodes report it."""
PATIENCE_S = 0.1
"""So long an answer waits for the journal of a run that was not followed before."""
MOST_STREAMS = 200
"""Each holds a connection for as long as its reader looks at it."""
EVENTS = "text/event-stream"


@router.get(
    "/{run_id}/live",
    response_class=StreamingResponse,
    responses={200: {"content": {EVENTS: {"schema": {"type": "string"}}}}, **faults(404)},
)
async def live(request: Request, state: State, run_id: str) -> StreamingResponse:
    """Stream `samples`, `signals` and `totals` as they are written, and `end` at the run's end.

    Data of `samples` are rows `{"time_s": since the start, "power_w": ..., "domain": ...}`, of
    `signals` rows `{"time_s", "value", "signal", "unit"}`, those of `totals` a run of `/runs/live`.
    """
    if state.streams >= MOST_STREAMS:
        raise too_busy()
    found = await asyncio.to_thread(live_journal, state.store, run_id)
    if found is None:
        raise RunNotFound(f"run {run_id!r} is not going on")
    record, path = found
    try:
        tail = JournalTail(path)
    except OSError:  # ended this moment
        raise RunNotFound(f"run {run_id!r} is not going on") from None
    return StreamingResponse(
        _events(request, state, record, tail, path),
        media_type=EVENTS,
        headers={"Cache-Control": "no-store"},
    )


class LiveRunAnswer(BaseModel):
    """A run that is measured now; null is not known yet."""

    run_id: str
    name: str
    host: str
    user: str
    project: str
    started_wall_s: float
    elapsed_s: float
    energy_j: float | None
    power_w: float | None
    provenance: str | None
    steps: int
    step_j: float | None


class LiveRunsAnswer(BaseModel):
    """Live runs, newest first; `more` are not followed."""

    runs: list[LiveRunAnswer]
    more: int


@router.get("/live")
def runs_live(state: State) -> LiveRunsAnswer:
    """Return power now and energy so far of the runs that are measured now."""
    found = live_answers(state)
    return LiveRunsAnswer(runs=found[:FOLLOWED], more=max(0, len(found) - FOLLOWED))


def live_answers(state: AppState) -> list[LiveRunAnswer]:
    """Return all live runs of users, newest first; the first `FOLLOWED` with their power."""
    found = [one for one in live_journals(state.store) if one[0].kind != UNALLOCATED_KIND]
    known = state.followed.look([path for _, path in found[:FOLLOWED]], PATIENCE_S)
    return [_live_answer(record, known.get(path)) for record, path in found]


def _live_answer(record: RunRecord, seen: LiveSnapshot | None) -> LiveRunAnswer:
    result = None if seen is None else seen.result
    return LiveRunAnswer(
        run_id=record.run_id,
        name=record.name or record.run_id,
        host=record.host,
        user=record.user,
        project=str(record.tags.get("project") or ""),
        started_wall_s=record.started_wall_s,
        elapsed_s=max(0.0, time.time() - record.started_wall_s),
        energy_j=None if result is None else result.energy_j,
        power_w=None if seen is None else seen.total_w,
        provenance=result.provenance.value if result and result.provenance else None,
        steps=0 if seen is None else seen.steps,
        step_j=None if seen is None else seen.step_j,
    )


async def _events(
    request: Request, state: AppState, record: RunRecord, tail: JournalTail, path: Path
) -> AsyncIterator[str]:
    counters: dict[tuple[int, int], tuple[float, float]] = {}
    state.streams += 1
    said = ""
    try:
        while not await request.is_disconnected():
            frames = await asyncio.to_thread(lambda: list(tail.poll()))
            blocks = [body for kind, body in frames if kind == SAMPLES]
            rows = [row for block in blocks for row in _rows(block, record, counters)]
            if rows:
                yield f"event: samples\ndata: {json.dumps(rows)}\n\n"
            values = [row for block in blocks for row in _signal_rows(block, record)]
            if values:
                yield f"event: signals\ndata: {json.dumps(values)}\n\n"
            totals = await asyncio.to_thread(_totals, state, record, path)
            if totals and totals != said:
                said = totals
                yield f"event: totals\ndata: {totals}\n\n"
            over = any(kind == END for kind, _ in frames)
            if over or not await asyncio.to_thread(is_live, path):
                yield "event: end\ndata: {}\n\n"
                return
            await asyncio.sleep(POLL_S)
    finally:
        state.streams -= 1
        tail.close()


def _totals(state: AppState, record: RunRecord, path: Path) -> str:
    seen = state.followed.look([path], 0.0).get(path)
    return "" if seen is None else _live_answer(record, seen).model_dump_json(exclude={"elapsed_s"})


def _rows(
    block: SampleBlock, record: RunRecord, counters: dict[tuple[int, int], tuple[float, float]]
) -> Iterator[dict[str, Any]]:
    """Return power of the domains in a block: gauges directly, counters by differences."""
    known = _series_in(block, power_series(record.feeds).values())
    for place, time_s in enumerate(block.times_s):
        for series in known:
            value = block.values[place * block.width + series.column]
            if not math.isfinite(value + time_s):  # a gap; or made up by another machine
                continue
            power_w: float | None = value
            if series.kind == "counter":
                before = counters.get((series.feed, series.column))
                counters[series.feed, series.column] = (time_s, value)
                power_w = None
                if before is not None:
                    power_w = series.watts((before[0], time_s), (before[1], value))[1]
            if power_w is not None and math.isfinite(power_w):
                begun_s = time_s - record.started_s
                yield {"time_s": begun_s, "power_w": power_w, "domain": series.name}


def _signal_rows(block: SampleBlock, record: RunRecord) -> Iterator[dict[str, Any]]:
    """Return utilisation, clocks and the like of a block, at most one value of each a second."""
    signals = [s for s in _series_in(block, series_of(record.feeds)) if s.kind == "signal"]
    last_s = -math.inf
    for place, time_s in enumerate(block.times_s if signals else ()):
        if time_s - last_s < 1.0:
            continue
        last_s = time_s
        for series in signals:
            value = block.values[place * block.width + series.column]
            if math.isfinite(value + time_s):
                begun_s = time_s - record.started_s
                named = {"signal": series.name, "unit": series.unit}
                yield {"time_s": begun_s, "value": value, **named}


def _series_in(block: SampleBlock, known: Iterable[Series]) -> list[Series]:
    """Return the series of a block; its sender may have fewer columns than the header says."""
    return [s for s in known if s.feed == block.feed and s.column < block.width]
