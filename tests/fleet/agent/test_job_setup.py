"""Promises of the desk: caps follow what Slurm says, and hold while Slurm says nothing."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.conftest import eventually
from tests.control.daemon.conftest import DaemonRig
from wattloop.fleet.agent import job_caps as desk_module
from wattloop.fleet.agent.config import AgentConfig, ControlConfig
from wattloop.fleet.agent.job_caps import JobSetupThread
from wattloop.fleet.agent.job_events import SlurmSource
from wattloop.fleet.agent.job_facts import COLUMNS

DEFAULT_W = 700.0


class Controller:
    """A squeue and scontrol with scripted answers, or failures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def says(self, admin_comment: str) -> None:
        row = "".join(f"{'7' if name == 'id' else 'x':<{width}}" for name, _, width in COLUMNS)
        lines = ["JobId=7 JobName=x", "WorkDir=/", f"AdminComment={admin_comment} ", "StdErr=/x"]
        self._write("squeue", f"cat <<'END'\n{row}\nEND\n")
        one, many = " ".join(lines), "\n   ".join(lines)
        self._write(
            "scontrol",
            f"if [ \"$1\" = -o ]; then cat <<'END'\n{one}\nEND\nexit 0; fi\n"
            f"cat <<'END'\n{many}\nEND\n",
        )

    def fails(self) -> None:
        for name in ("squeue", "scontrol"):
            self._write(name, "echo 'Unable to contact slurm controller' >&2\nexit 1\n")

    def _write(self, name: str, text: str) -> None:
        fresh = self.folder / f".{name}"
        fresh.write_text(f"#!/bin/sh\n{text}")
        fresh.chmod(0o755)
        fresh.rename(self.folder / name)


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    return Controller(tmp_path / "bin")


@pytest.fixture
def desk(
    daemon: DaemonRig, tmp_path: Path, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> Iterator[JobSetupThread]:
    monkeypatch.setattr(desk_module, "CHECK_EVERY_S", 0.1)
    control = ControlConfig(socket=str(daemon.socket), default_cap="-10%")
    control = control.model_copy(update={"recap_s": 0.05})  # five seconds at least, elsewhere
    config = AgentConfig(slurm_bin=str(controller.folder), control=control)
    made = JobSetupThread(config, tmp_path, SlurmSource(config, "n1"))
    made.start()
    yield made
    made.stop()


def test_a_running_jobs_cap_follows_the_scheduler_and_outlasts_its_silence(
    desk: JobSetupThread, controller: Controller, daemon: DaemonRig
) -> None:
    """A controller that is away has not said that the cap is off."""
    controller.says('wattloop:{"cap_w":300}')
    desk.job_began("r1", "7", 1000, ["gpu:0"])
    assert eventually(lambda: daemon.limit_w(0) == 300.0)
    controller.fails()
    time.sleep(0.5)  # some polls
    assert daemon.limit_w(0) == 300.0
    controller.says('wattloop:{"cap_w":350}')
    assert eventually(lambda: daemon.limit_w(0) == 350.0)
    controller.says("something else")
    assert eventually(lambda: daemon.limit_w(0) == pytest.approx(630.0))
    desk.job_ended("7")
    assert eventually(lambda: daemon.limit_w(0) == DEFAULT_W)


def test_caps_are_looked_after_on_a_node_that_is_never_quiet(
    desk: JobSetupThread, controller: Controller, daemon: DaemonRig
) -> None:
    """Jobs come and go all the time, and the running one's new cap is set all the same."""
    controller.says('wattloop:{"cap_w":300}')
    desk.job_began("r1", "7", 1000, ["gpu:0"])
    assert eventually(lambda: daemon.limit_w(0) == 300.0)
    controller.says('wattloop:{"cap_w":350}')

    def busy_and_capped() -> bool:
        desk.set_owners([])
        return daemon.limit_w(0) == 350.0

    assert eventually(busy_and_capped)
