"""Promises of `sweep`: every point runs once, in order, and it can be stopped at any moment."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wattloop.control.registry import find_levers
from wattloop.core.clock import RealClock
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings, settings_from
from wattloop.core.units import expanded
from wattloop.meters.base import Context
from wattloop.store.database import Store, open_store
from wattloop.store.experiments import begin_trial, find_experiment, read_trials
from wattloop.sweep.plan import SweepPlan, make_axis, make_plan
from wattloop.sweep.runner import Sweep, SweepProgress, open_sweep
from wattloop.sweep.spec import parse_sweep_spec
from wattloop.trials.trial import Trial, TrialOutcome
from wattloop.virtual.node import shared_machine

WORK = """
import sys
from wattloop.virtual.node import shared_machine
from wattloop.virtual.gpu import GpuWork
shared_machine(1).gpus[0].run(GpuWork(flops=989e12 * 0.3))
"""


class Heard:
    """A listener that records its messages and may stop the sweep at a given trial."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.begun: list[str] = []
        self.progress: list[SweepProgress] = []
        self.outcomes: list[TrialOutcome] = []
        self._stop_at = stop_at

    def begins(self, trial: Trial, progress: SweepProgress) -> None:
        if len(self.begun) == self._stop_at:
            raise KeyboardInterrupt
        self.begun.append(trial.key)
        self.progress.append(progress)

    def ended(self, trial: Trial, outcome: TrialOutcome) -> None:
        self.outcomes.append(outcome)

    def cooled(self, waited_s: float) -> None:
        pass


@pytest.fixture
def settings(virtual: dict[str, str]) -> Settings:
    return settings_from(virtual)


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    with open_store(settings.store_location) as store:
        yield store


def planned(
    settings: Settings, command: Any = ("true",), caps: str = "", **fields: Any
) -> SweepPlan:
    levers = find_levers(Context(settings=settings), settings)
    axes = [make_axis("gpu/power_limit", expanded(caps), levers)] if caps else []
    return make_plan(parse_sweep_spec({"command": list(command), "warmup": 0, **fields}), axes, 2)


def swept(
    plan: SweepPlan, store: Store, settings: Settings, heard: Heard | None = None, **options: Any
) -> Any:
    experiment, _ = open_sweep(store, plan, RealClock())
    sweep = Sweep(plan, experiment, store, settings, listener=heard or Heard())
    return sweep.run(**options)


def test_a_sweep_of_the_virtual_gpu_finds_that_less_power_takes_longer(
    settings: Settings, store: Store
) -> None:
    """Real processes, real levers, simulated joules; the cap is restored at the end."""
    shared_machine(2).gpus[0].set_power_cap(650.0)
    plan = planned(settings, [sys.executable, "-c", WORK], "300", repeats=2, warmup=1)
    result = swept(plan, store, settings)
    (group,) = result.groups
    low, default = group.points
    assert (low.label, default.label, default.is_default) == ("300 W", "700 W", True)
    assert result.scope == "gpu"
    assert result.provenance == "simulated"
    assert low.time_s.mean > default.time_s.mean
    assert low.average_w("gpu").mean < default.average_w("gpu").mean
    assert result.warm_ups == 1
    assert shared_machine(2).gpus[0].now().limit_w == 650.0
    stored = find_experiment(store, "last")
    assert stored.status == "finished"
    assert stored.facts["summary"]["points"][0]["time_s"]["sd"] is not None


def test_an_interrupted_sweep_continues_where_it_stopped(settings: Settings, store: Store) -> None:
    """No finished trial runs again, the levers are restored, and the order is the same."""
    plan = planned(settings, caps="300,500", repeats=1)
    first, second, whole = Heard(stop_at=1), Heard(), Heard()
    with pytest.raises(KeyboardInterrupt):
        swept(plan, store, settings, first)
    assert find_experiment(store, "last").status == "interrupted"
    assert shared_machine(2).gpus[0].now().limit_w == 700.0
    swept(plan, store, settings, second)
    assert (len(first.begun), len(second.begun)) == (1, 2)
    again, _ = open_sweep(store, plan, RealClock(), resume=False)
    Sweep(plan, again, store, settings, listener=whole).run()
    assert first.begun + second.begun == whole.begun


def test_a_finished_sweep_starts_again(settings: Settings, store: Store) -> None:
    """The same command again is a second sweep, not the earlier result."""
    plan = planned(settings, caps="300", repeats=1)
    swept(plan, store, settings)
    first = find_experiment(store, "last").experiment_id
    _, resumed = open_sweep(store, plan, RealClock())
    assert not resumed
    assert find_experiment(store, "last").experiment_id != first


