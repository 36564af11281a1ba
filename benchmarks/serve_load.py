"""The dashboard over 10,000 runs and 50 million samples: every page, a day's curve, many readers.

    python benchmarks/serve_load.py [--store FILE] [--seconds 60] [--json FILE] [--quick]

The store is made once (some minutes, about 330 MB) and used again. Fifty readers open a page every
five seconds while twenty machines send ten samples a second each; in the end every sample that was
sent must be in the store.
"""

import argparse
import asyncio
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from bars import Bar, Page, Table, arguments, publish
from serve_load_store import DAY_RUN, DOMAINS, filled, header, search_of
from wattloop.store.chunks import read_samples
from wattloop.store.database import open_store
from wattloop.store.frames import END, json_frame, samples_frame
from wattloop.store.runs import delete_run, find_run
from wattloop.store.series import find_series

TOKEN = "benchmark"
SETTLE_S = 15.0
"""Libraries are loaded in the background after the start; users come later."""
RUNS, SAMPLES = 10_000, 50_000_000
READERS, EVERY_S, MACHINES, RATE_HZ = 50, 5.0, 20, 10
PAGE_MS, CURVE_MS, BUSY_MS = 500.0, 1_000.0, 1_000.0


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    default = Path(tempfile.gettempdir()) / "wattloop-serve-load" / "runs.db"
    parser.add_argument("--store", type=Path, default=default, help="made when it is not there")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long readers read")
    args = parser.parse_args()
    if args.quick:
        args.store, args.seconds = args.store.with_name("quick.db"), min(args.seconds, 10.0)
    args.store.parent.mkdir(parents=True, exist_ok=True)
    filled(args.store, *((300, 5_000_000) if args.quick else (RUNS, SAMPLES)))
    with serving(args.store) as base:
        singles = one_reader(base, pages(args.store), 10 if args.quick else 20)
        curve_ms = fetched_ms(base, f"/api/v1/runs/{DAY_RUN}/curves")
        drawn_ms = drawn_in_browser_ms(base, f"/runs/{DAY_RUN}")
        busy_ms, faults, sent = asyncio.run(together(base, pages(args.store), args.seconds))
    lost = taken_back(args.store, sent)
    publish(_page(args, singles, (curve_ms, drawn_ms), busy_ms, faults, sent, lost), args)


def pages(store: Path) -> dict[str, list[str]]:
    """Name -> addresses that are asked in turn."""
    search = search_of(store)
    return {
        "Jobs": ["/", "/?page=7", "/?sort=energy", "/?project=project-03", "/?text=train-001"],
        "Run": [f"/runs/20260101-{n:06}-{n:06x}" for n in range(50, 55)],
        "Run of a day": [f"/runs/{DAY_RUN}"],
        "Compare": ["/compare?run=20260101-000051-000033&run=20260101-000052-000034"],
        "Sweeps": ["/sweeps"],
        "Searches": ["/searches"],
        "A search": [f"/searches/{search}"],
        "Clusters": [f"/searches/{search}/clusters"],
        "Predict": ["/predict"],
        "Simulate": ["/simulate"],
        "Study": ["/study"],
        "API: jobs": ["/api/v1/jobs", "/api/v1/jobs/slopes"],
        "Prometheus": ["/metrics"],
    }


