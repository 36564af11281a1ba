"""The oracle as a service: a thousand pairs in one question, over HTTP.

    python benchmarks/oracle_service.py [--json FILE] [--quick]

A server as users start it, asked by one client over a kept connection: 10 jobs (three models that
come with Wattloop, in three batches) on 100 placements (4 GPU types, 5 counts, 5 power limits).
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from bars import Bar, Page, arguments, publish

PAIRS_MS = 50.0
SETTLE_S = 15.0
"""Libraries that pages need are loaded in the background after the start."""
MODELS = (
    ("resnet-50", "tf32", None, (64, 128, 256)),
    ("vit-base-patch16-224", "tf32", None, (64, 128, 256)),
    ("albert-base-v2", "bf16", 256, (32, 64, 128)),
)
GPUS = {
    "a100-sxm-40": (400, 350, 300, 250, 200),
    "h100-sxm": (700, 600, 500, 400, 300),
    "h200": (700, 600, 500, 400, 300),
    "v100-sxm-32": (300, 250, 200, 175, 150),
}
COUNTS = (1, 2, 4, 8, 16)
TEXT = """
One question has 1,000 pairs; times are from sending it to having read the whole answer (about
370 kB of JSON with intervals), in one process that serves one client on the same machine.

`same pairs` is what a scheduler asks round after round: models and pairs are known. `new caps` has
power limits not asked for before: models are known, every pair is computed. `first` is the
first question after the start, which loads libraries, workloads that come with Wattloop and
constants. A model that is not shipped is traced once ({model}, with torch): until then its pairs
say that they come later, and the others are answered.

Processes ran with nice {nice}, next to whatever else the machine did. Where that was much it
was slower: ten runs of 2026-11-15 at loads of 4 to 23 had a p95 of the same pairs between 32 and
1,095 ms, most above 50, and one ended with a connection reset.

Before it: one `GET /api/v1/predict` for each pair, {gets} of them, times 1,000.
"""


def main() -> None:
    args = arguments(__doc__.splitlines()[0]).parse_args()
    rounds = 10 if args.quick else 100
    with (
        tempfile.TemporaryDirectory(prefix="wattloop-oracle-service-") as folder,
        serving(Path(folder)) as (base, server),
        httpx.Client(base_url=base, timeout=120) as client,
    ):
        first_ms, answer = asked_ms(client, question())
        time.sleep(1.0 if args.quick else SETTLE_S)
        began_s = processor_s(server.pid)
        same = [asked_ms(client, question())[0] for _ in range(rounds)]
        busy_ms = 1e3 * (processor_s(server.pid) - began_s) / rounds
        new = [asked_ms(client, question(0.1 * (n + 1)))[0] for n in range(rounds)]
        gets = one_by_one_ms(client, 5 if args.quick else 100)
        submits = [submitted_ms(client, n) for n in range(rounds)]
        traced = None if args.quick else traced_ms(client)
    publish(_page(first_ms, same, busy_ms, new, gets, submits, traced, answer), args)


def question(less_w: float = 0.0) -> dict[str, Any]:
    """Jobs and placements; `less_w` off every cap makes pairs that were not asked for before."""
    jobs = [
        {"model": model, "precision": precision, "seq": seq, "batch": batch, "samples": 1e6}
        for model, precision, seq, batches in MODELS
        for batch in batches
    ]
    comment = "wattloop:model=resnet-50,precision=tf32,batch=64,samples=1e6"
    places = [
        {"gpu": gpu, "gpus": gpus, "cap_w": cap_w - less_w}
        for gpu, caps in GPUS.items()
        for gpus in COUNTS
        for cap_w in caps
    ]
    return {"jobs": [*jobs, {"comment": comment}], "placements": places, "wait_s": 30}


def asked_ms(client: httpx.Client, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return the time until the answer is read, and the answer."""
    began = time.perf_counter()
    found = client.post("/api/v1/predict", json=body)
    took_ms = 1e3 * (time.perf_counter() - began)
    found.raise_for_status()
    return took_ms, found.json()


