"""Readers and machines of the dashboard's benchmark: one page with its time, or many at once."""

import asyncio
import random
import time
from array import array
from dataclasses import dataclass, field

import httpx

from serve_load_store import DOMAINS, header
from wattloop.store.journal import END, json_frame, samples_frame

__all__ = ["TOKEN", "Traffic", "real_page_ms", "together"]

TOKEN = "benchmark"
READERS, EVERY_S, MACHINES, RATE_HZ = 50, 5.0, 20, 10
AGAIN_S = 0.05
PLACEHOLDER = 202
"""The status of a page that is being worked out and says so."""


@dataclass
class Traffic:
    """Results of readers and machines.

    Attributes:
        real_ms: times of complete answers.
        placeholder_ms: times of placeholder answers.
        faults: errors.
        sent: samples by run, as machines sent them.
    """

    real_ms: list[float] = field(default_factory=list)
    placeholder_ms: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)


def real_page_ms(client: httpx.Client, path: str) -> tuple[float, int]:
    """Return the time until the page itself is served, and the number of placeholders before it."""
    begin_s, placeholders = time.perf_counter(), 0
    while True:
        answer = client.get(path)
        answer.raise_for_status()
        if answer.status_code != PLACEHOLDER:
            return 1_000 * (time.perf_counter() - begin_s), placeholders
        placeholders += 1
        time.sleep(AGAIN_S)


async def together(base: str, paths: list[str], seconds: float) -> Traffic:
    """Run fifty readers and twenty machines at the same time."""
    seen = Traffic()
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=base, timeout=60, limits=limits) as client:
        end_s = time.monotonic() + seconds
        await asyncio.gather(
            *(_reader(client, number, paths, end_s, seen) for number in range(READERS)),
            *(_machine(client, number, end_s, seen) for number in range(MACHINES)),
        )
    return seen


async def _reader(
    client: httpx.AsyncClient, number: int, paths: list[str], end_s: float, seen: Traffic
) -> None:
    draw = random.Random(number)
    await asyncio.sleep(draw.uniform(0, EVERY_S))
    while time.monotonic() < end_s:
        begin_s = time.perf_counter()
        path = draw.choice(paths)
        try:
            answer = await client.get(path)
        except httpx.HTTPError as error:
            seen.faults.append(f"{path}: {type(error).__name__}")
        else:
            took_ms = 1_000 * (time.perf_counter() - begin_s)
            if answer.status_code == PLACEHOLDER:
                seen.placeholder_ms.append(took_ms)
            else:
                seen.real_ms.append(took_ms)
            if answer.status_code not in (200, PLACEHOLDER):
                seen.faults.append(f"{path}: {answer.status_code}")
        await asyncio.sleep(max(0.0, EVERY_S - (time.perf_counter() - begin_s)))


async def _machine(client: httpx.AsyncClient, number: int, end_s: float, seen: Traffic) -> None:
    run_id = f"20261231-{int(time.time()) % 1_000_000:06}-m{number:05}"
    piece = header(run_id, f"far{number:02}", time.time(), {"cluster": "far"})
    offset, done = 0, 0
    while time.monotonic() < end_s:
        begin_s = time.monotonic()
        piece += _second(done)
        done += RATE_HZ
        if await _post(client, run_id, offset, piece, seen.faults):
            offset, piece = offset + len(piece), b""
        await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - begin_s)))
    end = {"type": "end", "time_s": done / RATE_HZ, "wall_s": time.time(), "status": "finished"}
    await _post(client, run_id, offset, piece + json_frame(END, end), seen.faults)
    seen.sent[run_id] = done


async def _post(
    client: httpx.AsyncClient, run_id: str, offset: int, piece: bytes, faults: list[str]
) -> bool:
    try:
        answer = await client.post(
            f"/api/v1/ingest/{run_id}?offset={offset}",
            content=piece,
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
    except httpx.HTTPError as error:
        faults.append(f"ingest: {type(error).__name__}")
        return False
    if answer.status_code != 200:
        faults.append(f"ingest: {answer.status_code} {answer.text[:80]}")
    return answer.status_code == 200


def _second(begin: int) -> bytes:
    times_s = array("d", [n / RATE_HZ for n in range(begin, begin + RATE_HZ)])
    values = array("d", [300.0 + n % 7 for n in range(RATE_HZ * len(DOMAINS))])
    return samples_frame(0, len(DOMAINS), times_s, values)
