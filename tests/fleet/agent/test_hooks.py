"""Promises of prolog and epilog: they say what they know, and never fail or delay a job."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.fleet.agent.conftest import Node
from wattloop.core.errors import ConfigError
from wattloop.fleet.agent.hooks import hook_text, install_hooks
from wattloop.fleet.agent.job_events import EventFolder


def test_hooks_leave_one_whole_event_each(node: Node) -> None:
    """With hostile text in a comment: nothing of it is run, a line break makes it odd."""
    events = EventFolder(node.home / "events")
    events.prepare()
    node.begin("7", "0,1", SLURM_JOB_COMMENT="$(touch /tmp/hacked) `id` \"'\\ %s %n")
    node.begin("8", "", SLURM_JOB_COMMENT="a\nuid=0")
    node.end("7", 256)
    found, strange = events.waiting()
    assert not strange
    assert [(e.job, e.kind) for e in found] == [("7", "start"), ("8", "start"), ("7", "end")]
    assert found[0].facts["comment"] == "$(touch /tmp/hacked) `id` \"'\\ %s %n"
    assert found[0].facts["gpus"] == "0,1"
    assert found[1].facts["odd"] == "comment"
    assert "comment" not in found[1].facts
    assert found[1].facts["uid"] == str(os.getuid())
    assert found[2].facts["exit"] == "256"
    assert all(event.boot and event.uptime_s for event in found)
    mode = (node.home / "events" / found[0].name).stat().st_mode
    assert mode & 0o077 == 0


def test_hooks_succeed_without_an_agents_folder(node: Node) -> None:
    """A node where the agent was never installed runs its jobs all the same."""
    node.begin("7")
    node.end("7")
    assert not node.home.exists()


def test_hooks_write_into_no_folder_of_somebody_else(node: Node, tmp_path: Path) -> None:
    """Root would follow a link that waits there under the name of the next event."""
    if os.geteuid() != 0:
        pytest.skip("another owner needs root")
    events = node.home / "events"
    events.mkdir(parents=True)
    os.chown(events, 65_534, 65_534)
    node.begin("7")
    node.end("7")
    assert not list(events.iterdir())


def test_a_prolog_waits_for_its_cap_but_not_for_a_dead_agent(tmp_path: Path) -> None:
    """Bounded, only where caps are in use and the agent lives, and not once it is ready."""
    folder = tmp_path / "n1"
    (folder / "events").mkdir(parents=True)
    prolog, _ = install_hooks(tmp_path / "hooks", str(tmp_path / "{node}"), 0.3)
    environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}

    def waited() -> bool:
        trace = subprocess.run(
            ["sh", "-x", prolog], env=environment, check=True, capture_output=True, text=True
        )
        return "sleep 0.05" in trace.stderr

    assert not waited()
    (folder / "caps").write_text(f"{os.getpid()}\n")
    assert waited()
    (folder / "ready").mkdir()
    (folder / "ready" / "7").touch()
    assert not waited()
    (folder / "ready" / "7").unlink()
    (folder / "caps").write_text("999999999\n")
    assert not waited()


@pytest.mark.parametrize("folder", ["relative", '/a"; rm -rf /', "/a/{host}", "/a b"])
def test_a_folder_that_would_break_a_script_is_refused(folder: str) -> None:
    """It becomes part of a shell script that root runs."""
    with pytest.raises(ConfigError, match="absolute path"):
        hook_text("prolog", folder)


def test_no_python_is_started_at_the_start_of_a_job() -> None:
    """The scripts start two programs, date and mv (and sleep, where they wait)."""
    text = hook_text("prolog", "/x/{node}") + hook_text("epilog", "/x/{node}")
    assert "python" not in text