def test_a_point_that_fails_is_given_up_and_the_others_go_on(
    settings: Settings, store: Store
) -> None:
    """Like JAX at the lowest clocks in the thesis: the table has the rest."""
    script = (
        "import sys; from wattloop.virtual.node import shared_machine; "
        "sys.exit(shared_machine(1).gpus[0].now().limit_w < 350)"
    )
    plan = planned(settings, [sys.executable, "-c", script], "300,500", repeats=3)
    heard = Heard()
    result = swept(plan, store, settings, heard)
    runs = {p.label: (len(p.repeated.outcomes), p.repeated.failures) for p in result.points}
    assert runs == {"300 W": (2, 2), "500 W": (3, 0), "700 W": (3, 0)}


@pytest.mark.parametrize("warmup", [0, 1])
def test_a_command_that_never_works_stops_the_sweep(
    settings: Settings, store: Store, warmup: int
) -> None:
    """If the default setting fails twice, the sweep stops and shows the program's output."""
    command = ["sh", "-c", "echo no such dataset; exit 3"]
    plan = planned(settings, command, "300", warmup=warmup, order="listed", repeats=3)
    experiment, _ = open_sweep(store, plan, RealClock())
    outputs = Path(settings.store_location).parent / "out"
    sweep = Sweep(plan, experiment, store, settings, listener=Heard(), outputs=outputs)
    with pytest.raises(ConfigError, match=r"default setting.*exit code 3; it said: no such data"):
        sweep.run()
    assert find_experiment(store, "last").status == "failed"
    keys = [t.key for t in read_trials(store, experiment.experiment_id)]
    assert sum("700 W" in key for key in keys) == 2


def test_a_command_that_fails_now_and_then_is_swept(
    settings: Settings, store: Store, tmp_path: Path
) -> None:
    """Every third run fails, also the first: the points have the successful runs."""
    count = tmp_path / "count"
    script = f"echo x >> {count}; [ $(( $(wc -l < {count}) % 3 )) -ne 1 ]"
    plan = planned(settings, ["sh", "-c", script], "300", warmup=1, order="listed", repeats=4)
    result = swept(plan, store, settings)
    assert result.experiment.status == "finished"
    for point in result.points:
        assert len(point.repeated.used) >= 2
        assert len(point.repeated.outcomes) <= 6


def test_a_finished_sweep_whose_warm_up_was_once_killed_is_finished(
    settings: Settings, store: Store
) -> None:
    """The next start has a warm-up of its own, and does not wait for the old one."""
    plan = planned(settings, caps="300", repeats=1, warmup=1)
    experiment, _ = open_sweep(store, plan, RealClock())
    left = plan.trial(plan.references[0], "warm-up 7.0")
    begin_trial(store, experiment.experiment_id, left.key, left.to_dict())
    assert swept(plan, store, settings).unfinished == 0


def test_a_hanging_command_is_ended_and_reported(settings: Settings, store: Store) -> None:
    """A timeout at the default setting also stops the sweep."""
    plan = planned(settings, ["sleep", "60"], timeout=0.2, repeats=1)
    with pytest.raises(ConfigError, match=r"timeout: did not end within 0\.2 s"):
        swept(plan, store, settings)


def test_failures_are_retried_on_request(settings: Settings, store: Store, tmp_path: Path) -> None:
    """`--retry-failed` drops the failures; successful trials stay."""
    mark = tmp_path / "works"
    script = (
        "import os, sys; from wattloop.virtual.node import shared_machine; "
        "low = shared_machine(1).gpus[0].now().limit_w < 350; "
        f"sys.exit(low and not os.path.exists({str(mark)!r}))"
    )
    plan = planned(settings, [sys.executable, "-c", script], "300", repeats=1)
    first = Heard()
    assert swept(plan, store, settings, first).points[0].repeated.failures == 2
    mark.touch()
    experiment = find_experiment(store, "last")
    again = Heard()
    sweep = Sweep(plan, experiment, store, settings, listener=again)
    assert sweep.run(retry_failed=True).points[0].repeated.failures == 0
    assert (len(first.begun), len(again.begun)) == (3, 1)


def test_a_sweep_that_stopped_at_the_default_tries_it_again(
    settings: Settings, store: Store, tmp_path: Path
) -> None:
    """Once the command works, the same call continues; a comparison needs the default."""
    mark = tmp_path / "works"
    plan = planned(settings, ["test", "-e", str(mark)], "300", repeats=1)
    with pytest.raises(ConfigError):
        swept(plan, store, settings)
    with pytest.raises(ConfigError):
        swept(plan, store, settings)
    mark.touch()
    result = swept(plan, store, settings)
    assert [p.repeated.failures for p in result.points] == [0, 0]


def test_tight_points_are_not_repeated(settings: Settings, store: Store) -> None:
    """A generous target ends every point after its least number of runs."""
    plan = planned(settings, ["sleep", "0.3"], repeats={"min": 2, "max": 6, "target": 100})
    heard = Heard()
    swept(plan, store, settings, heard)
    assert len(heard.begun) < 6
    assert heard.progress[0].time_left_s is None
    left = heard.progress[1].time_left_s
    assert left is not None
    assert left >= 0.3
