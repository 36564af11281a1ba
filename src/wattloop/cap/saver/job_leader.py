"""One decision for a job with a `wattloop run --save` per node or per rank.

The run of rank 0 decides. It writes its setting to a small file that the others read and follow.
The file is written in place: a file system between nodes shows a file that was opened again as it
is, and a renamed one later. The leader holds a lease: its file changes every few seconds, or
followers restore.
"""

import json
import math
import os
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from wattloop.cap.saver.proof import Setting
from wattloop.core.errors import LeverError
from wattloop.measure.session import Session

BEAT_S = 2.0
LEASE_S = 15.0
RECORD_B = 1_024


class SavingJob(NamedTuple):
    """A job of several runs, and the rank of this one."""

    name: str
    rank: int


def job_of(session: Session, command: Sequence[str]) -> SavingJob | None:
    """Return the job that has more runs than this one, by its launcher; None for a single run."""
    job = session.job
    if job is not None and job.kind != "wattloop" and job.rank is not None:
        return SavingJob(_unique(job.job_id), job.rank) if (job.world_size or 1) > 1 else None
    return _torchrun_nodes(command)


def _torchrun_nodes(command: Sequence[str]) -> SavingJob | None:
    """Return the job of `torchrun --nnodes 2 --node-rank 1 ...`, started once per node."""
    given: dict[str, str] = {}
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, separator, value = word.partition("=")
        if name.startswith("--"):
            given.setdefault(name[2:].replace("_", "-"), value if separator else following)
    nodes, rank = given.get("nnodes", ""), given.get("node-rank", "")
    if not (nodes.isdigit() and int(nodes) > 1 and rank.isdigit()):
        return None
    parts = ("rdzv-id", "rdzv-endpoint", "master-addr", "master-port")
    name = "-".join(["torchrun", *(given.get(part, "") for part in parts)])
    return SavingJob(_unique(name), int(rank))


def _unique(name: str) -> str:
    """Return a name that jobs of different machines do not share, where the store is shared."""
    local = re.search(r"localhost|127\.0\.0\.1|::1", name)
    return f"{name}-{socket.gethostname()}" if local or not re.search(r"\d", name) else name


class JobLeader:
    """Writes the setting of a job for its followers.

    Raises:
        LeverError: from `set`, where a follower cannot set it.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self._path, self._run_id = path, run_id
        self._beats, self._beaten_s = 0, -math.inf
        self._setting: Setting | None = None
        self._closed = False
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for old in path.parent.glob(f"{path.stem}.*.refused"):
                old.unlink()

    def set(self, setting: Setting | None) -> None:
        self._setting = setting
        self._write()
        if setting is not None and (refusal := self._refusal()):
            raise LeverError(refusal)

    def beat(self, now_s: float) -> str:
        """Renew the lease when it is time; return why a follower cannot set it, or nothing."""
        if now_s < self._beaten_s + BEAT_S or self._closed:
            return ""
        self._beaten_s = now_s
        self._write()
        return self._refusal()

    def _refusal(self) -> str:
        for path in self._path.parent.glob(f"{self._path.stem}.*.refused"):
            with suppress(OSError):
                return path.read_text("utf-8", "replace")[:500]
        return ""

    def close(self) -> None:
        """End the lease: followers restore."""
        self._closed = True
        with suppress(OSError):
            self._path.unlink()

    def _write(self) -> None:
        self._beats += 1
        setting = None if self._setting is None else self._setting._asdict()
        data = {"run_id": self._run_id, "beat": self._beats, "setting": setting}
        with suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(file, json.dumps(data).encode().ljust(RECORD_B), 0)
            finally:
                os.close(file)


class JobFollower:
    """Reads the setting of a job's leader, while that lives."""

    def __init__(self, path: Path) -> None:
        self.run_id = ""
        self._path = path
        self._setting: Setting | None = None
        self._last: tuple[str, int] | None = None
        self._changed_s = -math.inf

    @property
    def silence(self) -> str:
        if self.run_id:
            return f"run {self.run_id} of its job, which decides, has set nothing"
        return (
            f"the run of its job's first rank, which decides, was not seen in "
            f"{self._path.parent}: all nodes need a store in a common folder, and --save"
        )

    def poll(self, now_s: float) -> Setting | None:
        """Return the leader's setting; None for the reference, and without a living leader."""
        try:
            data = json.loads(self._path.read_bytes())
            beat, given = (str(data["run_id"]), int(data["beat"])), data["setting"]
            self._setting = None if given is None else Setting(given["cap_w"], given["clock_mhz"])
        except OSError:
            return None  # the leader has ended
        except (ValueError, KeyError, TypeError):
            return self._leased(now_s)  # half written
        if self._last is None:
            self._last = beat  # may be left from a job that died
        if beat != self._last:
            self._last, self._changed_s = beat, now_s
            self.run_id = beat[0]
        return self._leased(now_s)

    def _leased(self, now_s: float) -> Setting | None:
        return self._setting if now_s - self._changed_s <= LEASE_S else None

    def refuse(self, why: str) -> None:
        """Tell the leader that its setting cannot be followed."""
        path = self._path.with_name(
            f"{self._path.stem}.{os.uname().nodename}-{os.getpid()}.refused"
        )
        with suppress(OSError):
            path.write_text(why, "utf-8")
