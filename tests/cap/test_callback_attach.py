"""Promises of attaching to a training's meter."""

import pytest

from tests.support.virtual_caps import settle
from wattloop.cap.callback import follow
from wattloop.integrations.training_meter import TrainingMeter


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    settle(monkeypatch, tmp_path)


def test_every_step_and_interruption_is_passed_on():
    """Promise: steps and interruptions arrive in the meter's order, and the end before the
    meter's own.
    """
    told = []
    meter = TrainingMeter(meters=("virtual",), virtual_gpus=1)
    names = ("begin", "step", "interrupt", "end")
    follow(meter, **{name: lambda name=name: told.append((name, meter.run)) for name in names})
    with meter:
        meter.step_end(loss=1.0)
        meter.step_done()
        meter.interrupt()
        with meter.paused():
            pass
        meter.step_end()
    steps = ["begin", "step", "step", "interrupt", "interrupt", "step", "end"]
    assert [name for name, _ in told] == steps
    assert told[-1] == ("end", None)
    assert meter.run is not None
