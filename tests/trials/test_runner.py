"""Promises of `runner`: each trial runs once, is measured, and is written down in any case."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.powercap_driver import Driver
from tests.support.synthetic_energy import about_j
from tests.trials.test_runner_process import gone
from wattloop.control.lever import Lever, LeverState, Setting
from wattloop.core.errors import DeviceBusy, LeverError
from wattloop.core.settings import Settings
from wattloop.store.database import Store, open_store
from wattloop.store.experiments import read_trials
from wattloop.store.runs import find_run, list_runs
from wattloop.trials.runner import TrialRunner
from wattloop.trials.trial import Trial, TrialOutcome, TrialStatus
from wattloop.virtual.cards import CARDS
from wattloop.virtual.gpu import VirtualGpu


def test_a_trial_is_a_measured_run(store: Store, settings: Settings, driver: Driver) -> None:
    """Time, energy by scope with provenance and peak; the run is stored under its tags."""
    with TrialRunner(store, "e", settings) as runner:
        outcome = runner.run(Trial(key="k", command=["sleep", "0.5"], name="short"))
    assert outcome.ok
    assert outcome.time_s is not None
    assert outcome.time_s >= 0.5
    cpu = outcome.scopes["cpu"]
    assert cpu.energy_j == about_j(50.0, outcome.time_s, driver)
    assert cpu.average_w == pytest.approx(cpu.energy_j / outcome.time_s)
    assert cpu.peak_w is not None and cpu.peak_w > 0.7 * 50.0
    assert cpu.provenance == "measured"
    assert "gpu" not in outcome.scopes
    run = find_run(store, outcome.run_id or "")
    assert (run.name, run.tags) == ("short", {"experiment": "e", "trial": "k"})
    assert TrialOutcome.from_dict(outcome.to_dict()) == outcome


def test_failing_hanging_and_killed_programs_are_results(
    store: Store, settings: Settings, tmp_path: Path
) -> None:
    """Each has its status and its known figures, and the runner continues."""
    with TrialRunner(store, "e", settings, outputs=tmp_path / "out") as runner:
        failed = runner.run(Trial(key="1", command=["sh", "-c", "echo no memory; exit 3"]))
        hung = runner.run(Trial(key="2", command=["sleep", "60"], timeout_s=0.2))
        killed = runner.run(Trial(key="3", command=["sh", "-c", "kill -SEGV $$"]))
        absent = runner.run(Trial(key="4", command=["no-such-program"]))
    assert (failed.status, failed.exit_code) == (TrialStatus.FAILED, 3)
    assert failed.message == "exit code 3; it said: no memory"
    assert (hung.status, hung.message) == (TrialStatus.TIMEOUT, "did not end within 0.2 s")
    assert (killed.status, killed.signal) == (TrialStatus.KILLED, signal.SIGSEGV)
    assert (absent.status, absent.exit_code) == (TrialStatus.NOT_STARTED, 127)
    assert [t.status for t in read_trials(store, "e")] == [
        "failed",
        "timeout",
        "killed",
        "not_started",
    ]
    assert len(list_runs(store)) == 4


def test_a_trial_never_runs_twice(store: Store, settings: Settings, tmp_path: Path) -> None:
    """Repeated in the same process or the next, it returns the stored result."""
    trial = Trial(key="k", command=["sh", "-c", f"echo x >> {tmp_path}/paid"])
    with TrialRunner(store, "e", settings) as runner:
        first = runner.run(trial)
        assert runner.run(trial) == first
    with TrialRunner(store, "e", settings) as runner:
        assert runner.ended("k") == first
        assert runner.run(trial) == first
    assert (tmp_path / "paid").read_text() == "x\n"


def test_a_function_is_a_trial_too(store: Store, settings: Settings) -> None:
    """Its numbers are stored; one that raises or takes too long is a result, too."""
    with TrialRunner(store, "e", settings) as runner:
        fine = runner.call(Trial(key="1"), lambda: {"gflops": 2.5})
        broken = runner.call(Trial(key="2"), lambda: {"x": 1 / 0})
        slow = runner.call(Trial(key="3", timeout_s=0.1), lambda: time.sleep(30))
    assert (fine.status, fine.metrics) == (TrialStatus.OK, {"gflops": 2.5})
    assert (broken.status, broken.message) == (
        TrialStatus.FAILED,
        "ZeroDivisionError: division by zero",
    )
    assert slow.status is TrialStatus.TIMEOUT


def test_the_program_gets_its_environment(store: Store, settings: Settings, tmp_path: Path) -> None:
    """It has the process's variables, the trial's own, and the run that counts it."""
    command = ["sh", "-c", 'test -n "$PATH" -a "$N" = 4 -a -n "$WATTLOOP_RUN"']
    with TrialRunner(store, "e", settings) as runner:
        assert runner.run(Trial(key="k", command=command, environment={"N": "4"})).ok


INTERRUPTED = """
import sys
from wattloop.core.settings import Settings
from wattloop.store.database import open_store
from wattloop.trials.runner import TrialRunner
from wattloop.trials.trial import Trial
from wattloop.virtual.gpu import VirtualGpu
with open_store(sys.argv[1]) as store:
    with TrialRunner(store, "e", Settings(store=sys.argv[1], meters=("rapl",))) as runner:
        runner.run(Trial(key="quick", command=["true"]))
        runner.run(Trial(key="long", command=["sh", "-c", "echo $$ > %s; sleep 60"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_after_any_kill_only_the_rest_runs(
    store: Store, settings: Settings, tmp_path: Path, number: int
) -> None:
    """Finished trials are known, unfinished ones are not: the next runner does only those."""
    noted = tmp_path / "pid"
    ours = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED % noted, settings.store_location],
        stderr=subprocess.DEVNULL,
    )
    while not (noted.exists() and noted.read_text().strip()):
        time.sleep(0.02)
    ours.send_signal(number)
    assert ours.wait(120) != 0
    with open_store(settings.store_location) as again:
        assert [(t.key, t.status) for t in read_trials(again, "e")] == [
            ("quick", "ok"),
            ("long", "running"),
        ]
        with TrialRunner(again, "e", settings) as runner:
            assert runner.ended("quick") is not None
            assert runner.run(Trial(key="long", command=["true"])).ok
    assert gone(int(noted.read_text()))


STOPPED_IN_THE_STORE = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as if the tests were not run under nohup
from sqlalchemy import Engine, event
from wattloop.core.settings import Settings
from wattloop.store.database import open_store
from wattloop.trials.runner import TrialRunner
from wattloop.trials.trial import Trial
with open_store(sys.argv[1]) as store:
    with TrialRunner(store, "e", Settings(store=sys.argv[1], meters=("rapl",))) as runner:
        stops = [signal.%s]
        def stop_us(*_):
            if stops:
                os.kill(os.getpid(), stops.pop())
        event.listen(Engine, "reset", stop_us)
        runner.run(Trial(key="under way", command=["true"]))
        runner.run(Trial(key="next", command=["true"]))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_stop_while_the_store_works_waits_until_it_is_done(
    store: Store, settings: Settings, name: str
) -> None:
    """It stops at the next safe moment, without a traceback of the database."""
    program = STOPPED_IN_THE_STORE % name
    ours = subprocess.run(
        [sys.executable, "-c", program, settings.store_location],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ours.returncode == 128 + signal.Signals[name]
    assert ours.stderr == ""
    assert [t.key for t in read_trials(store, "e")] == ["under way"]


def test_stop_after_a_program_ended_does_not_lose_what_it_gave(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished trial is written down before the stop takes effect."""
    from wattloop.trials import runner as module

    def stopped(*arguments: object) -> tuple[TrialStatus, dict[str, object]]:
        os.kill(os.getpid(), signal.SIGTERM)
        return TrialStatus.OK, {}

    monkeypatch.setattr(module, "trial_status", stopped)
    with pytest.raises(SystemExit), TrialRunner(store, "e", settings) as runner:
        runner.run(Trial(key="k", command=["true"]))
    assert [t.status for t in read_trials(store, "e")] == ["ok"]


def test_two_processes_do_not_run_one_experiment(store: Store, settings: Settings) -> None:
    """The second process is told the owner."""
    with TrialRunner(store, "e", settings), pytest.raises(DeviceBusy, match=str(os.getpid())):
        TrialRunner(store, "e", settings).__enter__()


def test_levers_are_set_per_trial_and_restored_at_the_end(
    store: Store, settings: Settings, tmp_path: Path
) -> None:
    """Levers stay set over all trials; a refusal is a result, and the next trial is tried."""
    gpu = VirtualGpu(0, CARDS["h200"])
    lever = PowerCap(gpu)
    seen: list[float] = []
    with TrialRunner(
        store, "e", settings, levers=[lever], state_directory=tmp_path / "state"
    ) as runner:
        for cap_w in (300.0, 400.0):
            trial = Trial(key=str(cap_w), settings={lever.name: cap_w}, command=["true"])
            assert runner.run(trial).ok
            seen.append(gpu.now().limit_w)
        lever.refuses = True
        refused = runner.run(Trial(key="r", settings={lever.name: 500.0}, command=["true"]))
        lever.refuses = False
        assert runner.run(Trial(key="z", settings={lever.name: 600.0}, command=["true"])).ok
    assert seen == [300.0, 400.0]
    assert (refused.status, refused.message) == (TrialStatus.NOT_SET, "the driver says no")
    assert refused.run_id is None
    assert gpu.now().limit_w == 700.0


class PowerCap(Lever):
    """The cap of a virtual GPU of this process."""

    name = "gpu:0/power_limit"
    device = "test:0"
    refuses = False

    def __init__(self, gpu: VirtualGpu) -> None:
        self._gpu = gpu

    def state(self) -> LeverState:
        return LeverState(name=self.name, available=True, value=self._gpu.now().limit_w, unit="W")

    def read(self) -> Setting:
        return self._gpu.now().limit_w

    def accepted(self, value: Setting) -> Setting:
        return value

    def write(self, value: Setting) -> None:
        if self.refuses:
            raise LeverError("the driver says no")
        assert isinstance(value, float)
        self._gpu.set_power_cap(value)

    def write_text(self, value: Setting) -> str:
        return f"{self.name} = {value}"
