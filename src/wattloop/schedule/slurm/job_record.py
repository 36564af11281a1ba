"""A job as Slurm shows it."""

from dataclasses import dataclass

__all__ = ["HAS_MACHINES", "SlurmJob"]

HAS_MACHINES = (
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
        number: of its own, as its nodes know it; that of the array while a task waits.
        gpus, gpu_type: asked for, all nodes together; the type is empty for any.
        gpus_per_node: asked for of each node; 0 where they were asked for in another way.
        nodes: how many it asked for at least.
        placed: (node name, GPUs there) while it has machines.
        required_nodes, features: what it demands of its nodes.
        time_limit_s: None without one.
        submit_s, start_s: seconds since 1970, whole ones; 0 for not yet.
    """

    key: str
    state: str
    number: str = ""
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
    features: str = ""
    submit_s: float = 0.0
    start_s: float = 0.0
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
        return self.state in HAS_MACHINES
