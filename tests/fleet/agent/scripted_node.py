"""A node on a virtual clock whose sensors a test decides: hours of it take a moment."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_meter import Script, ScriptedMeter
from wattloop.core.clock import VirtualClock
from wattloop.core.records import Domain, DomainKind, Scope
from wattloop.core.settings import Settings
from wattloop.fleet.agent.agent import Agent
from wattloop.fleet.agent.config import AgentConfig, AgentContext
from wattloop.fleet.agent.job_caps import JobSetupThread
from wattloop.hardware.host import Host
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.meters.base import Meter
from wattloop.meters.registry import Inventory
from wattloop.store.journal import Journal, read_journal

PACKAGE, DRAM = "cpu:0/package", "dram:0"


class QuietDesk(JobSetupThread):
    """A node without Slurm."""

    def start(self) -> None:
        """No thread."""

    def job_began(self, run_id: str, job: str, uid: int, gpus: Sequence[str]) -> None:
        """Report a job of which only the prolog's data is known."""

    def stop(self, timeout_s: float = 5.0) -> None:
        """There is none."""


def counter(name: str, scope: Scope, **known: Any) -> Domain:
    return Domain(name, DomainKind.COUNTER, scope, "test", update_period_s=1e-6, **known)


def gauge(name: str, scope: Scope, **known: Any) -> Domain:
    return Domain(name, DomainKind.GAUGE, scope, "test", update_period_s=0.1, **known)


class ScriptedNode:
    """A node on one folder whose agents are replaced while sensors and clock continue."""

    def __init__(
        self,
        folder: Path,
        scripts: Sequence[tuple[Domain, Script]],
        monkeypatch: pytest.MonkeyPatch,
        **config: Any,
    ) -> None:
        self.folder = folder
        self.clock = VirtualClock(1_000.0, 1.7e9)
        (folder / "proc").mkdir(parents=True, exist_ok=True)
        self.host = Host(sysfs=folder / "sys", procfs=folder / "proc")
        self.config = {
            "folder": str(folder / "n1"),
            "cpus": 8,
            "cgroup_root": str(folder / "cgroup"),
            **config,
        }
        self._scripts = list(scripts)
        self.agent: Agent | None = None
        monkeypatch.setattr("wattloop.fleet.agent.node_energy.detect", self._detected)
        monkeypatch.setattr("wattloop.fleet.agent.agent.JobSetupThread", QuietDesk)
        monkeypatch.setattr("wattloop.fleet.agent.open_runs.PATIENCE_S", 0.0)

    def _detected(self, context: Any, explain: bool = True) -> Inventory:
        meters: list[Meter] = [ScriptedMeter(self.clock, [script]) for script in self._scripts]
        inventory = Inventory(meters)
        inventory.names = ["scripted"] * len(meters)
        return inventory

    def start(self) -> Agent:
        config = AgentConfig.model_validate(self.config)
        self.agent = Agent(AgentContext("n1", config, Settings(), self.host, self.clock, {}, 8))
        self.agent.start()
        return self.agent

    def pass_time(self, seconds: float, step_s: float = 0.25) -> None:
        """Time goes by, with an agent or without."""
        end_s = self.clock.now_s() + seconds
        while self.clock.now_s() < end_s - 1e-9:
            self.clock.advance(min(step_s, end_s - self.clock.now_s()))
            if self.agent is not None:
                self.agent.poll()

    def kill(self) -> None:
        agent, self.agent = self.agent, None
        if agent is not None:
            for run in agent.open_runs.all():
                run.abandon()

    def event(self, kind: str, job: str, ago_s: float = 0.0, **facts: str) -> None:
        """Write the event of a hook of `ago_s` seconds ago."""
        wall_ns = round((self.clock.wall_s() - ago_s) * 1e9)
        lines = {"cpus": "2", "uid": "1000", "user": "ada", **facts, "job": job, "whole": "yes"}
        folder = self.folder / "n1" / "events"
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        (folder / f"{wall_ns}-{job}-{kind}").write_text(text)

    def cpu_time(self, job: str, seconds: float) -> None:
        """Set the CPU time of the job's control group."""
        path = self.folder / "cgroup" / "system.slice/slurmstepd.scope" / f"job_{job}" / "cpu.stat"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"usage_usec {round(seconds * 1e6)}\n")

    def busy(self, seconds: float) -> None:
        """Set the CPU time of the whole node in /proc/stat."""
        (self.folder / "proc" / "stat").write_text(f"cpu {round(seconds * 100)} 0 0 0 0 0 0 0\n")

    def stop(self) -> None:
        agent, self.agent = self.agent, None
        assert agent is not None
        agent.stop()

    def journals(self) -> list[Journal]:
        found = [read_journal(p) for p in sorted((self.folder / "n1/journals").glob("*.journal"))]
        return [journal for journal in found if journal is not None]

    def ends(self) -> list[dict[str, Any]]:
        """Return the ends of all runs; runs without an end get the one that the import gives
        them.
        """
        return [journal.end or finalize_orphaned_run(journal) for journal in self.journals()]

    def end_of(self, job: str) -> dict[str, Any]:
        (found,) = [j for j in self.journals() if j.header["job"] and j.header["job"]["id"] == job]
        assert found.end is not None
        return found.end


def domains_of(end: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {domain["name"]: domain for domain in end["result"]["domains"]}
