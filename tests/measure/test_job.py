"""Promises of job detection: launchers and schedulers are recognised by their variables."""

import os

import pytest

from wattloop.measure.job import job_from_environment, scheduler_facts


def test_plain_process_has_no_job() -> None:
    """An empty environment, or PATH alone, is not a job."""
    assert job_from_environment({"PATH": "/bin"}) is None


def test_torchrun_ranks_share_a_job() -> None:
    """Two ranks of one torchrun agree; another torchrun on the node is another job."""
    common = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    first = job_from_environment({**common, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"})
    second = job_from_environment({**common, "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"})
    other = job_from_environment({**common, "MASTER_PORT": "29501"})
    assert first is not None
    assert second is not None
    assert other is not None
    assert first.job_id == second.job_id != other.job_id
    assert (second.kind, second.rank, second.local_rank, second.world_size) == ("torchrun", 1, 1, 2)


@pytest.mark.parametrize(
    ("environment", "kind", "rank", "local_rank"),
    [
        (
            {
                "PMIX_NAMESPACE": "prterun-n1-7@1",
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            },
            "mpi",
            3,
            1,
        ),
        ({"PMI_JOBID": "kvs_1", "PMI_RANK": "2", "MPI_LOCALRANKID": "0"}, "mpi", 2, 0),
        (
            {
                "SLURM_JOB_ID": "9",
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "5",
                "SLURM_LOCALID": "1",
            },
            "slurm",
            5,
            1,
        ),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "user", 1, None),
    ],
)
def test_launchers_are_recognised(
    environment: dict[str, str], kind: str, rank: int, local_rank: int | None
) -> None:
    """Open MPI, MPICH, srun and hand-made ranks."""
    job = job_from_environment(environment)
    assert job is not None
    assert (job.kind, job.rank, job.local_rank) == (kind, rank, local_rank)


def test_child_of_a_measured_process_belongs_to_its_run() -> None:
    """The run that already counts comes first, whatever else the environment says."""
    job = job_from_environment({"WATTLOOP_JOB": "run-1", "TORCHELASTIC_RUN_ID": "x"})
    assert job is not None
    assert (job.kind, job.job_id) == ("wattloop", "run-1")


def test_batch_script_without_srun_is_not_a_job_of_ranks() -> None:
    """A Slurm allocation alone does not make its processes one job."""
    assert job_from_environment({"SLURM_JOB_ID": "9"}) is None


def test_scheduler_facts_of_slurm_and_oar() -> None:
    """Job, array, cluster, partition and project are recorded as the batch system names them."""
    slurm = scheduler_facts(
        {
            "SLURM_JOB_ID": "9",
            "SLURM_ARRAY_TASK_ID": "3",
            "SLURM_CLUSTER_NAME": "big",
            "SLURM_JOB_PARTITION": "gpu",
            "SLURM_JOB_ACCOUNT": "green",
        }
    )
    oar = scheduler_facts({"OAR_JOB_ID": "4", "OAR_PROJECT_NAME": "green"})
    assert slurm == {
        "job": "9",
        "array_task": "3",
        "cluster": "big",
        "partition": "gpu",
        "project": "green",
        "scheduler": "slurm",
    }
    assert oar == {"job": "4", "project": "green", "scheduler": "oar"}


@pytest.mark.parametrize(("cpus", "exclusive"), [(10_000, "yes"), (0, "no")])
def test_exclusivity_follows_from_the_cpus_held(cpus: int, exclusive: str) -> None:
    """A job that has every CPU of its node has it for itself."""
    facts = scheduler_facts(
        {"SLURM_JOB_ID": "9", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_ON_NODE": str(cpus)}
    )
    assert facts["exclusive"] == exclusive
    assert os.cpu_count()


def test_ranks_that_are_not_numbers_are_unknown() -> None:
    """Invalid values in the environment do not stop a measurement."""
    job = job_from_environment({"WATTLOOP_JOB": "j", "RANK": "zero", "LOCAL_RANK": "-1"})
    assert job is not None
    assert (job.rank, job.local_rank) == (None, None)
