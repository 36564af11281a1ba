"""Time of an oracle to estimate time and power of every placement of a kind of job.

    python benchmarks/oracle_speed.py [--quick] [--json FILE]

Processor time of one core, the least of several tries.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bars import Bar, Page, arguments, publish
from wattloop.predict.forecaster import estimator_for
from wattloop.predict.prediction import Placement
from wattloop.schedule.cluster.file import load_cluster
from wattloop.schedule.estimates.analytic import AnalyticOracle, kind_workload
from wattloop.schedule.estimates.noisy import NoisyOracle
from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.estimates.spec import OracleSpec
from wattloop.schedule.jobs import JobKind

CAPS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4)
KIND = JobKind("hf:microsoft/resnet-50", "tf32", (1, 2, 4, 8), (64, 128, 256), CAPS)
TEXT = """
`options_200` is one call for a kind whose workloads are in memory: {placements} placements of
ResNet-50 (2 GPU types, 4 counts, 3 batches, {caps} power limits) predicted by `kernels` at once;
next to it the same placements asked of the same model one by one. `first` also reads shipped
workloads and constants. `start` is a new process, as a campaign starts them, that finds the
thesis's three kinds in the cache on disk: what the oracle adds, imports included, to a process that
has loaded its scenario; `process` is all of it. `noise` is what one job's estimates cost.
"""
START = """
import time
from wattloop.schedule.scenarios.file import load_scenario
scenario = load_scenario("thesis")
began = time.process_time()
for model in scenario.jobs.models:
    scenario.truth.options(model.template().kind)
print(time.process_time() - began, time.process_time())
"""


def main() -> int:
    args = arguments("how long an oracle takes to answer").parse_args()
    tries = 1 if args.quick else 7
    cluster = load_cluster("thesis")
    oracle = AnalyticOracle(cluster)
    first_s = _least(lambda: AnalyticOracle(cluster).options(KIND), tries)
    options = oracle.options(KIND)
    caps = iter(range(10_000))

    def again() -> PlacementOptions:
        """Return a kind that differs minimally, so that it is computed."""
        share = 1 - 1e-4 * (1 + next(caps))
        return oracle.options(replace(KIND, caps=(share, *CAPS[1:])))

    vectorised_s = _least(again, tries)
    one_by_one_s = _least(_one_by_one(options), min(tries, 3))
    table = OracleSpec(kind="table").truth(load_cluster("philly"))
    asked = JobKind("resnet-50", "", (1, 2, 4, 8, 16, 32), (32, 64, 128), CAPS, may_spread=True)
    looked_up = len(table.options(asked))
    table_s = _least(lambda: _fresh(table).options(asked), tries)
    starts = [_start() for _ in range(min(tries, 3))]
    start_s, process_s = (min(column) for column in zip(*starts, strict=True))
    bars = [
        Bar(
            "options_200_ms", 1e3 * vectorised_s, "ms", 50.0,
            {"one by one": 1e3 * one_by_one_s}, note=f"{len(options)} placements",
        ),
        Bar("first_ms", 1e3 * first_s, "ms", note="workloads and constants are read as well"),
        Bar("table_ms", 1e3 * table_s, "ms", note=f"{looked_up} placements of the shipped table"),
        Bar("start_ms", 1e3 * start_s, "ms", 300.0, note="three kinds from the cache on disk"),
        Bar("process_ms", 1e3 * process_s, "ms", note="imports and scenario as well"),
        Bar("noise_us_per_job", 1e6 * _noise_s(oracle, tries), "us",
            note=f"{len(options)} placements, time and power, one job at a time"),
    ]  # fmt: skip
    text = TEXT.format(placements=len(options), caps=len(CAPS))
    page = Page("oracle_speed", "How long an oracle takes", bars, text=text)
    publish(page, args)
    return 0


def _least(what: Callable[[], object], tries: int) -> float:
    found = []
    for _ in range(tries):
        began = time.process_time()
        what()
        found.append(time.process_time() - began)
    return min(found)


def _one_by_one(options: PlacementOptions) -> Callable[[], object]:
    """Predict the same placements one by one, with warm models and workloads."""
    types = load_cluster("thesis").types
    models = [estimator_for(each.gpu) for each in types]
    workloads = {batch: kind_workload(KIND, batch) for batch in KIND.batches}
    asked = [
        (models[index], workloads[batch], Placement(types[index].gpu, gpus, cap_w))
        for (index, gpus, _), batch, cap_w in zip(
            options.shapes(), options.batch.tolist(), options.cap_w.tolist(), strict=True
        )
    ]

    def predicted() -> list[object]:
        return [model.predict(workload, placement) for model, workload, placement in asked]

    predicted()
    return predicted


def _fresh(table):  # type: ignore[no-untyped-def] # a table that has not answered yet
    return type(table)(table.cluster, table.throughputs, table.curves)


def _noise_s(oracle: AnalyticOracle, tries: int) -> float:
    noisy, jobs = NoisyOracle(oracle, seed=1), range(1000)
    noisy.factors(len(jobs), KIND)
    return _least(lambda: [noisy.factors(job, KIND) for job in jobs], tries) / len(jobs)


def _start() -> tuple[float, float]:
    """Measure loading the thesis's options from disk, and the process that does it."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "XDG_CACHE_HOME": folder, "OMP_NUM_THREADS": "1"}
        env["PYTHONPATH"] = str(Path(__file__).parents[1] / "src")
        for _ in range(2):  # the first one fills the cache
            done = subprocess.run(
                [sys.executable, "-c", START], env=env, capture_output=True, text=True, check=True
            )
    found_s, process_s = map(float, done.stdout.split())
    return found_s, process_s


if __name__ == "__main__":
    raise SystemExit(main())
