"""What the batch system says of a job."""

from dataclasses import dataclass

__all__ = ["SubmittedJob"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """A job as its user submitted it. Every text is the user's own and may be anything.

    Attributes:
        job_id: of the batch system, for messages.
        name, user, account, partition: as Slurm shows them.
        script: path of the batch script, or the command.
        comment: of `--comment`.
        gpus: GPUs it asked for, all nodes together; 0 for none.
        gpu_type: name of the GPU type it asked for; empty is any.
        time_limit_s: after which the batch system ends it; None without a limit.
        deadline_s: seconds after submission of the batch system's own `--deadline`; None without.
    """

    job_id: str = ""
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    script: str = ""
    comment: str = ""
    gpus: int = 0
    gpu_type: str = ""
    time_limit_s: float | None = None
    deadline_s: float | None = None
