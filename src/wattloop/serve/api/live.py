"""Samples of a running run as server-sent events."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from wattloop.core.errors import RunNotFound
from wattloop.serve.errors import faults
from wattloop.serve.state import AppState, State
from wattloop.serve.worker import too_busy
from wattloop.store.journal import END, SAMPLES, JournalTail, SampleBlock
from wattloop.store.runs import RunRecord, is_live, live_journal
from wattloop.store.samples import power_series

router = APIRouter(prefix="/runs", tags=["runs"])
POLL_S = 0.5
MOST_STREAMS = 200
"""Each holds a connection for as long as its reader looks at it."""
EVENTS = "text/event-stream"


@router.get(
    "/{run_id}/live",
    response_class=StreamingResponse,
    responses={200: {"content": {EVENTS: {"schema": {"type": "string"}}}}, **faults(404)},
)
async def live(request: Request, state: State, run_id: str) -> StreamingResponse:
    """Stream events `samples` as they are written, and `end` when the run has ended.

    Their data are rows `{"time_s": since the start, "power_w": ..., "domain": ...}`.
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


async def _events(
    request: Request, state: AppState, record: RunRecord, tail: JournalTail, path: Path
) -> AsyncIterator[str]:
    counters: dict[tuple[int, int], tuple[float, float]] = {}
    state.streams += 1
    try:
        while not await request.is_disconnected():
            frames = await asyncio.to_thread(lambda: list(tail.poll()))
            blocks = [body for kind, body in frames if kind == SAMPLES]
            rows = [row for block in blocks for row in _rows(block, record, counters)]
            if rows:
                yield f"event: samples\ndata: {json.dumps(rows)}\n\n"
            over = any(kind == END for kind, _ in frames)
            if over or not await asyncio.to_thread(is_live, path):
                yield "event: end\ndata: {}\n\n"
                return
            await asyncio.sleep(POLL_S)
    finally:
        state.streams -= 1
        tail.close()


def _rows(
    block: SampleBlock, record: RunRecord, counters: dict[tuple[int, int], tuple[float, float]]
) -> Iterator[dict[str, Any]]:
    """Return power of the domains in a block: gauges directly, counters by differences."""
    known = [s for s in power_series(record.feeds).values() if s.feed == block.feed]
    for place, time_s in enumerate(block.times_s):
        for series in known:
            value = block.values[place * block.width + series.column]
            if math.isnan(value):  # a gap
                continue
            power_w: float | None = value
            if series.kind == "counter":
                before = counters.get((series.feed, series.column))
                counters[series.feed, series.column] = (time_s, value)
                power_w = None
                if before is not None:
                    power_w = series.watts((before[0], time_s), (before[1], value))[1]
            if power_w is not None and not math.isnan(power_w):
                begun_s = time_s - record.started_s
                yield {"time_s": begun_s, "power_w": power_w, "domain": series.name}
