"""Duration of the thesis's campaign: every policy, ten seeds, ten hours each.

    python benchmarks/campaign_speed.py [--quick] [--json FILE]

Real processes of `wattloop simulate` with a store and a cache of their own, start-up included.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from bars import Bar, Page, Table, arguments, publish
from wattloop.schedule.policies.registry import POLICIES

WORKERS = 2
TEXT = """
`wattloop simulate thesis --policies all --seeds 10` from the shell and back: {cells} simulations of
ten hours on 16 GPUs, each with about 175 jobs, a decision every second something happened, and an
oracle that is off by 10%. `campaign` has {workers} worker processes, an empty store and nothing
predicted before; `one_worker` the same in a single process; `again` the same command a second
time, when every simulation is known. Processor seconds are of all processes together: on idle
cores, half of them is what two take.
"""


class Took(NamedTuple):
    """Durations of a command."""

    wall_s: float
    cpu_s: float
    rows: list[dict[str, Any]]


def main() -> int:
    args = arguments("how long the thesis's campaign takes").parse_args()
    words = ["thesis", "--policies", "all", "--seeds", "10"]
    if args.quick:
        words = ["thesis", "--policies", "fifo,zeus", "--seeds", "1", "--horizon", "1h"]
    with tempfile.TemporaryDirectory() as folder:
        whole = _took(words, Path(folder), WORKERS)
        again = _took(words, Path(folder), WORKERS)
    with tempfile.TemporaryDirectory() as folder:
        alone = _took(words, Path(folder), 1)
    same = _hashes(whole) == _hashes(again) == _hashes(alone)
    simulating_s = sum(row["wall_s"] for row in alone.rows)
    bars = [
        Bar("campaign_s", whole.wall_s, "s", 30.0, {"one worker": alone.wall_s},
            note=f"{len(whole.rows)} simulations, {WORKERS} workers"),
        Bar("campaign_cpu_s", whole.cpu_s, "s", None, {"one worker": alone.cpu_s},
            note="of all processes"),
        Bar("again_cpu_s", again.cpu_s, "s", note="nothing to compute: start, store and table"),
        Bar("engine_share", 100 * simulating_s / alone.wall_s, "%",
            note="of one worker's time: the rest is start, predictions, metrics and the store"),
        Bar("differing_events", 0.0 if same else 1.0, "", 0.0,
            note="the hash of all events of every simulation, with one worker and with two"),
    ]  # fmt: skip
    rows = [
        [name, len(each), _mean(each, "wall_s"), _mean(each, "policy_s")]
        for name, each in _by_policy(alone.rows).items()
    ]
    header = ["policy", "simulations", "s each", "of that deciding, s"]
    tables = [Table("By policy, one worker", header, rows)]
    known = len(POLICIES)
    text = TEXT.format(cells=len(whole.rows), workers=WORKERS)
    title = f"How long the thesis's campaign takes: {known} policies, 10 seeds, 10 hours"
    page = Page("campaign_speed", title, bars, tables, text=text, packages=("wattloop", "numpy"))
    publish(page, args)
    return 0


def _took(words: list[str], folder: Path, workers: int) -> Took:
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    environment |= {"WATTLOOP_STORE": str(folder / "runs.db")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1] / "src")
    command = [sys.executable, "-m", "wattloop", "simulate", *words]
    before, began_s = _children_s(), time.perf_counter()
    ended = subprocess.run(
        [*command, "--workers", str(workers), "--json", "-"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    wall_s = time.perf_counter() - began_s
    return Took(wall_s, _children_s() - before, json.loads(ended.stdout)["results"])


def _children_s() -> float:
    """Return the processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _hashes(took: Took) -> dict[tuple[str, int], str]:
    return {(row["policy"], row["seed"]): row["event_hash"] for row in took.rows}


def _by_policy(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["policy"], []).append(row)
    return found


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


if __name__ == "__main__":
    raise SystemExit(main())
