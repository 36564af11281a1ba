"""Promises of process groups that a caller controls."""

import os
import signal
from pathlib import Path

from wattloop.core.process import ProcessGroup, last_lines


def test_group_is_paused_continued_and_stopped(tmp_path: Path) -> None:
    """A stopped program can still end by itself, because it is continued first."""
    output = tmp_path / "out"
    script = "trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.01; done"
    group = ProcessGroup(["sh", "-c", script], dict(os.environ), output=output)
    while "ready" not in output.read_text():
        assert not group.wait(0.01)
    group.send(signal.SIGSTOP)
    assert not group.has_ended()
    assert group.stop(grace_s=10.0)
    assert (group.exit_code, group.signal) == (3, None)
    assert last_lines(output, 1) == ["asked"]
    assert group.stop(), "has ended already"


def test_group_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    """Its output is added to the earlier output."""
    output = tmp_path / "out"
    output.write_text("earlier\n")
    script = "trap '' TERM; echo ready; while :; do sleep 0.01; done"
    group = ProcessGroup(["sh", "-c", script], dict(os.environ), output=output, append=True)
    while "ready" not in output.read_text():
        assert not group.wait(0.01)
    assert not group.stop(grace_s=0.05)
    assert (group.exit_code, group.signal) == (137, signal.SIGKILL)
    assert last_lines(output, 2) == ["earlier", "ready"]
