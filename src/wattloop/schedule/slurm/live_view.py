"""Slurm's cluster as the view that policies know from the simulator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.schedule.described.fleet_oracle import FleetOracle
from wattloop.schedule.described.timed import is_timed, timed_model
from wattloop.schedule.engine.machines import Machines, Nodes
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.queue import Queue
from wattloop.schedule.running import Running
from wattloop.schedule.slurm.job_record import SlurmJob
from wattloop.schedule.slurm.late_starts import seat_coming
from wattloop.schedule.slurm.live_running import loss_of, noted_cap_w, running_of
from wattloop.schedule.slurm.occupied import occupied
from wattloop.schedule.slurm.opened import Opened
from wattloop.schedule.slurm.seats import Seats
from wattloop.schedule.slurm.site import Site
from wattloop.schedule.slurm.snapshot import Snapshot
from wattloop.schedule.use import Use
from wattloop.schedule.view import ClusterView

__all__ = ["LiveView", "live_view"]

ROUND_S = 2.0
"""How long before a budget falls the driver acts: its rounds are a second apart and take time."""
NEVER = 1_000_000
"""Preemptions of a job that nobody may stop: more than any policy allows."""
NOBODY: Mapping[str, float] = MappingProxyType({})


@dataclass(slots=True)
class LiveView:
    """A view, what its numbers mean in Slurm, and the machines behind it.

    Attributes:
        view: for the policy. Numbers of jobs hold for this round.
        jobs: by number.
        machines: who has what; changed while a round is planned.
        coming: numbers of jobs that were let through and have not begun.
        untouchable: numbers of running jobs that are not ours to stop, cannot be requeued, or
            have not begun.
    """

    view: ClusterView
    jobs: list[SlurmJob]
    machines: Machines
    coming: frozenset[int]
    untouchable: frozenset[int]


class _Rows:
    """Jobs while they are numbered."""

    def __init__(self, oracle: FleetOracle) -> None:
        self.oracle = oracle
        self.kinds: dict[JobKind, int] = {}
        self.users: dict[str, int] = {}
        self.kind: list[int] = []
        self.work: list[float] = []
        self.deadline_s: list[float] = []

    def add(self, kind: JobKind, work: float, deadline_s: float) -> None:
        self.kind.append(self.kinds.setdefault(kind, len(self.kinds)))
        self.work.append(work)
        self.deadline_s.append(deadline_s)


def live_view(
    snapshot: Snapshot,
    site: Site,
    *,
    is_up: Sequence[bool],
    opened: Mapping[str, Opened],
    use_gpu_s: Mapping[str, float],
    now_s: float,
    set_aside: Mapping[str, float] = NOBODY,
) -> LiveView:
    """Build the view of one moment.

    Args:
        snapshot: the jobs.
        site: what does not change from round to round.
        is_up: of every node.
        opened: what was let through, and to where.
        use_gpu_s: what users have had in jobs that ended.
        now_s: seconds since 1970.
        set_aside: job -> until when it is not offered, as Slurm would not start it.
    """
    known, believed, oracle = site.known, site.believed, site.oracle
    seats = Seats(known)
    seated = {job.key: seats.take(job.placed) for job in (*snapshot.running, *snapshot.ending)}
    coming_jobs, late = seat_coming(snapshot.coming, opened, seats, seated)
    waiting = [job for job in (*snapshot.waiting, *late) if set_aside.get(job.key, 0.0) <= now_s]
    listed = sorted(
        [*waiting, *coming_jobs, *snapshot.running], key=lambda job: (job.submit_s, _id(job))
    )
    cluster, rows = known.cluster, _Rows(oracle)
    places: dict[int, Nodes] = {}
    waits, coming = set[int](), set[int]()
    keys_waiting, keys_coming = {j.key for j in waiting}, {j.key for j in coming_jobs}
    for number, job in enumerate(listed):
        said = believed.of(job)
        deadline_s = job.submit_s + said.deadline_s
        if job.key in keys_waiting:
            waits.add(number)
            rows.add(*_offered(oracle, said.kind, said.work, job), deadline_s)
            continue
        if job.key in keys_coming:
            coming.add(number)
        nodes = seated[job.key]
        places[number] = nodes
        gpus = sum(mask.bit_count() for _, mask in nodes) or max(job.gpus, 1)
        type_index = cluster.node_types[nodes[0][0]] if nodes else 0
        kind = believed.running(job, gpus, type_index)
        rows.add(*_offered(oracle, kind, said.work, job), deadline_s)
    users = {name: number for number, name in enumerate(sorted({job.user for job in listed}))}
    table = JobTable(
        kinds=tuple(rows.kinds),
        users=tuple(users),
        arrival_s=np.array([job.submit_s for job in listed], dtype=np.float64),
        kind=np.array(rows.kind, dtype=np.int64),
        user=np.array([users[job.user] for job in listed], dtype=np.int64),
        work=np.array(rows.work, dtype=np.float64),
        deadline_s=np.array(rows.deadline_s, dtype=np.float64),
        priority=np.zeros(len(listed), dtype=np.int64),
        names=tuple(job.key for job in listed),
    )
    queue = Queue(table, oracle, [each.idle_w for each in cluster.types])
    for number in sorted(waits):
        queue.add(number, rows.work[number])
    machines = occupied(cluster, seats.taken, is_up)
    use = Use(len(users))
    for name, gpu_s in use_gpu_s.items():
        if name in users:
            use.start(users[name], 1, -gpu_s)
            use.stop(users[name], 1, 0.0)
    running: dict[int, Running] = {}
    for number, nodes in places.items():
        job = listed[number]
        cap_w = opened[job.key].cap_w if job.key in opened else noted_cap_w(job)
        running[number] = found = running_of(
            queue.options(number), number, job, nodes, cap_w, rows.work[number], known, now_s
        )
        use.start(users[job.user], found.gpus, found.started_s)
    untouchable = frozenset(
        number
        for number in running
        if number in coming
        or listed[number].partition not in site.managed
        or not listed[number].may_requeue
    )
    view = ClusterView(
        cluster=cluster,
        jobs=table,
        queue=queue,
        free=machines.free,
        running=running,
        use=use,
        budget_w=site.budget_w,
        power_error=oracle.power_error,
        time_error=oracle.time_error,
        loss=loss_of(untouchable, now_s),
        preemptions=[
            NEVER if number in untouchable else job.restarts for number, job in enumerate(listed)
        ],
        is_up=machines.is_up,
        round_s=ROUND_S,
        now_s=now_s,
    )
    return LiveView(view, listed, machines, frozenset(coming), untouchable)


def _offered(
    oracle: FleetOracle, kind: JobKind | None, work: float, job: SlurmJob
) -> tuple[JobKind, float]:
    """The kind if the oracle can say something of it now, else its time limit."""
    if kind is not None:
        try:
            options = oracle.soon(kind)
            if options is not None and len(options):
                return kind, work
        except ConfigError:
            pass
    gpus = kind.gpus if kind is not None else (max(job.gpus, 1),)
    types = kind.types if kind is not None else ()
    timed = JobKind(
        model=timed_model(),
        gpus=(gpus[-1],) if kind is None or not is_timed(kind) else gpus,
        types=types,
        may_spread=kind.may_spread if kind is not None else False,
    )
    return timed, job.time_limit_s or work or 86_400.0


def _id(job: SlurmJob) -> tuple[int, int]:
    number, _, task = job.key.partition("_")
    return int(number), int(task or 0)
