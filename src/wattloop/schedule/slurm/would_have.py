"""What a policy would have done, beside what Slurm did."""

from dataclasses import dataclass
from typing import Any

from wattloop.schedule.slurm.live_view import LiveView
from wattloop.schedule.slurm.plan import PlannedStart
from wattloop.schedule.slurm.site import Site
from wattloop.schedule.slurm.snapshot import Snapshot

__all__ = ["WouldHave", "WouldHaveTable"]

MOST_KEPT = 5_000


@dataclass(slots=True)
class WouldHave:
    """One job.

    Attributes:
        would_s: when the policy would have started it, seconds since 1970; None for not yet, or
            when Slurm started it between two looks.
        nodes, gpus, cap_w: where and how; the cap is None where the policy sets none.
        time_s, gpu_energy_j: believed of that placement (scope: its GPUs).
        source: of the belief.
        began_s: when Slurm started it; None for not yet.
    """

    key: str
    user: str
    name: str
    submit_s: float
    source: str = ""
    would_s: float | None = None
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    cap_w: float | None = None
    time_s: float | None = None
    gpu_energy_j: float | None = None
    began_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


class WouldHaveTable:
    """Jobs by arrival; the oldest go when there are many.

    Args:
        site: what is ours.
        sets_caps: the policy chooses power limits.
        since_s: jobs that Slurm started earlier are not listed, seconds since 1970.
    """

    def __init__(self, site: Site, *, sets_caps: bool, since_s: float) -> None:
        self.site, self._sets_caps, self._since_s = site, sets_caps, since_s
        self.rows: dict[str, WouldHave] = {}

    def look(self, snapshot: Snapshot) -> None:
        """Take note of jobs that wait or have begun."""
        begun = [job for job in snapshot.running if job.start_s >= self._since_s]
        for job in (*snapshot.waiting, *begun):
            if job.key not in self.rows:
                said = self.site.believed.of(job)
                self.rows[job.key] = WouldHave(
                    job.key, job.user, job.name, job.submit_s, said.source.value
                )
        for job in snapshot.running:
            row = self.rows.get(job.key)
            if row is not None and row.began_s is None:
                row.began_s = job.start_s
        while len(self.rows) > MOST_KEPT:
            del self.rows[next(iter(self.rows))]

    def add(self, live: LiveView, start: PlannedStart) -> bool:
        """The policy would start a job now; whether that is news."""
        row = self.rows.get(live.jobs[start.job].key)
        if row is None or row.would_s is not None:
            return False
        queue = live.view.queue
        work = live.view.running[start.job].work_at_start
        estimates = queue.estimates_for(start.job, work)
        row.would_s = live.view.now_s
        row.nodes = tuple(self.site.known.names[node] for node, _ in start.nodes)
        row.gpus = int(estimates.gpus[start.option])
        if self._sets_caps:
            row.cap_w = float(estimates.options.cap_w[start.option])
        row.time_s = float(estimates.time_s[start.option])
        row.gpu_energy_j = row.time_s * float(estimates.power_w[start.option])
        return True