@contextmanager
def serving(store: Path) -> Iterator[str]:
    """A server as users start it."""
    command = [sys.executable, "-m", "wattloop.cli.main", "serve", "--port", "0", "--token", TOKEN]
    process = subprocess.Popen(
        [*command, "--store", str(store)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            found = re.search(r"http://[\d.:]+", line)
            if found:
                time.sleep(SETTLE_S)
                yield found[0]
                return
        raise SystemExit("the server did not start")
    finally:
        process.terminate()
        process.wait(20)


def fetched_ms(base: str, path: str) -> float:
    """One answer."""
    begin_s = time.perf_counter()
    answer = httpx.get(base + path, timeout=120)
    answer.raise_for_status()
    return 1_000 * (time.perf_counter() - begin_s)


def one_reader(base: str, wanted: dict[str, list[str]], times: int) -> dict[str, list[float]]:
    """Milliseconds of each page, the first time included and first."""
    return {
        name: [fetched_ms(base, paths[n % len(paths)]) for n in range(times)]
        for name, paths in wanted.items()
    }


def drawn_in_browser_ms(base: str, path: str) -> float | None:
    """From opening a run's page until its curve is there; None without a browser."""
    import shutil

    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if browser_path is None:
        return None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page()
        took_ms = []
        for _ in range(4):
            begin_s = time.perf_counter()
            page.goto(base + path)
            page.wait_for_selector("[data-curves] svg.marks")
            took_ms.append(1_000 * (time.perf_counter() - begin_s))
        browser.close()
    return statistics.median(took_ms[1:])  # the first one loads the scripts


async def together(
    base: str, wanted: dict[str, list[str]], seconds: float
) -> tuple[list[float], list[str], dict[str, int]]:
    """Milliseconds of readers, what went wrong, and samples that each machine sent."""
    took_ms: list[float] = []
    faults: list[str] = []
    sent: dict[str, int] = {}
    paths = [path for own in wanted.values() for path in own]
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=base, timeout=60, limits=limits) as client:
        end_s = time.monotonic() + seconds

        async def reader(number: int) -> None:
            draw = random.Random(number)
            await asyncio.sleep(draw.uniform(0, EVERY_S))
            while time.monotonic() < end_s:
                begin_s = time.perf_counter()
                path = draw.choice(paths)
                try:
                    answer = await client.get(path)
                    if answer.status_code not in (200, 202):
                        faults.append(f"{path}: {answer.status_code}")
                except httpx.HTTPError as error:
                    faults.append(f"{path}: {type(error).__name__}")
                spent_s = time.perf_counter() - begin_s
                took_ms.append(1_000 * spent_s)
                await asyncio.sleep(max(0.0, EVERY_S - spent_s))

        async def machine(number: int) -> None:
            run_id = f"20261231-{int(time.time()) % 1_000_000:06}-m{number:05}"
            piece = header(run_id, f"far{number:02}", time.time(), {"cluster": "far"})
            offset, done = 0, 0
            while time.monotonic() < end_s:
                begin_s = time.monotonic()
                piece += _second(done)
                done += RATE_HZ
                answer = await _post(client, run_id, offset, piece, faults)
                if answer:
                    offset, piece = offset + len(piece), b""
                await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - begin_s)))
            end = {"type": "end", "time_s": done / RATE_HZ, "wall_s": time.time()}
            await _post(
                client,
                run_id,
                offset,
                piece + json_frame(END, {**end, "status": "finished"}),
                faults,
            )
            sent[run_id] = done

        await asyncio.gather(*map(reader, range(READERS)), *map(machine, range(MACHINES)))
    return took_ms, faults, sent


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


def taken_back(path: Path, sent: dict[str, int]) -> int:
    """Samples that were sent and are not in the store; the runs are removed again."""
    lost = 0
    with open_store(path) as store:
        for run_id, count in sent.items():
            record = find_run(store, run_id)
            for domain in DOMAINS:
                times_s, _ = read_samples(store, run_id, find_series(record.feeds, domain))
                lost += count - len(times_s)
            delete_run(store, run_id)
    return lost


def _p95(values: list[float]) -> float:
    return sorted(values)[max(0, -(-95 * len(values) // 100) - 1)]


def _page(
    args: argparse.Namespace,
    singles: dict[str, list[float]],
    curve: tuple[float, float | None],
    busy_ms: list[float],
    faults: list[str],
    sent: dict[str, int],
    lost: int,
) -> Page:
    for fault in faults[:10]:
        print(fault, file=sys.stderr)
    drawn_note = "data fetched, chart in Chromium" if curve[1] is not None else "no Chromium here"
    bars = [
        Bar("page p95, slowest page", max(map(_p95, singles.values())), "ms", PAGE_MS),
        Bar("24 h at 10 Hz, four domains: data", curve[0], "ms", CURVE_MS),
        Bar("24 h at 10 Hz: page drawn", curve[1], "ms", CURVE_MS, note=drawn_note),
        Bar("50 readers and 20 machines: p95", _p95(busy_ms), "ms", BUSY_MS),
        Bar("errors meanwhile", len(faults), "", 0),
        Bar("samples lost", lost, "", 0),
        Bar("samples sent", sum(sent.values()) * len(DOMAINS), ""),
        Bar("pages read meanwhile", len(busy_ms), ""),
    ]
    rows = [(name, ms[0], statistics.median(ms), _p95(ms), max(ms)) for name, ms in singles.items()]
    table = Table("Every page", ("page", "first (ms)", "median", "p95", "slowest"), rows)
    text = (
        "A store with 10,000 runs, 50 million samples (one run of a day at 10 Hz) and a search of "
        "2,000 trials; one process serves. Pages of a search are made once for every state that it "
        "is in, in the background: until then the page says that it comes."
    )
    text += (
        "\n\nTimes of `A search` and `Clusters` include such placeholder pages (202), which "
        "readers and this table count as answers; asked back to back they may be mostly those. "
        "Requests begin 15 s after the start of the server."
    )
    return Page("serve_load", "The dashboard under load", bars, [table], text)


if __name__ == "__main__":
    main()
