"""The job that this process belongs to: launcher, scheduler, ranks."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

JOB_VARIABLE = "WATTLOOP_JOB"
"""Environment variable with the job whose devices are already counted; set for every measured
child."""
RUN_VARIABLE = "WATTLOOP_RUN"
"""Environment variable with the run that a measured child lies in."""
CLAIM_SEPARATOR = ";"


class Job(NamedTuple):
    """A job: several processes that do one piece of work.

    Attributes:
        job_id: the same in every process of the job.
        kind: its source: `wattloop`, `torchrun`, `mpi`, `slurm`, `user` or `torch`; of pools
            `ray`, `joblib` or `multiprocessing`.
        rank, local_rank, world_size: position in the job; None where unknown.
        scheduler: facts from Slurm or OAR (array, partition, project, exclusivity).
        claim: name of the devices' lock; ranks that see different GPUs have one each.
    """

    job_id: str
    kind: str
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    scheduler: Mapping[str, str] = MappingProxyType({})
    claim: str = ""

    @property
    def claim_name(self) -> str:
        """Return the name of the node lock of this process, as in `WATTLOOP_JOB`."""
        return self.claim or self.job_id

    def for_devices(self, left_out: Sequence[str]) -> "Job":
        """Return the job of a rank that sees some GPUs: it counts with ranks that see them."""
        if not left_out or self.kind == "wattloop":
            return self
        return self._replace(claim=f"{self.job_id}{CLAIM_SEPARATOR}{','.join(left_out)}")

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.job_id,
            "kind": self.kind,
            "rank": self.rank,
            "local_rank": self.local_rank,
            "world_size": self.world_size,
            "scheduler": dict(self.scheduler),
        }


def job_from_environment(environment: Mapping[str, str] | None = None) -> Job | None:
    """Return the job described by the environment of this process, if any."""
    env = os.environ if environment is None else environment
    scheduler = scheduler_facts(env)
    ranks = _ranks(env)
    for kind, name in _job_names(env):
        if name:
            job_id = name.partition(CLAIM_SEPARATOR)[0] if kind == "wattloop" else name
            return Job(job_id, kind, *ranks, scheduler=scheduler, claim=name)
    return None


def current_job(environment: Mapping[str, str] | None = None) -> Job | None:
    """Return the job of this process from the environment or from torch.distributed."""
    job = job_from_environment(environment)
    return _torch_ranks() if job is None else job


def current_pool(environment: Mapping[str, str] | None = None) -> Job | None:
    """Return the worker pool of this process: of Ray, joblib or multiprocessing.

    Workers begin and end measurements independently: each counts only what no other run counts.
    """
    env = os.environ if environment is None else environment
    named = _ray_pool(env) or _parent_pool()
    if named is None:
        return None
    kind, job_id = named
    return Job(job_id, kind, scheduler=scheduler_facts(env))


def enter_job(run_id: str) -> None:
    """Make processes started from now on part of this run."""
    os.environ[JOB_VARIABLE] = run_id
    os.environ[RUN_VARIABLE] = run_id


def leave_job(run_id: str) -> None:
    """End `enter_job`: processes started from now on are not part of this run."""
    for variable in (JOB_VARIABLE, RUN_VARIABLE):
        if os.environ.get(variable) == run_id:
            del os.environ[variable]


def scheduler_facts(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the facts that the batch system provides."""
    facts = {
        name: environment[variable]
        for name, variable in _SCHEDULER_VARIABLES
        if environment.get(variable)
    }
    if facts and "scheduler" not in facts:
        facts["scheduler"] = "oar" if "OAR_JOB_ID" in environment else "slurm"
    if "nodes" in facts and "exclusive" not in facts and facts.get("scheduler") == "slurm":
        exclusive = _slurm_exclusive(environment)
        if exclusive is not None:
            facts["exclusive"] = exclusive
    return facts


