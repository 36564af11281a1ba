"""The dashboard over 10,000 runs and 50 million samples: every page, a day's curve, many readers.

    python benchmarks/serve_load.py [--store FILE] [--seconds 60] [--json FILE] [--quick]

The store is made once (some minutes, about 330 MB) and used again. Fifty readers open a page every
five seconds while twenty machines send ten samples a second each; at the end every sent sample must
be in the store.
"""

import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from bars import Bar, Page, Table, arguments, publish
from serve_load_store import DAY_RUN, DOMAINS, filled, search_of
from serve_load_traffic import TOKEN, Traffic, real_page_ms, together
from wattloop.store.database import open_store
from wattloop.store.runs import delete_run, find_run
from wattloop.store.sample_queries import read_samples
from wattloop.store.samples import find_series

SETTLE_S = 15.0
"""Libraries are loaded in the background after the start; users come later."""
RUNS, SAMPLES = 10_000, 50_000_000
PAGE_MS, CURVE_MS, BUSY_MS, SEARCH_MS = 500.0, 1_000.0, 1_000.0, 2_000.0


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
    with tempfile.TemporaryDirectory(prefix="wattloop-serve-load-") as cache:
        with serving(args.store, cache) as base:
            singles = one_reader(base, pages(args.store), 10 if args.quick else 20)
            curve_ms = fetched_ms(base, f"/api/v1/runs/{DAY_RUN}/curves")
            drawn_ms = drawn_in_browser_ms(base, f"/runs/{DAY_RUN}")
            paths = [path for own in pages(args.store).values() for path in own]
            traffic = asyncio.run(together(base, paths, args.seconds))
        with serving(args.store, cache) as base, httpx.Client(base_url=base, timeout=120) as client:
            again_ms, _ = real_page_ms(client, f"/searches/{search_of(args.store)}")
    lost = taken_back(args.store, traffic.sent)
    publish(_page(singles, (curve_ms, drawn_ms), again_ms, traffic, lost), args)


@dataclass(frozen=True)
class Single:
    """One page that one reader opens repeatedly.

    Attributes:
        real_ms: until the page itself is there, the first time first.
        placeholders: answers before, that said that it comes.
    """

    real_ms: list[float]
    placeholders: int


def pages(store: Path) -> dict[str, list[str]]:
    """Return name -> addresses that are opened in turn."""
    search = search_of(store)
    return {
        "Overview": ["/", "/?by=user", "/?cost=last+week"],
        "Runs": [
            *("/jobs", "/jobs?page=7", "/jobs?sort=cost", "/jobs?project=project-03"),
            "/jobs?text=train-001",
        ],
        "Run": [f"/runs/20260101-{n:06}-{n:06x}" for n in range(50, 55)],
        "Run of a day": [f"/runs/{DAY_RUN}"],
        "Compare": ["/compare?run=20260101-000051-000033&run=20260101-000052-000034"],
        "Sweeps": ["/sweeps"],
        "Searches": ["/searches"],
        "A search": [f"/searches/{search}"],
        "Clusters": [f"/searches/{search}/clusters"],
        "Compare, one chosen": ["/compare?run=20260101-000051-000033"],
        "Predict": ["/predict", "/predict?run=20260101-000051-000033&gpu=h100-sxm"],
        "Nodes": ["/nodes"],
        "Simulate": ["/simulate"],
        "Study": ["/study"],
        "API: jobs": ["/api/v1/jobs", "/api/v1/jobs/slopes"],
        "Prometheus": ["/metrics"],
    }


@contextmanager
def serving(store: Path, cache: str) -> Iterator[str]:
    """Start a server as users do, with its files in `cache`."""
    command = [sys.executable, "-m", "wattloop.cli.main", "serve", "--port", "0", "--token", TOKEN]
    process = subprocess.Popen(
        [*command, "--store", str(store)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "XDG_CACHE_HOME": cache},
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
    """Return the time of one answer."""
    begin_s = time.perf_counter()
    answer = httpx.get(base + path, timeout=120)
    answer.raise_for_status()
    return 1_000 * (time.perf_counter() - begin_s)


def one_reader(base: str, wanted: dict[str, list[str]], times: int) -> dict[str, Single]:
    """Open every page, one after the other."""
    found = {}
    with httpx.Client(base_url=base, timeout=120) as client:
        for name, paths in wanted.items():
            asked = [real_page_ms(client, paths[n % len(paths)]) for n in range(times)]
            found[name] = Single([ms for ms, _ in asked], sum(n for _, n in asked))
    return found


def drawn_in_browser_ms(base: str, path: str) -> float | None:
    """Return the time from opening a run's page until its curve is drawn; None without a
    browser.
    """
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


def taken_back(path: Path, sent: dict[str, int]) -> int:
    """Return the sent samples that the store lacks, and remove their runs."""
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
    singles: dict[str, Single],
    curve: tuple[float, float | None],
    again_ms: float,
    traffic: Traffic,
    lost: int,
) -> Page:
    for fault in traffic.faults[:10]:
        print(fault, file=sys.stderr)
    drawn_note = "data fetched, chart in Chromium" if curve[1] is not None else "no Chromium here"
    slowest = max(_p95(single.real_ms) for single in singles.values())
    search = singles["A search"].real_ms
    bars = [
        Bar("page p95, slowest page", slowest, "ms", PAGE_MS),
        Bar("search of 2,000 trials: first time", search[0], "ms", SEARCH_MS),
        Bar("search of 2,000 trials: after a restart", again_ms, "ms", PAGE_MS),
        Bar("search of 2,000 trials: then", statistics.median(search), "ms", PAGE_MS),
        Bar("24 h at 10 Hz, four domains: data", curve[0], "ms", CURVE_MS),
        Bar("24 h at 10 Hz: page drawn", curve[1], "ms", CURVE_MS, note=drawn_note),
        Bar("50 readers and 20 machines: p95", _p95(traffic.real_ms), "ms", BUSY_MS),
        Bar("errors meanwhile", len(traffic.faults), "", 0),
        Bar("samples lost", lost, "", 0),
        Bar("samples sent", sum(traffic.sent.values()) * len(DOMAINS), ""),
        Bar("pages read meanwhile", len(traffic.real_ms), ""),
        Bar("placeholders meanwhile", len(traffic.placeholder_ms), ""),
    ]
    rows = [
        (
            *(name, single.placeholders, single.real_ms[0]),
            *(statistics.median(single.real_ms), _p95(single.real_ms), max(single.real_ms)),
        )
        for name, single in singles.items()
    ]
    header = ("page", "placeholders", "first (ms)", "median", "p95", "slowest")
    text = (
        "A store with 10,000 runs, 50 million samples (one run of a day at 10 Hz) and a search of "
        "2,000 trials; one process serves. Pages of a search are made once for every state that it "
        "is in, in the background: until then a placeholder (202) says that the page comes. A time "
        "here is until the page itself is there, asked for again every 50 ms; placeholders are "
        "counted apart. Requests begin 15 s after the start of the server, with an empty cache on "
        "disk; `after a restart` is a second server over the same cache. With another program "
        "on the same two cores the day took 1.05 s to draw."
    )
    return Page(
        "serve_load", "The dashboard under load", bars, [Table("Every page", header, rows)], text
    )


if __name__ == "__main__":
    main()
