"""A driver within a test, on a lab's Slurm."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.slurm_lab import SlurmLab
from wattloop.schedule.driver.event_log import DriverLog
from wattloop.schedule.driver.managed_cluster import (
    ClusterOptions,
    DriverSettings,
    build_managed_cluster,
)
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.slurm.client import SlurmClient
from wattloop.schedule.slurm.driver import SlurmDriver
from wattloop.schedule.slurm.state import DriverState

__all__ = ["client_of", "driver_of", "events_of", "start_driver"]


def client_of(lab: SlurmLab) -> SlurmClient:
    """Return Slurm's commands of a lab."""
    return SlurmClient(environment=lab.environment)


def driver_of(
    lab: SlurmLab,
    folder: Path,
    policy: str | Policy = "fifo",
    *,
    settings: DriverSettings | None = None,
    **request: Any,
) -> SlurmDriver:
    """Return a driver of the partition `all`; GPUs only."""
    client = client_of(lab)
    chosen = policy_from(policy) if isinstance(policy, str) else policy
    asked = {"partitions": ("all",), "gpus_only": True, **request}
    wanted = ClusterOptions(**asked)
    site = build_managed_cluster(client.nodes(), wanted, chosen)
    state = DriverState.load(folder / "state.json")
    state.lock()
    log = DriverLog(folder / "log.jsonl")
    return SlurmDriver(
        client,
        site,
        chosen,
        state=state,
        log=log,
        settings=settings or DriverSettings(interval_s=0.3, lease_s=5.0),
        owner="root",
        rebuild=lambda nodes: build_managed_cluster(nodes, wanted, chosen),
    )


def start_driver(lab: SlurmLab, folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start `wattloop slurm run` as a process of its own."""
    environment = {**lab.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = ["slurm", "run", "--partition", "all", "--gpus-only", "--lease", "5", "-i", "0.3"]
    with (folder / "driver.out").open("ab") as out:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "wattloop",
                *words,
                "--state",
                str(folder / "state.json"),
                *options,
            ],
            env=environment,
            stdout=out,
            stderr=out,
        )


def events_of(folder: Path) -> list[dict[str, Any]]:
    """Return the events in the driver's log."""
    import json

    path = folder / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
