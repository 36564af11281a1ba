"""What a restarted agent needs: where counters stood, and which runs are open.

The file is replaced at every step, before the journals get their rows: it is always as far as they
are or ahead, so nothing is counted twice.
"""

import errno
import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from wattloop.fleet.agent.job_run import RunPlan

__all__ = ["STATE_FILE", "STATUS_FILE", "AgentState", "OpenRunState", "load_state", "save_state"]

STATE_FILE, STATUS_FILE = "state.json", "status.json"
"""In the agent's folder: what a restart needs, and what it says of the node."""
VERSION = 1


@dataclass(slots=True)
class OpenRunState:
    """An open run.

    Attributes:
        plan: who it is.
        account: its joules.
        offsets_j: what each of its counters began anew from.
        cpu_s: its CPU time.
        journal: whether its journal was begun.
    """

    plan: RunPlan
    account: dict[str, Any] = field(default_factory=dict)
    offsets_j: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    journal: bool = False


@dataclass(slots=True)
class AgentState:
    """Everything.

    Attributes:
        boot_id: times are of this boot.
        until_s: up to when the node's time is shared out.
        wall_s: the time of day then.
        sensors: where counters stood.
        idle: what was learned of idle power.
        runs: open ones, what no job used among them.
        handled: events that are dealt with, though their files may still be there.
    """

    boot_id: str
    until_s: float
    wall_s: float
    sensors: dict[str, Any] = field(default_factory=dict)
    idle: dict[str, Any] = field(default_factory=dict)
    runs: list[OpenRunState] = field(default_factory=list)
    handled: list[str] = field(default_factory=list)


def save_state(path: Path, state: AgentState) -> None:
    """Whole or not at all.

    Raises:
        OSError: it cannot be written; what was there before stays.
    """
    fresh = path.with_name(f".{path.name}.new")
    data = json.dumps({"version": VERSION, **asdict(state)}, separators=(",", ":")).encode()
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)
    fresh.replace(path)


def load_state(path: Path) -> tuple[AgentState | None, str]:
    """What the last agent left, or why that cannot be used."""
    try:
        data = json.loads(path.read_text("utf-8"))
        if data.pop("version") != VERSION:
            return None, f"{path}: of another version"
        runs = [
            OpenRunState(**{**run, "plan": RunPlan(**_known(run["plan"]))})
            for run in data.pop("runs")
        ]
        for run in runs:
            run.plan.gpus = tuple(run.plan.gpus)
        return AgentState(runs=runs, **data), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return None, f"{path}: cannot be used ({error})"


def _known(plan: dict[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(RunPlan)}
    return {name: value for name, value in plan.items() if name in names}
