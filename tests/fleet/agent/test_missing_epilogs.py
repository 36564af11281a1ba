"""Promises about jobs whose epilog never ran: they end, and no other job ends with them."""

from pathlib import Path

import pytest

from wattloop.fleet.agent.job_events import EventFolder, MissingEpilogs


class Controller:
    """A squeue with scripted answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.says()

    def says(self, *jobs: str, code: int = 0) -> None:
        script = self.folder / "squeue"
        text = "\n".join(jobs)
        script.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
        script.chmod(0o755)


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    return Controller(tmp_path)


def test_a_job_that_slurm_does_not_have_twice_has_ended(
    tmp_path: Path, controller: Controller
) -> None:
    """Once may be a moment between two messages; the event is one that the agent reads."""
    events = EventFolder(tmp_path / "events")
    events.prepare()
    ends = MissingEpilogs(events.path, "n1", lambda: ["12", "13"], str(tmp_path))
    controller.says("12", "99")
    assert ends.check() == []
    assert ends.check() == ["13"]
    found, strange = events.waiting()
    assert [(event.kind, event.job) for event in found] == [("end", "13")]
    assert strange == [] and found[0].uptime_s is not None and found[0].boot


def test_a_job_that_is_seen_again_goes_on(tmp_path: Path, controller: Controller) -> None:
    """Two consecutive polls count, not any two."""
    ends = MissingEpilogs(tmp_path, "n1", lambda: ["12"], str(tmp_path))
    for listed in ((), ("12",), (), ("12",)):
        controller.says(*listed)
        assert ends.check() == []


def test_a_controller_that_does_not_answer_ends_nobody(
    tmp_path: Path, controller: Controller
) -> None:
    """Neither one that fails, nor a machine without Slurm."""
    ends = MissingEpilogs(tmp_path, "n1", lambda: ["12"], str(tmp_path))
    controller.says(code=1)
    assert ends.check() == ends.check() == []
    (tmp_path / "squeue").unlink()
    assert ends.check() == ends.check() == []
    assert not list(tmp_path.glob("*-end"))
