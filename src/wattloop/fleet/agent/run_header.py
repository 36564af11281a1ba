"""How a run of the agent introduces itself: the same header as every other run has."""

import os
import sys
from typing import Any

from wattloop.core.settings import Settings
from wattloop.fleet.agent.job_run import JobRun, RunPlan
from wattloop.hardware.host import Host
from wattloop.measure.job import Job
from wattloop.measure.run_header import feed_to_dict, without_secrets
from wattloop.version import __version__

__all__ = ["UNALLOCATED", "run_header", "run_settings"]

UNALLOCATED = "unallocated"


def run_header(
    run: JobRun, *, settings: Settings, host: Host, node: str, cluster: str
) -> dict[str, Any]:
    """Plain data for the first frame of its journal."""
    plan = run.plan
    return {
        "run_id": plan.run_id,
        "name": plan.facts.get("name") or (f"job {plan.job}" if plan.job else UNALLOCATED),
        "command": None,
        "kind": "slurm" if plan.job else UNALLOCATED,
        "started_wall_s": plan.started_wall_s,
        "started_s": plan.started_s,
        "boot_id": host.boot_id,
        "host": node,
        "machine_id": host.machine_id,
        "pid": os.getpid(),
        "user": plan.user,
        "cwd": "",
        "python": f"{sys.version.split()[0]} ({sys.implementation.name})",
        "version": __version__,
        "settings": without_secrets({**settings._asdict(), "sources": dict(settings.sources)}),
        "tags": _tags(plan, node, cluster),
        "job": _job(plan).to_dict() if plan.job else None,
        "parent_run_id": None,
        "feeds": [feed_to_dict(run.feed)],
        "missing": [missing._asdict() for missing in run.missing],
    }


def run_settings(settings: Settings, share: float) -> Settings:
    """Settings with which this run's part of the node's other devices is accounted for."""
    return settings._replace(node_share=share)


def _job(plan: RunPlan) -> Job:
    return Job(plan.job, "slurm", scheduler=plan.facts)


def _tags(plan: RunPlan, node: str, cluster: str) -> dict[str, str]:
    tags = {"node": node, "cluster": plan.facts.get("cluster") or cluster}
    if not plan.job:
        tags["unallocated"] = "yes"
    return {name: value for name, value in tags.items() if value}