def one_by_one_ms(client: httpx.Client, count: int) -> list[float]:
    """Measure one request at a time, with a traced model."""
    asked = [
        {"model": "resnet-50", "gpu": gpu, "gpus": gpus, "cap_w": cap_w, "batch": 64}
        for gpu, caps in GPUS.items()
        for gpus in COUNTS
        if gpus <= 8  # more need a network, which that call cannot state
        for cap_w in caps
    ][:count]

    def get(query: dict[str, Any]) -> None:
        client.get("/api/v1/predict", params={**query, "precision": "tf32"}).raise_for_status()

    get(asked[0])
    return [_ms(lambda query=query: get(query)) for query in asked]


def submitted_ms(client: httpx.Client, number: int) -> float:
    """Measure one job as job_submit.lua requests it, each with other samples."""
    comment = f"wattloop:model=resnet-50,precision=tf32,batch=64,samples={1_000_000 + number}"
    body = {"gpus": 2, "comment": comment, "time_limit_s": 3600}
    return _ms(lambda: client.post("/api/v1/predict/submit", json=body).raise_for_status())


def processor_s(number: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def traced_ms(client: httpx.Client) -> float:
    """Measure the time until an untraced model has its estimate."""
    body = {"jobs": [{"model": "gpt2", "batch": 8, "samples": 1e6, "precision": "bf16"}],
            "placements": [{"gpu": "h200"}], "wait_s": 30}  # fmt: skip
    began = time.perf_counter()
    while "error" in asked_ms(client, body)[1]["results"][0]:
        time.sleep(0.05)
    return 1e3 * (time.perf_counter() - began)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a server of this checkout with a cache of its own; yield its address and process."""
    command = [sys.executable, "-m", "wattloop.cli.main", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--cluster", "thesis", "--store", str(folder / "runs.db")],
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONPATH": str(Path(__file__).parents[1] / "src"),
        },
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            found = re.search(r"http://[\d.:]+", line)
            if found:
                yield found[0], process
                return
        raise SystemExit("the server did not start")
    finally:
        process.terminate()
        process.wait(20)


def _page(
    first_ms: float,
    same: list[float],
    busy_ms: float,
    new: list[float],
    gets: list[float],
    submits: list[float],
    traced: float | None,
    answer: dict[str, Any],
) -> Page:
    rows = answer["results"]
    priced = sum("error" not in row for row in rows)
    alone = {"one GET per pair": 1e3 * statistics.median(gets)}
    alone95 = {"one GET per pair": 1e3 * _p95(gets)}
    bars = [
        Bar("same pairs, p50", statistics.median(same), "ms", PAIRS_MS, alone),
        Bar("same pairs, p95", _p95(same), "ms", PAIRS_MS, alone95,
            note=f"{len(rows):,} pairs, {priced:,} with a price, the others with a reason "
            "(memory); what reads and writes JSON is included"),
        Bar("same pairs, processor time", busy_ms, "ms",
            note="of the server, mean: what it would take on a machine with nothing else to do"),
        Bar("new caps, p50", statistics.median(new), "ms", None, alone),
        Bar("new caps, p95", _p95(new), "ms", None, alone95),
        Bar("first question", first_ms, "ms"),
        Bar("a model never traced", traced, "ms", note="GPT-2, by torch, once" if traced else
            "not in a quick run"),
        Bar("one submission, p50", statistics.median(submits), "ms",
            note="as job_submit.lua asks: fewer and more GPUs are priced as well"),
        Bar("one submission, p95", _p95(submits), "ms"),
    ]  # fmt: skip
    text = TEXT.format(model="GPT-2", gets=len(gets), nice=os.nice(0))
    return Page("oracle_service", "A thousand pairs in one question", bars, text=text)


def _ms(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return 1e3 * (time.perf_counter() - began)


def _p95(values: list[float]) -> float:
    return sorted(values)[min(int(0.95 * len(values)), len(values) - 1)]


if __name__ == "__main__":
    main()
