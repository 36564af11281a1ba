"""Constant context of an agent: its node, folder, settings and clock."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wattloop.core.clock import Clock, RealClock
from wattloop.core.settings import Settings
from wattloop.fleet.agent.config import AgentConfig
from wattloop.fleet.agent.job_facts import cpus_of_node, minor_numbers
from wattloop.hardware.host import Host


@dataclass(frozen=True, slots=True)
class AgentContext:
    """Node, folder, settings and clock of one agent.

    Attributes:
        node: its name in Slurm.
        config: what the operator said.
        settings: how to measure.
        host, clock: the machine.
        gpu_numbers: Slurm's number of a GPU -> its number here, where they may differ.
        cpus: CPUs that Slurm hands out.
    """

    node: str
    config: AgentConfig
    settings: Settings
    host: Host
    clock: Clock
    gpu_numbers: Mapping[int, int]
    cpus: int

    @property
    def folder(self) -> Path:
        return self.config.place

    @property
    def journals(self) -> Path:
        return self.folder / "journals"

    @property
    def store(self) -> str:
        """Return the store of finished runs that are not delivered to a server."""
        return self.config.store or str(self.folder / "runs.db")

    def uptime_s(self) -> float | None:
        """Return the time since boot as prologs read it."""
        text = self.host.read_text("proc", "uptime") or ""
        found = re.match(r"\d+(\.\d+)?", text)
        return float(found.group()) if found else None


def site_of(
    config: AgentConfig,
    node: str,
    settings: Settings,
    *,
    host: Host | None = None,
    clock: Clock | None = None,
) -> AgentContext:
    """Return the context of a node; virtual cards are set in the environment for their meters."""
    host = host or Host.from_environment()
    if config.virtual_state is not None:
        os.environ["WATTLOOP_VIRTUAL_STATE"] = config.virtual_state
    if config.virtual_model is not None:
        os.environ["WATTLOOP_VIRTUAL_MODEL"] = config.virtual_model
    given = {
        "interval_s": config.interval_s,
        "virtual_gpus": config.virtual_gpus or None,
        "devices": list(config.devices) or None,
        "meters": list(config.meters) or None,
        "store": config.store,
    }
    numbers: Mapping[int, int] = config.gpus
    if not numbers and not config.virtual_gpus:
        numbers = minor_numbers(host)
    return AgentContext(
        node=node,
        config=config,
        settings=settings.overridden(given, "agent.yaml"),
        host=host,
        clock=clock or RealClock(),
        gpu_numbers=numbers,
        cpus=config.cpus or cpus_of_node(node, config.slurm_bin) or os.cpu_count() or 1,
    )
