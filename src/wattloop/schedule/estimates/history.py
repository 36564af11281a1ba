"""History of jobs: time and power of earlier jobs of the same user and name, from the store."""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import select

from wattloop.core.cache import LruCache
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import RunStatus
from wattloop.core.units import format_duration, format_power
from wattloop.store.database import Store
from wattloop.store.runs import RunRecord, read_record
from wattloop.store.schema import runs

FEWEST_RUNS = 3
"""Fewest jobs for an estimate."""
MOST_RUNS = 60
"""Number of newest runs that are used, because jobs change."""
KEPT_S = 60.0
MOST_KEPT = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRuns:
    """Statistics of finished jobs of one user and name on a number of GPUs.

    Attributes:
        time_s: median; `time_low_s` and `time_high_s` bound the middle 80%.
        gpu_w: mean power of one GPU (scope: gpu); None where no GPU was measured.
        provenance: weakest provenance of that power.
    """

    jobs: int
    gpus: int
    time_s: float
    time_low_s: float
    time_high_s: float
    gpu_w: float | None = None
    gpu_low_w: float | None = None
    gpu_high_w: float | None = None
    provenance: str = ""

    @property
    def text(self) -> str:
        power = "GPU power unknown: taken as the limit"
        if self.gpu_w is not None:
            power = f"{format_power(self.gpu_w)} per GPU, {self.provenance}"
        return (
            f"history: {self.jobs} jobs of this name on {self.gpus} GPUs, median "
            f"{format_duration(self.time_s)} ({format_duration(self.time_low_s)} to "
            f"{format_duration(self.time_high_s)}), {power}"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class History:
    """Past jobs of a store, cached for a minute, because a queue repeats the same queries."""

    def __init__(self, store: Store, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._past: LruCache[tuple[str, str], list[_Past]] = LruCache(MOST_KEPT, KEPT_S, now_s)

    def of(self, user: str, name: str, gpus: int) -> PastRuns | None:
        """Return the statistics of such jobs on `gpus` GPUs; None when there are too few."""
        if not user or not name:
            return None
        past = [job for job in self._jobs(user, name) if job.gpus == gpus]
        if len(past) < FEWEST_RUNS:
            return None
        times = [job.time_s for job in past]
        powers = [job.gpu_w for job in past if job.gpu_w is not None]
        low_s, high_s = _middle(times)
        low_w, high_w = _middle(powers) if powers else (None, None)
        return PastRuns(
            jobs=len(past),
            gpus=gpus,
            time_s=statistics.median(times),
            time_low_s=low_s,
            time_high_s=high_s,
            gpu_w=statistics.fmean(powers) if powers else None,
            gpu_low_w=low_w,
            gpu_high_w=high_w,
            provenance=Provenance.weakest(job.provenance for job in past if job.provenance).value
            if powers
            else "",
        )

    def _jobs(self, user: str, name: str) -> "list[_Past]":
        known = self._past.get((user, name))
        if known is None:
            known = self._past.put((user, name), _past_jobs(self._store, user, name))
        return known


@dataclass(frozen=True, slots=True)
class _Past:
    gpus: int
    time_s: float
    gpu_w: float | None
    provenance: Provenance | None


def _past_jobs(store: Store, user: str, name: str) -> list[_Past]:
    query = (
        select(runs.c.body)
        .where(
            runs.c.name == name,
            runs.c.user_name == user,
            runs.c.status == RunStatus.FINISHED.value,
            runs.c.counted,
            runs.c.parent_run_id.is_(None),
        )
        .order_by(runs.c.started_wall_s.desc())
        .limit(MOST_RUNS)
    )
    with store.reading() as connection:
        records = [read_record(body) for body in connection.execute(query).scalars()]
    jobs: dict[str, dict[str, RunRecord]] = {}
    for record in records:  # newest first: of a repeated job, the last run counts
        job = jobs.setdefault(str((record.job or {}).get("id") or record.run_id), {})
        job.setdefault(record.host, record)
    return [past for nodes in jobs.values() if (past := _past([*nodes.values()])) is not None]


def _past(members: list[RunRecord]) -> _Past | None:
    """Combine the runs of one job, one on each node."""
    time_s = max((record.duration_s or 0.0) for record in members)
    if time_s <= 0:
        return None
    read = [
        domain
        for record in members
        if record.result is not None
        for domain in record.result.scope_domains(Scope.GPU)
    ]
    if not read:
        return _Past(0, time_s, None, None)
    power_w = sum(domain.energy_j or 0.0 for domain in read) / time_s / len(read)
    return _Past(len(read), time_s, power_w, Provenance.weakest(d.provenance for d in read))


def _middle(values: list[float]) -> tuple[float, float]:
    """Return the bounds of the middle 80%."""
    if len(values) < 2:
        return values[0], values[0]
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return cuts[0], cuts[-1]
