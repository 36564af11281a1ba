"""Promises of a driver's notes: whole at any moment, and never those of another driver."""

import json
from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.schedule.driver.event_log import DriverLog
from wattloop.schedule.driver.inventory import ReleasedJob
from wattloop.schedule.driver.managed_cluster import DriverSettings
from wattloop.schedule.slurm.executor import BackOff
from wattloop.schedule.slurm.state import DriverState


def test_what_was_asked_for_is_there_after_a_restart(tmp_path: Path) -> None:
    """The gate's name, released jobs with their undo data, and users' shares."""
    state = DriverState.load(tmp_path / "state.json")
    state.lock()
    state.released["7"] = ReleasedJob(
        key="7",
        user="ada",
        why="start",
        nodes=("n1",),
        gpus=2,
        cap_w=250.0,
        undo={"ReqNodeList": ""},
    )
    state.use_gpu_s["ada"] = 12.5
    state.preempting["9"] = 1.0
    state.save()
    again = DriverState.load(tmp_path / "state.json")
    assert (again.gate_name, again.released) == (state.gate_name, state.released)
    assert (again.use_gpu_s, again.preempting) == (state.use_gpu_s, state.preempting)
    with pytest.raises(ConfigError, match="another 'wattloop slurm run'"):
        again.lock()
    state.unlock()
    again.lock()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '{"version": 9}',
        '{"version": 1, "gate_name": "maintenance", "opened": [], "preempting": {}, '
        '"use_gpu_s": {}}',
    ],
)
def test_a_file_of_something_else_is_not_taken_for_a_state(tmp_path: Path, text: str) -> None:
    """It is not overwritten either: a reservation named in it could belong to any user."""
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="not a state file of a Slurm driver"):
        DriverState.load(path)
    assert path.read_text() == text


def test_the_log_is_plain_and_does_not_repeat_itself(tmp_path: Path) -> None:
    """Users' texts cannot forge lines or colours, and a refusal per second is one line per
    minute.
    """
    now_s = [0.0]
    told: list[str] = []
    log = DriverLog(tmp_path / "log", lambda kind, text: told.append(text), lambda: now_s[0])
    for _ in range(5):
        log.add("refused", 'job 7\n{"event": "start"}\x1b[31m', job="7")
    now_s[0] = 61.0
    log.add("refused", 'job 7\n{"event": "start"}\x1b[31m', job="7")
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == len(told) == 2
    assert json.loads(lines[0])["message"] == 'job 7?{"event": "start"}?[31m'
    assert log.counts == {"refused": 6}


def test_a_job_that_slurm_does_not_start_is_left_out_longer_each_time() -> None:
    """The time grows, but is bounded."""
    found = BackOff()
    assert [found.add("7", 0.0) for _ in range(7)] == [30, 60, 120, 240, 480, 600, 600]
    found.keep_only({"8"})
    assert not found.times("7")


@pytest.mark.parametrize("given", [{"interval_s": 0.0}, {"lease_s": 2.0}, {"interval_s": 10.0}])
def test_times_that_make_no_sense_are_refused(given: dict[str, float]) -> None:
    """A lease must outlast a few rounds, or Slurm would start jobs between them."""
    with pytest.raises(ConfigError):
        DriverSettings(**given)
