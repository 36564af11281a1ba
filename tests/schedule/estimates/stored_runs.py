"""Runs of jobs as in a fleet's store."""

from typing import Any

from tests.store.test_job_queries import record
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, WindowResult


def job_run(number: int, seconds: float, watts: float, gpus: int = 2, **changes: Any) -> Any:
    """Return a run of a job by its number, with its length and the watts of each of its GPUs."""
    domains = tuple(
        DomainEnergy(
            f"gpu:{i}", Scope.GPU, watts * seconds, 1.0, Provenance.SIMULATED, "virtual"
        )
        for i in range(gpus)
    )  # fmt: skip
    result = WindowResult("run", 0, None, 0.0, seconds, domains)
    usual = {"name": "train", "user": "ada", "result": result, "ended_s": seconds}
    return record(number, **{**usual, **changes})
