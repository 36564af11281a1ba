"""Promises of a session while the wall clock is set: durations and energy do not change."""

import time
from pathlib import Path

import pytest

from wattloop.core.clock import RealClock
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.measure.session import Session
from wattloop.meters.base import Context
from wattloop.store.database import open_store
from wattloop.store.journal_import import import_orphaned
from wattloop.store.runs import find_run

from .conftest import Machine


class SetClock(RealClock):
    """The real clock, until an administrator sets the wall clock."""

    step_s = 0.0

    def wall_s(self) -> float:
        return time.time() + self.step_s


@pytest.mark.parametrize("step_s", [-86_400.0, 86_400.0])
def test_clock_that_is_set_does_not_change_the_run(machine: Machine, step_s: float) -> None:
    """A day back or ahead in mid-run: same energy, positive duration, an end after the start."""
    clock = SetClock()
    settings = Settings(meters=("rapl",), store=str(machine.store), interval_s=0.02)
    session = Session.open(
        context=Context(Host(sysfs=machine.root / "sys"), settings, clock), name="set"
    )
    with session.begin("inside") as window:
        time.sleep(0.3)
        clock.step_s = step_s
        time.sleep(0.3)
    run = session.close()
    assert 0.6 <= run.result.duration_s < 30
    assert run.result.energy_j == machine.about_j(run.result.duration_s)
    assert window.energy_j == machine.about_j(window.duration_s)
    with open_store(Path(machine.store)) as store:
        import_orphaned(store, finalize_orphaned_run)
        kept = find_run(store, run.run_id)
    assert kept.ended_wall_s is not None
    assert kept.ended_wall_s - kept.started_wall_s == pytest.approx(run.result.duration_s)
