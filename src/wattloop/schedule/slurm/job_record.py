"""A job as Slurm shows it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattloop.core.errors import SlurmError
from wattloop.schedule.slurm.gres import asked_gpus, used_mask
from wattloop.schedule.slurm.hostlist import expanded
from wattloop.schedule.slurm.json_fields import number_of, text_of, words_of

__all__ = ["SlurmJob", "jobs_from"]

MOST_TASKS = 200
"""Waiting tasks of one array that are looked at; the rest follows as these start."""
TASKS = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
ON_NODES = (
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "CONFIGURING",
    "STOPPED",
    "SIGNALING",
    "STAGE_OUT",
)

NOT_YET = (
    "BeginTime", "Dependency", "DependencyNeverSatisfied", "JobHeldUser", "JobHeldAdmin",
    "JobArrayTaskLimit", "Licenses", "BadConstraints", "PartitionDown", "PartitionInactive",
    "PartitionTimeLimit", "PartitionNodeLimit", "AccountNotAllowed", "QOSNotAllowed",
    "InvalidAccount", "InvalidQOS", "DeadLine", "launch failed requeued held", "Cleaning",
)  # fmt: skip
"""Reasons of waiting that no machine helps against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One job, or one task of an array. Texts are the user's own, and may be anything.

    Attributes:
        key: what scontrol takes: `17`, or `17_3` for a task.
        gpus, gpu_type: asked for, all nodes together; the type is empty for any.
        gpus_per_node: asked for of each node; 0 where they were asked for in another way.
        nodes: how many it asked for at least.
        placed: (node name, bit mask of its GPUs there) while it has machines.
        required_nodes, excluded_nodes, features: what it demands of its nodes.
        time_limit_s: None without one.
        submit_s, start_s, end_s: seconds since 1970, whole ones; 0 for not yet.
    """

    key: str
    state: str
    reason: str = ""
    user: str = ""
    name: str = ""
    account: str = ""
    partition: str = ""
    command: str = ""
    comment: str = ""
    admin_comment: str = ""
    reservation: str = ""
    gpus: int = 0
    gpu_type: str = ""
    gpus_per_node: int = 0
    nodes: int = 1
    placed: tuple[tuple[str, int], ...] = ()
    required_nodes: str = ""
    excluded_nodes: str = ""
    features: str = ""
    submit_s: float = 0.0
    start_s: float = 0.0
    end_s: float = 0.0
    time_limit_s: float | None = None
    deadline_s: float | None = None
    priority: int | None = None
    restarts: int = 0
    may_requeue: bool = True
    is_exclusive: bool = False

    @property
    def is_pending(self) -> bool:
        """It waits."""
        return self.state == "PENDING"

    @property
    def is_eligible(self) -> bool:
        """It waits for machines, not for a time, another job or somebody's release."""
        return self.is_pending and self.priority != 0 and self.reason not in NOT_YET

    @property
    def has_machines(self) -> bool:
        """It runs, begins or ends on machines."""
        return self.state in ON_NODES

    @property
    def is_over(self) -> bool:
        """It will not run any more."""
        return not self.is_pending and not self.has_machines and self.state != "REQUEUED"


def jobs_from(data: Mapping[str, Any]) -> list[SlurmJob]:
    """Every job of `squeue --json`; entries that make no sense are left out.

    Raises:
        SlurmError: there is no list of jobs in it.
    """
    listed = data.get("jobs")
    if not isinstance(listed, list):
        raise SlurmError("Slurm: 'squeue --json' gave no list of jobs")
    return [job for each in listed if isinstance(each, Mapping) for job in _jobs(each)]


def _jobs(data: Mapping[str, Any]) -> list[SlurmJob]:
    number = number_of(data, "job_id")
    if number is None:
        return []
    array, task = number_of(data, "array_job_id"), number_of(data, "array_task_id")
    state = (words_of(data, "job_state") or ("",))[-1]
    if array and state == "PENDING" and (tasks := text_of(data, "array_task_string")):
        return [_job(data, f"{array}_{each}", state) for each in _tasks(tasks)]
    return [_job(data, f"{array}_{task}" if array and task is not None else str(number), state)]


def _job(data: Mapping[str, Any], key: str, state: str) -> SlurmJob:
    nodes = max(number_of(data, "node_count") or 1, 1)
    per_node = asked_gpus(text_of(data, "tres_per_node"))
    in_all = asked_gpus(text_of(data, "tres_per_job"))
    per_task = asked_gpus(text_of(data, "tres_per_task"))
    tasks = number_of(data, "tasks") or 1
    gpus = in_all.number or per_node.number * nodes or per_task.number * tasks
    submit_s = float(number_of(data, "submit_time") or 0)
    deadline = number_of(data, "deadline")
    limit_min = number_of(data, "time_limit")
    start_s = float(number_of(data, "start_time") or 0)
    return SlurmJob(
        key=key,
        state=state,
        reason=text_of(data, "state_reason"),
        user=text_of(data, "user_name"),
        name=text_of(data, "name"),
        account=text_of(data, "account"),
        partition=text_of(data, "partition"),
        command=text_of(data, "command"),
        comment=text_of(data, "comment"),
        admin_comment=text_of(data, "admin_comment"),
        reservation=text_of(data, "resv_name"),
        gpus=gpus,
        gpu_type=per_node.type_name or in_all.type_name or per_task.type_name,
        gpus_per_node=per_node.number if not in_all.number else 0,
        nodes=nodes,
        placed=_placed(data) if state in ON_NODES else (),
        required_nodes=text_of(data, "required_nodes"),
        excluded_nodes=text_of(data, "excluded_nodes"),
        features=text_of(data, "features"),
        submit_s=submit_s,
        start_s=start_s if state != "PENDING" else 0.0,
        end_s=float(number_of(data, "end_time") or 0),
        # Slurm shows a year for no limit
        time_limit_s=None if limit_min is None or limit_min >= 525_600 else limit_min * 60.0,
        deadline_s=None if not deadline else max(deadline - submit_s, 0.0),
        priority=number_of(data, "priority"),
        restarts=number_of(data, "restart_cnt") or 0,
        may_requeue=bool(data.get("requeue", True)),
        is_exclusive=data.get("shared") == "none" or "EXCLUSIVE" in words_of(data, "shared"),
    )


def _placed(data: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    resources = data.get("job_resources")
    names = text_of(resources, "nodes") if isinstance(resources, Mapping) else ""
    if not names:
        names = text_of(data, "nodes")
    detail = words_of(data, "gres_detail")
    try:
        nodes = expanded(names) if names else []
    except SlurmError:
        return ()
    masks = [used_mask(each) for each in detail] + [0] * len(nodes)
    return tuple(zip(nodes, masks, strict=False))


def _tasks(text: str) -> list[int]:
    """`1-5:2,9%2` -> 1, 3, 5, 9; the first of them where there are many."""
    found: list[int] = []
    for piece in text.partition("%")[0].split(","):
        match = TASKS.fullmatch(piece)
        if match is not None:
            first, last = int(match[1]), int(match[2] or match[1])
            step = max(int(match[3] or 1), 1)
            found += range(first, last + 1, step)[: MOST_TASKS - len(found)]
    return found
