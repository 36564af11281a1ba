"""Promises of the energy of GPUs under a cap, with and without gaps in their readings."""

import time

import pytest

from tests.support.virtual_caps import settle
from wattloop.cap.gpus import check_metered, devices_energy, energy_provenance, job_energy_j
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.measure.session import Session
from wattloop.trials.trial import TrialOutcome, TrialStatus
from wattloop.virtual.gpu import Fault
from wattloop.virtual.node import shared_gpus

SETTINGS = Settings(virtual_gpus=2, meters=("virtual",), interval_s=0.02)


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    settle(monkeypatch, tmp_path)


def wait_until(happened):
    give_up_s = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < give_up_s, "it did not happen"
        time.sleep(0.01)


def domain(name, energy_j, covered=1.0):
    return {"name": name, "energy_j": energy_j, "uncertainty_j": 2.0, "covered": covered}


def test_a_gpu_that_is_lost_half_way_has_no_energy():
    """Promise: joules of half the time do not pass for the whole; the other GPU's are known."""
    gpus = shared_gpus(2)
    session = Session.open(SETTINGS, name="cap", keep=False)
    try:
        assert energy_provenance(session, ("gpu:0", "gpu:1")) == "simulated"
        begin_s = time.monotonic()
        for gpu in gpus:
            gpu.load(1.0, memory=0.3)
        tracks = {channel.domain.name: channel.track for channel in session.channels}
        wait_until(lambda: all(track.last_read_s > begin_s + 0.1 for track in tracks.values()))
        gpus[1].inject(Fault.LOST)
        wait_until(lambda: tracks["gpu:1"].lost is not None)
        end_s = 2 * time.monotonic() - begin_s
        wait_until(lambda: tracks["gpu:0"].last_read_s > end_s)
        assert devices_energy(session, ("gpu:0", "gpu:1"), begin_s, end_s) is None
        assert devices_energy(session, ("gpu:0",), begin_s, end_s)[0] > 0
        gpus[1].inject(Fault.NONE)
    finally:
        session.close()


def test_the_outcome_of_a_trial_counts_only_when_it_is_whole():
    """Promise: sums fill short gaps, and a missing part is named."""
    whole = TrialOutcome(
        status=TrialStatus.OK, domains=(domain("gpu:0", 96.0, 0.96), domain("gpu:1", 50.0))
    )
    energy_j, noise = job_energy_j(whole, ("gpu:0", "gpu:1"))
    assert energy_j == pytest.approx(150)
    assert noise == pytest.approx(8**0.5 / 150 / 2)
    half = TrialOutcome(status=TrialStatus.OK, domains=(domain("gpu:0", 50.0, 0.5),))
    with pytest.raises(ConfigError, match="gpu:0 was not read for the whole run"):
        job_energy_j(half, ("gpu:0",))
    with pytest.raises(ConfigError, match="gpu:1 was not read"):
        job_energy_j(half, ("gpu:1",))
    none = TrialOutcome(status=TrialStatus.OK, domains=(domain("gpu:0", 0.0),))
    with pytest.raises(ConfigError, match="no energy at all"):
        job_energy_j(none, ("gpu:0",))


def test_unreadable_devices_are_reported_before_the_run():
    """Promise: devices without a meter, or that were not chosen, are named."""
    check_metered(SETTINGS, ("gpu:0", "gpu:1"))
    with pytest.raises(ConfigError, match="energy of gpu:2"):
        check_metered(SETTINGS, ("gpu:0", "gpu:2"))
    with pytest.raises(ConfigError, match="energy of gpu:0"):
        check_metered(SETTINGS._replace(devices=("cpu",)), ("gpu:0",))
