"""Promises of the benchmark of policies: its bounds are bounds, and its bars are judged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.schedule.policies.two_types import MALLEABLE, WrongOracle, two_types
from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster

from wattloop.schedule.engine import Simulation
from wattloop.schedule.jobs import JobKind
from wattloop.schedule.policies.helios import Helios

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_of_three_jobs_that_need_one_gpu_at_once_any_schedule_keeps_two_at_most() -> None:
    """100 s of work each, due after 110, 210 and 215 s: no time is left for the third."""
    from policies_bound import most_kept

    cluster = small_cluster(gpus_per_node=1)
    jobs = jobs_of([(0, 100)] * 3, deadlines_s=[110, 210, 215])
    assert most_kept(jobs, cluster, PlainOracle(cluster), 1000) == (3, 2)


def test_a_bound_counts_what_fits_side_by_side() -> None:
    """Two GPUs keep two of the same deadlines, and all four with twice the time."""
    from policies_bound import most_kept

    cluster = small_cluster(gpus_per_node=2)
    oracle, kind = PlainOracle(cluster), JobKind("toy")
    for due_s, kept in ((110, 2), (220, 4)):
        jobs = jobs_of([(0, 100)] * 4, kind=kind, deadlines_s=[due_s] * 4)
        assert most_kept(jobs, cluster, oracle, 1000) == (4, kept)


def test_no_simulation_needs_less_energy_than_the_least() -> None:
    """This also holds where time is worth nothing, and on an empty cluster."""
    from policies_energy_bound import least_kwh

    cluster, oracle = two_types(), WrongOracle()
    jobs = jobs_of([(0, 2000), (5000, 2000)], kind=MALLEABLE)
    done = Simulation(cluster, jobs, Helios(time_value=0), truth=oracle).run()
    assert np.all(done.is_done)
    least = least_kwh(jobs, 1.0, cluster, oracle, done.end_s)
    assert least <= done.total_j / 3.6e6 * (1 + 1e-9)
    assert least >= 0.9 * done.total_j / 3.6e6


def test_quick_judges_every_bar_and_writes_no_page(tmp_path: Path) -> None:
    """Bars for Helios, AuraChronos and both budgets; only the unreachable one is missed."""
    env = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parent / "src")}
    command = [sys.executable, str(BENCHMARKS / "policies.py"), "--quick", "--json", "-"]
    done = subprocess.run(
        [*command, "--docs", str(tmp_path)], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    bars = {bar["name"]: bar for bar in json.loads(done.stdout)["bars"]}
    assert bars["helios_saving"]["value"] < bars["helios_saving"]["baselines"]["least possible"]
    for name in ("charon_over_budget_0.005", "helios_over_budget_0.005"):
        assert bars[name]["value"] == 0
    assert not list(tmp_path.iterdir())


def test_a_long_run_continues_where_the_last_call_ended(tmp_path: Path) -> None:
    """Several calls give the same as one, and no simulation runs twice."""
    from policies_runs import Case, Pieces, run_all

    case = Case("fifo", "thesis", changes=(("engine.horizon", "1 h"),))
    kept, seeds = Pieces(tmp_path / "found", limit_s=0.0), {case: range(7)}
    with pytest.raises(SystemExit, match="call again"):
        run_all([case], seeds, workers=1, kept=kept)
    first = (tmp_path / "found").stat().st_size
    found = run_all([case], seeds, workers=1, kept=kept._replace(limit_s=np.inf))
    plain = run_all([case], seeds, workers=1)
    assert [each.event_hash for each in found[case]] == [each.event_hash for each in plain[case]]
    assert 0 < first < (tmp_path / "found").stat().st_size
    size = (tmp_path / "found").stat().st_size
    assert run_all([case], seeds, workers=1, kept=kept) == found
    assert (tmp_path / "found").stat().st_size == size


def test_a_trace_gets_the_nodes_that_it_keeps_busy() -> None:
    """A load of 18% on all nodes is one of 60% on 30% of them."""
    from policies_traces import of_nodes, share_for

    assert share_for(0.6, lambda share: min(0.18 / share, 1.0)) == pytest.approx(0.3, rel=0.1)
    cluster = small_cluster(nodes=10)
    assert of_nodes(cluster, 0.3).gpus == 0.3 * cluster.gpus
    assert of_nodes(cluster, 0.01).gpus == 0.1 * cluster.gpus