_SCHEDULER_VARIABLES = (
    ("job", "SLURM_JOB_ID"),
    ("job", "OAR_JOB_ID"),
    ("array_job", "SLURM_ARRAY_JOB_ID"),
    ("array_task", "SLURM_ARRAY_TASK_ID"),
    ("array_job", "OAR_ARRAY_ID"),
    ("array_task", "OAR_ARRAY_INDEX"),
    ("cluster", "SLURM_CLUSTER_NAME"),
    ("cluster", "OAR_CLUSTER"),
    ("partition", "SLURM_JOB_PARTITION"),
    ("partition", "OAR_QUEUE"),
    ("project", "SLURM_JOB_ACCOUNT"),
    ("project", "OAR_PROJECT_NAME"),
    ("name", "SLURM_JOB_NAME"),
    ("name", "OAR_JOB_NAME"),
    ("user", "SLURM_JOB_USER"),
    ("nodes", "SLURM_JOB_NUM_NODES"),
    ("node", "SLURMD_NODENAME"),
    ("exclusive", "SLURM_EXCLUSIVE"),
    ("cpus_on_node", "SLURM_CPUS_ON_NODE"),
    ("gpus_on_node", "SLURM_GPUS_ON_NODE"),
)


def _slurm_exclusive(environment: Mapping[str, str]) -> str | None:
    """Return True if the job holds every CPU of its node."""
    held = environment.get("SLURM_CPUS_ON_NODE")
    if held is None or not held.isdigit():
        return None
    return "yes" if int(held) >= (os.cpu_count() or 0) else "no"


def _job_names(env: Mapping[str, str]) -> list[tuple[str, str | None]]:
    slurm = env.get("SLURM_JOB_ID")
    step = env.get("SLURM_STEP_ID")
    return [
        ("wattloop", env.get(JOB_VARIABLE)),
        ("torchrun", _torchrun_name(env)),
        ("mpi", env.get("OMPI_MCA_ess_base_jobid") or env.get("PMIX_NAMESPACE")),
        ("mpi", env.get("PMI_JOBID") or env.get("HYDI_CONTROL_FD")),
        ("slurm", f"{slurm}.{step}" if slurm and step else None),
        ("user", _plain_ranks_name(env)),
    ]


def _torchrun_name(env: Mapping[str, str]) -> str | None:
    run = env.get("TORCHELASTIC_RUN_ID")
    if run is None:
        return None
    # torchrun calls every run "none" by default; the address of its store distinguishes them.
    return f"{run}-{env.get('MASTER_ADDR', '')}-{env.get('MASTER_PORT', '')}"


def _plain_ranks_name(env: Mapping[str, str]) -> str | None:
    # Lightning's own launcher sets LOCAL_RANK and no RANK.
    ranked = env.get("RANK") or env.get("LOCAL_RANK")
    if ranked and env.get("WORLD_SIZE") and env.get("MASTER_PORT"):
        return f"ranks-{env.get('MASTER_ADDR', '')}-{env['MASTER_PORT']}"
    return None


def _torch_ranks() -> Job | None:
    """Return ranks that the program started itself, as with `torch.multiprocessing.spawn`."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    env = os.environ
    pool = _parent_pool()
    if env.get("MASTER_PORT"):
        job_id = f"ranks-{env.get('MASTER_ADDR', '')}-{env['MASTER_PORT']}"
    elif pool is not None:
        job_id = f"ranks-{pool[1]}"
    else:
        return None
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    local_rank = _first(env, "LOCAL_RANK")
    return Job(job_id, "torch", rank, local_rank, world_size, scheduler=scheduler_facts(env))


def _ray_pool(env: Mapping[str, str]) -> tuple[str, str] | None:
    ray = sys.modules.get("ray")
    if ray is None or not env.get("RAY_RAYLET_PID"):  # not a worker
        return None
    try:
        return "ray", f"ray-{ray.get_runtime_context().get_job_id()}-{env['RAY_RAYLET_PID']}"
    except Exception:  # noqa: BLE001 - versions of Ray differ; the run is counted all the same
        return None


def _parent_pool() -> tuple[str, str] | None:
    """Return the pool of a worker of multiprocessing (and of joblib), which knows its parent."""
    process = sys.modules.get("multiprocessing.process")
    parent = None if process is None else process.parent_process()
    if process is None or parent is None:
        return None
    kind = "joblib" if "Loky" in process.current_process().name else "multiprocessing"
    return kind, f"{kind}-{socket.gethostname()}-{parent.pid}"


def _ranks(env: Mapping[str, str]) -> tuple[int | None, int | None, int | None]:
    rank = _first(env, "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
    local = _first(
        env, "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"
    )
    world = _first(env, "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
    return rank, local, world


def _first(env: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        text = env.get(name)
        if text is not None and text.isdigit():
            return int(text)
    return None
