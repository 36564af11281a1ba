"""Promises of the choice of GPUs and caps."""

import pytest

from tests.support.virtual_caps import settle
from wattloop.cap.gpus import cap_plan
from wattloop.control.registry import find_levers
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.virtual.gpu import Fault
from wattloop.virtual.node import shared_gpus


@pytest.fixture
def levers(tmp_path, monkeypatch):
    settle(monkeypatch, tmp_path)
    return find_levers(settings=Settings(virtual_gpus=2))


def test_round_caps_up_to_the_present_limit(levers):
    """Promise: a limit that a user has lowered is the reference, and is not raised."""
    plan = cap_plan(levers)
    assert plan.caps_w == tuple(float(cap) for cap in range(200, 701, 50))
    assert plan.devices == ("gpu:0", "gpu:1")
    for lever in plan.levers:
        lever.write(430.0)
    assert cap_plan(levers).caps_w[0] == 200
    assert cap_plan(levers).caps_w[-1] == 430


def test_one_gpu_and_caps_in_all_notations(levers):
    """Promise: watts, shares of the default limit, ranges and lists are accepted."""
    assert cap_plan(levers, "1", "50%,100%").caps_w == (350, 700)
    assert cap_plan(levers, "gpu:0", "300:500:100").caps_w == (300, 400, 500)
    assert len(cap_plan(levers, "0", "300,400").levers) == 1


@pytest.mark.parametrize(
    ("gpus", "caps", "message"),
    [
        ("7", None, "no gpu:7"),
        ("zero", None, "--gpus zero"),
        (None, "100,300", "outside 200 to 700"),
        (None, "300", "at least two"),
        (None, "300:100", "300:100"),
        (None, "warm,hot", "warm"),
    ],
)
def test_what_cannot_be_set_is_refused(levers, gpus, caps, message):
    """Promise: the error names a GPU or a cap that does not exist."""
    with pytest.raises(ConfigError, match=message):
        cap_plan(levers, gpus, caps)


def test_a_missing_permission_is_reported_before_the_run(levers):
    """Promise: the error names the missing permission and the GPU."""
    shared_gpus(2)[1].inject(Fault.SET_FORBIDDEN)
    with pytest.raises(ConfigError, match="gpu:1/power_limit cannot be set"):
        cap_plan(levers)
    assert cap_plan(levers, "0").devices == ("gpu:0",)
