"""Promises of caps: set through a real control daemon before the job starts, and restored after
it.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.conftest import eventually
from tests.control.daemon.conftest import DaemonRig
from wattloop.fleet.agent.config import ControlConfig
from wattloop.fleet.agent.job_caps import JobCaps, choose_cap, daemon_setting
from wattloop.fleet.agent.job_facts import JobFacts

DEFAULT_W = 700.0


@pytest.mark.parametrize(
    ("facts", "cap"),
    [
        (None, "90%"),
        (JobFacts(), "90%"),
        (JobFacts(cap={"cap_w": 250}), 250.0),
        (JobFacts(cap={"cap_w": 250}, low_power=True), 250.0),
        (JobFacts(low_power=True), "low_power"),
        (JobFacts(cap={"cap_w": "1"}), "90%"),
        (JobFacts(cap={"cap_w": True}), "90%"),
        (JobFacts(cap={"cap_w": -3}), "90%"),
        (JobFacts(cap={"cap_w": 250}, tampered=True), "low_power"),
    ],
)
def test_the_operators_side_decides_then_the_user_then_the_default(
    facts: JobFacts | None, cap: float | str
) -> None:
    """A job whose words imitate the operator's gains nothing by it."""
    assert choose_cap(facts, "-10%")[0] == cap


def test_no_cap_without_anybody_asking() -> None:
    """A card without a request keeps its limit."""
    assert choose_cap(JobFacts(), None)[0] is None
    assert daemon_setting("- 10 %") == "90%"
    assert daemon_setting("250 W") == "250W"


@pytest.fixture
def caps(daemon: DaemonRig, tmp_path: Path) -> Iterator[JobCaps]:
    config = ControlConfig(socket=str(daemon.socket), job_gpus=str(tmp_path / "jobs.json"))
    made = JobCaps(config, tmp_path)
    made.start()
    yield made
    made.close()


def test_a_jobs_cards_are_capped_and_put_back(
    caps: JobCaps, daemon: DaemonRig, tmp_path: Path
) -> None:
    """Two jobs run at once; the end of each restores its own card. The prolog gets the answer."""
    assert (tmp_path / "caps").read_text() == f"{os.getpid()}\n"
    assert caps.begin("1", 1000, ["gpu:0"], 300.0) == {"gpu:0": 300.0}
    assert caps.begin("2", 1000, ["gpu:1"], "90%") == {"gpu:1": pytest.approx(630.0)}
    assert (tmp_path / "ready" / "1").exists()
    assert (daemon.limit_w(0), daemon.limit_w(1)) == (300.0, pytest.approx(630.0))
    caps.end("1")
    assert daemon.limit_w(0) == DEFAULT_W
    assert daemon.limit_w(1) == pytest.approx(630.0)
    assert not (tmp_path / "ready" / "1").exists()
    caps.end("2")
    assert daemon.limit_w(1) == DEFAULT_W
    assert [line["job"] for line in daemon.log("set")][-2:] == ["1", "2"]


def test_a_running_jobs_cap_can_be_changed(caps: JobCaps, daemon: DaemonRig) -> None:
    """Policies may cap running jobs again; the limit returns to its value before the first cap."""
    caps.begin("6", 1000, ["gpu:0"], 300.0)
    assert caps.begin("6", 1000, ["gpu:0"], 400.0) == {"gpu:0": 400.0}
    assert daemon.limit_w(0) == 400.0
    caps.end("6")
    assert daemon.limit_w(0) == DEFAULT_W


def test_a_cap_that_the_scheduler_took_back_is_gone_while_the_job_runs(
    caps: JobCaps, daemon: DaemonRig
) -> None:
    """Once no cap is asked for, the cards of a running job get their earlier limits."""
    caps.begin("12", 0, ["gpu:0"], 250.0)
    assert daemon.limit_w(0) == 250.0
    assert caps.begin("12", 0, ["gpu:0"], None) == {}
    assert daemon.limit_w(0) == DEFAULT_W


def test_a_cap_that_cannot_be_set_does_not_hold_up_the_job(
    caps: JobCaps,
    daemon: DaemonRig,
    tmp_path: Path,
) -> None:
    """A cap above the device's limits is reported, and the prolog continues."""
    assert caps.begin("3", 1000, ["gpu:0"], 5_000.0) == {}
    assert "job 3" in caps.fault
    assert (tmp_path / "ready" / "3").exists()
    assert daemon.limit_w(0) == DEFAULT_W
    caps.end("3")


def test_what_was_set_is_put_back_when_the_agent_goes(caps: JobCaps, daemon: DaemonRig) -> None:
    """However it goes: the lease is the connection."""
    caps.begin("4", 1000, ["gpu:0"], 300.0)
    assert daemon.limit_w(0) == 300.0
    caps.close()
    assert eventually(lambda: daemon.limit_w(0) == DEFAULT_W)


def test_a_cap_is_set_again_when_the_daemon_is_back(rig: DaemonRig, tmp_path: Path) -> None:
    """The daemon is killed during a job: the card is restored, and capped again with the next
    daemon.
    """
    rig.start()
    caps = JobCaps(ControlConfig(socket=str(rig.socket)), tmp_path)
    caps.start()
    caps.begin("5", 1000, ["gpu:0"], 300.0)
    rig.end()
    assert eventually(lambda: rig.limit_w(0) == DEFAULT_W)
    caps.set_again()
    assert caps.fault
    rig.start()
    for _ in range(50):
        caps.set_again()
        if rig.limit_w(0) == 300.0:
            break
        time.sleep(0.1)
    assert rig.limit_w(0) == 300.0
    assert not caps.fault
    caps.end("5")
    assert rig.limit_w(0) == DEFAULT_W
    caps.close()
