"""A node of a test's own: a folder, virtual GPUs, a powercap tree, and hooks as Slurm runs them."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.control.daemon.conftest import daemon, rig  # noqa: F401 - fixtures of a real daemon
from tests.support.environment import without
from tests.sweep.conftest import ENTRY_POINTS
from wattloop.core.settings import Settings
from wattloop.fleet.agent.agent import Agent
from wattloop.fleet.agent.config import AgentConfig, agent_context
from wattloop.fleet.agent.hooks import install_hooks
from wattloop.hardware.host import Host
from wattloop.store.journal import Journal, read_journal


class Node:
    """One node, and what happens on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "n1"
        self.sysfs = folder / "sys"
        self.sysfs.mkdir()
        self.config: dict[str, Any] = {
            "folder": str(folder / "{node}"),
            "virtual_gpus": 2,
            "meters": ("virtual",),
            "cpus": 8,
            "interval_s": 0.2,
            "cluster": "test",
            "cgroup_root": str(folder / "cgroup"),
            "slurm_bin": str(folder / "no-slurm"),
        }
        self.prolog, self.epilog = install_hooks(folder / "hooks", str(folder / "{node}"))
        self.agent: Agent | None = None

    def start(self) -> Agent:
        config = AgentConfig.model_validate(self.config).of_node("n1")
        host = Host(sysfs=self.sysfs)
        self.agent = Agent(agent_context(config, "n1", Settings(), host=host))
        self.agent.start()
        return self.agent

    def work(self, seconds: float) -> None:
        """Let the agent do its work for some time."""
        assert self.agent is not None
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.agent.poll()
            time.sleep(0.01)

    def work_until(self, done: Callable[[], bool], limit_s: float = 120.0) -> None:
        end_s = time.monotonic() + limit_s
        while not done():
            assert time.monotonic() < end_s, "the agent does not get there"
            self.work(0.05)

    def stop(self) -> None:
        """End it in good order."""
        agent, self.agent = self.agent, None
        assert agent is not None
        agent.stop()

    def kill(self) -> None:
        """It is gone from one moment to the next, as far as its files are concerned."""
        agent, self.agent = self.agent, None
        assert agent is not None
        agent.job_setup.stop()
        for run in agent.open_runs.all():
            run.abandon()

    def hook(self, script: Path, job: str, **variables: str) -> None:
        given = {
            "SLURM_JOB_ID": job,
            "SLURMD_NODENAME": "n1",
            "SLURM_JOB_UID": str(os.getuid()),
            "SLURM_JOB_USER": "ada",
            "SLURM_JOB_PARTITION": "gpu",
            "SLURM_JOB_CPUS_PER_NODE": "2",
            "SLURM_JOB_RESTART_COUNT": "0",
        }
        subprocess.run([script], env={**os.environ, **given, **variables}, check=True)

    def begin(self, job: str, gpus: str = "", **variables: str) -> None:
        self.hook(self.prolog, job, SLURM_JOB_GPUS=gpus, **variables)

    def end(self, job: str, code: int = 0, **variables: str) -> None:
        self.hook(self.epilog, job, SLURM_JOB_EXIT_CODE=str(code), **variables)

    def journals(self) -> list[Journal]:
        found = [read_journal(path) for path in sorted((self.home / "journals").glob("*.journal"))]
        return [journal for journal in found if journal is not None]

    def of_job(self, job: str) -> list[Journal]:
        return [j for j in self.journals() if (j.header["job"] or {}).get("id") == job]

    def ended(self, job: str, times: int = 1) -> list[Journal]:
        """The job's journals, once they have their end."""
        self.work_until(lambda: sum(j.end is not None for j in self.of_job(job)) >= times)
        return [j for j in self.of_job(job) if j.end is not None]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    for name in os.environ.keys() - without("WATTLOOP", "SLURM").keys():
        monkeypatch.delenv(name)
    info = tmp_path / "site" / "wattloop-0.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("WATTLOOP_VIRTUAL_STATE", str(tmp_path / "gpus.state"))
    monkeypatch.setenv("WATTLOOP_VIRTUAL_MODEL", "a100")
    found = Node(tmp_path)
    yield found
    if found.agent is not None:
        found.stop()
