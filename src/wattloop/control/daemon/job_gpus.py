"""Jobs and the GPUs they have on this node: a file that the node agent writes for the daemon.

`{"jobs": [{"job": "1234", "uid": 1000, "gpus": [0, 1]}]}`, written by root. What a user says of
their own GPUs (`CUDA_VISIBLE_DEVICES`) proves nothing; this does.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from wattloop.control.daemon.trusted_file import read_trusted
from wattloop.core.errors import ConfigError
from wattloop.core.files import atomic_write_json


class JobGpus(NamedTuple):
    """The GPUs of one job on this node, by their numbers here."""

    job: str
    uid: int
    gpus: tuple[int, ...]


def write_job_gpus(path: Path, jobs: Iterable[JobGpus]) -> None:
    """Write the file atomically, readable by all, writable by its owner only."""
    data = {"jobs": [{"job": j.job, "uid": j.uid, "gpus": list(j.gpus)} for j in jobs]}
    atomic_write_json(path, data, mode=0o644)


def read_job_gpus(path: Path) -> list[JobGpus]:
    """Return the jobs in the file, if it exists. Raises ConfigError if it is not trusted."""
    try:
        data = json.loads(read_trusted(path))
        return [
            JobGpus(str(job["job"]), int(job["uid"]), tuple(int(gpu) for gpu in job["gpus"]))
            for job in data["jobs"]
        ]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f"{path}: not a list of jobs and GPUs: {error}") from None


def gpus_of(jobs: Iterable[JobGpus], uid: int) -> set[int]:
    return {gpu for owned in jobs if owned.uid == uid for gpu in owned.gpus}
