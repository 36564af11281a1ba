"""`wattloop agent status`: what the agent of a node is doing."""

import time
from pathlib import Path
from typing import Any

from wattloop.cli.agent_run import ConfigFile, Node, node_name
from wattloop.cli.options import JsonFile
from wattloop.cli.output import check_target, print_table, say, write_json
from wattloop.core.errors import ConfigError
from wattloop.core.results import non_overlapping
from wattloop.core.units import format_duration, format_energy, format_power

__all__ = ["status_command"]

SILENT_S = 30.0


def status_command(
    *, config: ConfigFile = None, node: Node = None, json_file: JsonFile = None
) -> None:
    """Show jobs, power and faults of this node as its agent sees them."""
    from wattloop.fleet.agent.config import load_agent_config

    check_target(json_file, "--json")
    name = node_name(node)
    found = _status(load_agent_config(config, name).place, name)
    if json_file is not None:
        write_json(found, json_file)
    if json_file != "-":
        _show(found)


def _status(folder: Path, node: str) -> dict[str, Any]:
    from wattloop.fleet.agent.state import STATE_FILE, STATUS_FILE, load_state
    from wattloop.fleet.delivery.status import status_from_file

    state, reason = load_state(folder / STATE_FILE)
    status = status_from_file(folder / STATUS_FILE)
    if state is None:
        raise ConfigError(
            reason or f"{folder}: no agent has worked here; start one with: wattloop agent run"
        )
    jobs = [
        {
            "job": kept.plan.job,
            "name": kept.plan.facts.get("name", ""),
            "user": kept.plan.user,
            "gpus": list(kept.plan.gpus),
            "cpus": kept.plan.cpus,
            "since_s": state.until_s - kept.plan.started_s,
            "energy_j": {domain: values[0] for domain, values in kept.account.items()},
            "ended": kept.plan.ended_s is not None,
        }
        for kept in state.runs
        if kept.plan.job
    ]
    waiting = len(list((folder / "journals").glob("*.journal")))
    return {
        "node": node,
        "folder": str(folder),
        "age_s": time.time() - state.wall_s,
        "power_w": {} if status is None else dict(status.power_w),
        "faults": [] if status is None else list(status.faults),
        "jobs": jobs,
        "events_waiting": len(list((folder / "events").glob("[0-9]*"))),
        "journals": waiting,
    }


def _total_j(energy_j: dict[str, float]) -> float:
    """Of a job: the node's meter where it has the node, else its parts without those inside."""
    if "node" in energy_j:
        return energy_j["node"]
    inside = ((n, f"{n.rpartition('/')[0]}/package" if "/" in n else None) for n in energy_j)
    counted = non_overlapping((n, where if where != n else None) for n, where in inside)
    return sum(energy_j[name] for name in counted)


def _show(found: dict[str, Any]) -> None:
    power_w = found["power_w"].values()
    drawn = f"{format_power(sum(power_w))} now" if power_w else "power not known"
    say(f"node {found['node']}: {drawn}, as of {format_duration(max(0.0, found['age_s']))} ago")
    if found["age_s"] > SILENT_S:
        say("the agent does not work: start it with: wattloop agent run")
    for fault in found["faults"]:
        say(f"fault: {fault}")
    rows = [
        (
            job["job"],
            job["name"],
            job["user"],
            ",".join(gpu.removeprefix("gpu:") for gpu in job["gpus"]) or "-",
            str(job["cpus"] or "-"),
            format_duration(job["since_s"]),
            format_energy(_total_j(job["energy_j"])) if job["energy_j"] else "not known",
        )
        for job in found["jobs"]
    ]
    print_table(("job", "name", "user", "GPUs", "CPUs", "for", "energy"), rows)
