"""Power headroom under a budget, and packing that keeps it (thesis algorithm 8)."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.actions import Start
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.oracle import PlacementOptions, Shape
from wattloop.schedule.free_gpus import FreeGpus
from wattloop.schedule.objectives import ENERGY, Estimates, PlacementObjective
from wattloop.schedule.queue import Columns, JobQueue
from wattloop.schedule.view import ClusterView

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
SAFETY = 1e-6
"""Share of the budget that is not used, for rounding errors."""
DOUBT_PER_STOP = 0.05
"""Additional doubt of a job's power for each preemption without a decrease of the budget: it may
have drawn more than estimated.
"""


def _above_idle(estimates: Estimates) -> Floats:
    return estimates.power_w - estimates.idle_w


_buildable: WeakKeyDictionary[JobQueue, Bools] = WeakKeyDictionary()
"""Queue -> shapes for which the whole cluster has the GPUs."""
ABOVE_IDLE = PlacementObjective("power above idle", _above_idle, degree=0)
"""Power that a start adds if the estimate is exact; with its largest error it adds more."""


class Headroom:
    """Available power, reduced by the decisions of a round.

    Promise: if every start and recap stays within the headroom, the cluster never exceeds its
    budget, as long as true power exceeds estimates by no more than the oracle states.

    Running jobs count as measured and as endless; failed nodes count as repaired. A job to be
    started or recapped counts with the largest error of its estimate, up to the factory limits of
    its GPUs.
    """

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self.drawn_w = view.power_w + _away_w(view.cluster, view.is_up)
        self._busy_w = _busy_w_per_gpu(view.cluster)
        self._added_w: dict[tuple[int, int], Floats] = {}
        self._budget_w = view.budget_w.at(view.now_s)
        self._is_stepped = math.isfinite(view.budget_w.next_change_s(view.now_s))

    def now_w(self) -> float:
        """Return the power that may be added now."""
        return self._budget_w * (1 - SAFETY) - self.drawn_w

    def alone_w(self) -> float:
        """Return the power that could be added now if nothing ran."""
        return self._budget_w * (1 - SAFETY) - self._view.cluster.idle_w

    def until_w(self, end_s: float) -> float:
        """Return the power that may be added until a time: by the least budget until then."""
        view = self._view
        return view.budget_w.least(view.now_s, end_s) * (1 - SAFETY) - self.drawn_w

    def added_w(self, job: int, estimates: Estimates) -> Floats:
        """Return the most power that each option of a waiting job adds, hosts included."""
        queue, stops = self._view.queue, self.unexplained_stops(job)
        # Jobs of a kind are equal if estimates are exact.
        alike = (queue.kind_of[job] if queue.is_exact else -1 - job, stops)
        if alike not in self._added_w:
            options = queue.options(job)
            hosts_w = self._busy_w[options.type_index] * options.gpus
            worst = worst_w(self._view, options, estimates, 1 + DOUBT_PER_STOP * stops)
            self._added_w[alike] = worst - estimates.idle_w + hosts_w
        return self._added_w[alike]

    def keeps(self, job: int, estimates: Estimates) -> Bools:
        """Return the options of a waiting job that keep all budgets until its end."""
        added_w = self.added_w(job, estimates)
        if not self._is_stepped:
            return added_w <= self.now_w()
        times_s, least_w = self._least
        end_s = self._view.now_s + self._longest_s(job, estimates)
        # `least_w` begins with the budget of now
        budget_w = least_w[np.searchsorted(times_s, end_s, side="right") - 1]
        found: Bools = added_w <= budget_w * (1 - SAFETY) - self.drawn_w
        return found

    def surely_w(self) -> float:
        """Return the power that may be added for ever: by the least of all future budgets."""
        if not self._is_stepped:
            return self.now_w()
        return float(self._least[1][-1]) * (1 - SAFETY) - self.drawn_w

    def keeps_for(self, added_w: float, occupied_s: float) -> bool:
        """Return True if this power for this time keeps all budgets: `keeps` for one option."""
        if not self._is_stepped:
            return added_w <= self.now_w()
        times_s, least_w = self._least_lists
        place = bisect_right(times_s, self._view.now_s + occupied_s) - 1
        return added_w <= least_w[place] * (1 - SAFETY) - self.drawn_w

    def may_start(self, job: int, estimates: Estimates) -> Bools:
        """Return the options that may start: those that keep all budgets until their end.

        A job that is too long for every interval between two decreases of the budget would wait for
        ever. It may start where it makes progress before the budget falls and it is preempted.
        """
        found = self.keeps(job, estimates)
        if not self._is_stepped:
            return found
        if (found & self.has_gpus(job)).any() or self.fits_in_one_go(job, estimates):
            return found
        added_w = self.added_w(job, estimates)
        found = added_w <= self.now_w()
        for option in np.flatnonzero(found).tolist():
            lasts_s = self._lasts_s(self.drawn_w + float(added_w[option]))
            found[option] = self._makes_progress(estimates, option, lasts_s)
        return found

    def hopeless(self, job: int, estimates: Estimates, here: Bools) -> tuple[float, float]:
        """Return the range of work for which a similar job finds no power in this round either.

        Args:
            job: a job that may not start on any of the options.
            estimates: its exact estimates.
            here: options with free GPUs.
        """
        if not (self.added_w(job, estimates)[here] <= self.now_w()).any():
            return 0.0, math.inf
        work = self._view.queue.work(job)
        if not self.fits_in_one_go(job, estimates):
            return work, math.inf
        # A longer job may run in parts, where this one waits for a long enough interval.
        if self._view.preemption.pauses:
            return work, work
        room_s = self._room_s(job, estimates)
        nothing_s = self._view.occupied_s(job, np.zeros(1))[0]
        sample_s = np.maximum(estimates.options.sample_s, 1e-12)
        most = (room_s - nothing_s) / sample_s
        return work, max(work, float(most.max()) * (1 - SAFETY))

    def fits_in_one_go(self, job: int, estimates: Estimates) -> bool:
        """Return True if a job fits between two decreases of the budget, if alone."""
        room_s = self._room_s(job, estimates)
        return bool(np.any((room_s > 0) & (self._longest_s(job, estimates) <= room_s)))

    def can_ever(self, job: int, estimates: Estimates) -> Bools:
        """Return the options of a waiting job that could ever run within the budget, if alone."""
        room_s = self._room_s(job, estimates)
        found: Bools = (room_s > 0) & (self._longest_s(job, estimates) <= room_s)
        if not found.any():
            for option in np.flatnonzero(room_s > 0).tolist():
                found[option] = self._makes_progress(estimates, option, float(room_s[option]))
        return found

    def why_never(self, job: int) -> str:
        """Return why a waiting job can never run within the budget, even alone; empty if it can."""
        view = self._view
        estimates = view.queue.estimates(job)
        if self.can_ever(job, estimates).any():
            return ""
        room_s, longest_s = self._room_s(job, estimates), self._longest_s(job, estimates)
        if not np.any(room_s > 0):
            least_w = float(self.added_w(job, estimates)[room_s >= 0].min())
            most_w = max(budget_w for _, budget_w in view.budget_w.changes(view.now_s))
            doubt = f" at worst (estimates +{view.power_error:.0%})" if view.power_error else ""
            left_w = max(most_w - view.cluster.idle_w, 0.0)
            return f"adds {least_w:.0f} W or more{doubt}, the budget leaves {left_w:.0f} W at most"
        best = int(np.argmax(room_s / np.maximum(longest_s, 1e-9)))
        return (
            f"takes up to {longest_s[best]:.0f} s, the budget has power for {room_s[best]:.0f} s "
            "in one go, and a job that is stopped then has kept nothing"
        )

    def start(self, job: int, option: int) -> None:
        """Subtract the most that a waiting job adds."""
        self.drawn_w += float(self.added_w(job, self._view.queue.estimates(job))[option])

    def stop(self, job: int) -> None:
        """Add the power that a running job will no longer draw."""
        running = self._view.running[job]
        idle_w = running.gpus * self._view.cluster.types[running.type_index].idle_w
        self.drawn_w -= max(running.power_w - idle_w, 0.0)

    @cached_property
    def _least(self) -> tuple[Floats, Floats]:
        """Times from now on, and the least budget from now until the step that begins then."""
        steps = self._view.budget_w.changes(self._view.now_s)
        times_s, budgets_w = np.array(steps).T
        return times_s, np.minimum.accumulate(budgets_w)

    @cached_property
    def _least_lists(self) -> tuple[list[float], list[float]]:
        """`_least` as lists, which are faster to read one by one."""
        return self._least[0].tolist(), self._least[1].tolist()

    def _longest_s(self, job: int, estimates: Estimates) -> Floats:
        """Return the longest time that each option of a waiting job occupies GPUs."""
        view = self._view
        return view.occupied_s(job, estimates.time_s * (1 + view.time_error))

    def _room_s(self, job: int, estimates: Estimates) -> Floats:
        """Return the longest uninterrupted time of each option if alone; -1 without the GPUs."""
        view = self._view
        levels_w, room_s = self._room_by_level
        needed_w = (view.cluster.idle_w + self.added_w(job, estimates)) / (1 - SAFETY)
        found = room_s[np.searchsorted(levels_w, needed_w)]
        return np.where(self.has_gpus(job), found, -1.0)

    @cached_property
    def _room_by_level(self) -> tuple[Floats, Floats]:
        """Levels of the budget, and the longest uninterrupted time of each; 0 above all of them.

        A job starts at the first round after an increase of the budget.
        """
        view = self._view
        levels_w = sorted({budget_w for _, budget_w in view.budget_w.changes(view.now_s)})
        room_s = [view.budget_w.longest_s(view.now_s, each) - view.round_s for each in levels_w]
        return np.array(levels_w), np.array([*(max(each_s, 0.0) for each_s in room_s), 0.0])

    def has_gpus(self, job: int) -> Bools:
        """Return the options of a job for which the whole cluster has the GPUs."""
        queue = self._view.queue
        if queue not in _buildable:
            built = FreeGpus.of_all(self._view.cluster)
            _buildable[queue] = np.array([built.fits(shape) for shape in queue.shapes], dtype=bool)
        return _buildable[queue][queue.shape_of(job)]

    def _lasts_s(self, drawn_w: float) -> float:
        """Return how long this power is within the budget."""
        for time_s, budget_w in self._view.budget_w.changes(self._view.now_s):
            if budget_w * (1 - SAFETY) < drawn_w:
                return time_s - self._view.now_s
        return math.inf

    def _makes_progress(self, estimates: Estimates, option: int, lasts_s: float) -> bool:
        """Return True if a job that may run for this time keeps some progress."""
        view = self._view
        step_s = float(estimates.options.step_s[option]) * (1 + view.time_error)
        # It is preempted at the last round before the decrease.
        lasts_s -= view.start_latency_s + view.round_s
        return view.preemption.makes_progress(lasts_s, step_s)

    def unexplained_stops(self, job: int) -> int:
        """Return the preemptions of a job that no decrease of the budget explains."""
        view = self._view
        stops = view.preemptions[job]
        if not stops or not self._is_stepped:
            return stops
        return max(stops - view.budget_w.falls(float(view.jobs.arrival_s[job]), view.now_s), 0)


def worst_w(
    view: ClusterView, options: PlacementOptions, estimates: Estimates, doubt: float = 1.0
) -> Floats:
    """Return the most power of each option's GPUs, times `doubt`."""
    tdp_w = np.array([each.tdp_w for each in view.cluster.types])
    limit_w = tdp_w[options.type_index] * options.gpus
    worst: Floats = estimates.power_w * (1 + view.power_error) * doubt
    return np.minimum(worst, np.maximum(limit_w, estimates.power_w))


def _away_w(cluster: Cluster, is_up: Sequence[bool]) -> float:
    """Return the idle power of failed nodes, which they draw once repaired."""
    if all(is_up):
        return 0.0
    groups = cluster.node_groups
    away = [node for node, up in enumerate(is_up) if not up]
    return sum(
        groups[node].host_w
        + groups[node].gpus_per_node * cluster.types[cluster.node_types[node]].idle_w
        for node in away
    )


def _busy_w_per_gpu(cluster: Cluster) -> Floats:
    """Return the additional host power per busy GPU by GPU type: the most of its groups."""
    found = np.zeros(len(cluster.types))
    index = {kind.name: number for number, kind in enumerate(cluster.types)}
    for group in cluster.groups:
        number = index[group.type_name]
        found[number] = max(found[number], group.host_busy_w_per_gpu)
    return found


Rank = Callable[[ClusterView, Columns, Floats], Floats]
FIRST = 256
LOOKS = 200
"""Most jobs of a round without a placement; further ones are not tried."""


def pack(
    view: ClusterView, objective: PlacementObjective, rank: Rank, headroom: Headroom
) -> tuple[list[Start], bool]:
    """Start jobs in order, each on its best placement that fits and keeps the budget.

    Returns:
        The starts, and True if a job found GPUs but no power.
    """
    queue, free = view.queue, view.free
    # In a driver's queue may be only jobs that no node can run: then there are no shapes.
    if not len(queue) or not queue.shapes or not free.total:
        return [], False
    fits = np.array([free.fits(shape) for shape in queue.shapes])
    table = queue.table(objective)
    fitting = np.where(fits[:, None], table.costs, np.inf)
    enough = queue.table(ABOVE_IDLE).costs <= headroom.now_w()
    best = table.of_jobs(np.where(enough, fitting, np.inf).min(axis=0))
    waiting = queue.columns()
    scores = np.where(np.isfinite(best), rank(view, waiting, best), np.inf)
    packing = _Round(view, objective, headroom, fits)
    packing.is_short = bool(
        np.any(np.isfinite(table.of_jobs(fitting.min(axis=0))) & ~np.isfinite(best))
    )
    looks, starts = 0, list[Start]()
    for job in _in_order(waiting, scores):
        option = packing.placed(job)
        if option is not None:
            starts.append(Start(job, option))
        else:  # the next round may find another placement for it
            looks += 1
        if looks == LOOKS or not packing.free.total:
            break
    return starts, packing.is_short


class _Step(NamedTuple):
    """Option of a job kind with everything that decides whether a job takes it.

    Attributes:
        added_w: most power that it adds.
        shape_number: index of its shape in the queue's shapes.
        sample_s: time of one sample.
    """

    option: int
    added_w: float
    shape_number: int
    shape: Shape
    sample_s: float


# The order of a kind's options does not change: they are sorted once.
_Ladders = dict[tuple[str, int, int], list[_Step]]
_ladders: WeakKeyDictionary[JobQueue, _Ladders] = WeakKeyDictionary()


class _Round:
    """Placement of jobs one after the other, each on the best option that is left.

    GPUs and power only decrease in a round. What one job did not find is not searched again for
    similar jobs: of the same kind, with as many preemptions, and with exact estimates. The options
    of such jobs are tried by cost, and usually one of the first decides.

    Args:
        fits: shapes of the queue that had free GPUs when the round began.

    Attributes:
        free: GPUs that are left.
        is_short: a job found GPUs but no power; valid only if no job was started.
    """

    def __init__(
        self, view: ClusterView, objective: PlacementObjective, headroom: Headroom, fits: Bools
    ) -> None:
        self._view, self._objective, self._headroom = view, objective, headroom
        self._fits, self.free = fits, view.free.copy()
        self.is_short = False
        self._is_alike = view.queue.is_exact and objective.degree is not None
        self._hopeless: dict[tuple[int, int], tuple[float, float]] = {}
        self._has_room: dict[int, bool] = {}
        # Kinds whose best option has no GPUs left, until the next start; whether that option was
        # found without looking at the length of the job.
        self._without_gpus: set[tuple[int, int]] = set()
        self._is_same_for_all = False
        self._known: dict[int, tuple[Bools, Floats, Bools | None]] = {}
        self._ladders: dict[tuple[int, int], list[_Step]] = {}
        self._now_w, self._surely_w = headroom.now_w(), headroom.surely_w()
        rules = view.preemption
        self._pauses, self._restart_s = rules.pauses, rules.restart_s
        self._latency_s = view.start_latency_s + view.end_latency_s

    def placed(self, job: int) -> int | None:
        """Return the option that a job starts on, with its GPUs and power taken; None for none."""
        queue, headroom = self._view.queue, self._headroom
        alike = (queue.kind_of[job], headroom.unexplained_stops(job))
        if alike in self._without_gpus or self._is_hopeless(job):
            return None
        if self._is_alike and (step := self._step(job, alike)) is not None:
            option = self._taken(job, step.option, step.shape)
            if option is None and self._is_same_for_all:
                self._without_gpus.add(alike)
            return option
        estimates = queue.estimates(job)
        here, cost, unwanted = self._costs(job)
        keeps = headroom.may_start(job, estimates)
        if queue.is_exact and not (keeps & here).any():
            stopped = (queue.kind_of[job], self._view.preemptions[job])
            self._hopeless[stopped] = headroom.hopeless(job, estimates, here)
        # An option that the objective excludes is better than to wait for ever.
        if (
            unwanted is not None
            and not (keeps & headroom.has_gpus(job) & ~unwanted).any()
            and (unwanted | ~headroom.can_ever(job, estimates)).all()
        ):
            cost = np.where(here, ENERGY.cost(estimates), np.inf)
        option = int(np.argmin(np.where(keeps, cost, np.inf)))
        self.is_short |= not keeps[int(np.argmin(cost))]
        if not (keeps[option] and np.isfinite(cost[option])):
            return None
        return self._taken(job, option, queue.options(job).shape(option))

    def _taken(self, job: int, option: int, shape: Shape) -> int | None:
        """Take GPUs and power of the option if the GPUs are still free."""
        if not self.free.fits(shape):
            return None
        self.free.take(shape)
        self._has_room = {kind: has for kind, has in self._has_room.items() if not has}
        self._without_gpus.clear()  # with less power, an option with other GPUs may be the best
        headroom = self._headroom
        headroom.start(job, option)
        self._now_w, self._surely_w = headroom.now_w(), headroom.surely_w()
        return option

    def _step(self, job: int, alike: tuple[int, int]) -> _Step | None:
        """Return the cheapest option that had GPUs and keeps all budgets; None if that is unclear.

        This finds the same option as the arrays in `placed`, one by one; usually the first one.
        """
        now_w, surely_w, is_first = self._now_w, self._surely_w, True
        self._is_same_for_all = True
        for step in self._ladder(job, alike):
            added_w = step.added_w
            if added_w <= now_w:
                if added_w > surely_w:
                    self._is_same_for_all = False
                    if self._pauses:
                        return None
                    restart_s = self._restart_s if self._view.preemptions[job] else 0.0
                    time_s = self._view.queue.work(job) * step.sample_s
                    time_s *= 1 + self._view.time_error
                    occupied_s = time_s + (restart_s + self._latency_s)
                    if not self._headroom.keeps_for(added_w, occupied_s):
                        is_first = False
                        continue
                self.is_short |= not is_first
                return step
            is_first = False
        return None

    def _ladder(self, job: int, alike: tuple[int, int]) -> list[_Step]:
        """Return the options of a job that had free GPUs when the round began, least cost first."""
        queue = self._view.queue
        found = self._ladders.get(alike)
        if found is None:
            known = _ladders.setdefault(queue, {})
            key = (self._objective.name, *alike)
            if key not in known:
                known[key] = self._all_steps(job)
            fits = self._fits
            found = [step for step in known[key] if fits[step.shape_number]]
            self._ladders[alike] = found
        return found

    def _all_steps(self, job: int) -> list[_Step]:
        queue = self._view.queue
        options, numbers = queue.options(job), queue.shape_of(job).tolist()
        estimates = queue.estimates_for(job, 1.0)
        cost = self._objective.cost(estimates)
        added_w = self._headroom.added_w(job, estimates).tolist()
        sample_s, shapes = options.sample_s.tolist(), queue.shapes
        return [
            _Step(each, added_w[each], numbers[each], shapes[numbers[each]], sample_s[each])
            for each in np.argsort(cost, kind="stable").tolist()
            if np.isfinite(cost[each])
        ]

    def _is_hopeless(self, job: int) -> bool:
        """Return True if another job has shown that no option is left for this one."""
        queue = self._view.queue
        kind = queue.kind_of[job]
        hopeless = self._hopeless.get((kind, self._view.preemptions[job]))
        if hopeless is not None and hopeless[0] <= queue.work(job) <= hopeless[1]:
            self.is_short = True
            return True
        if kind not in self._has_room:
            fits, free, shapes = self._fits, self.free, queue.shapes
            numbers = queue.shapes_of_kind(kind)
            self._has_room[kind] = any(fits[n] and free.fits(shapes[n]) for n in numbers)
        return not self._has_room[kind]

    def _costs(self, job: int) -> tuple[Bools, Floats, Bools | None]:
        """Return which options have free GPUs, their costs, and which the objective excludes.

        Costs are infinite without free GPUs, and per sample if estimates are exact.
        """
        queue, objective = self._view.queue, self._objective
        kind = queue.kind_of[job]
        if not self._is_alike or kind not in self._known:
            here = self._fits[queue.shape_of(job)]
            work = 1.0 if self._is_alike else queue.work(job)
            cost = objective.cost(queue.estimates_for(job, work))
            unwanted = np.isinf(cost) if np.isinf(cost).any() else None
            self._known[kind] = here, np.where(here, cost, np.inf), unwanted
        return self._known[kind]


def _in_order(waiting: Columns, scores: Floats) -> Iterator[int]:
    """Yield jobs with a score: higher priority, then lower score, then earlier arrival.

    The first few are found without sorting all, because most rounds need no more.
    """
    rows = np.flatnonzero(np.isfinite(scores))
    first = rows
    if len(rows) > 4 * FIRST and waiting.priority[rows].min() == waiting.priority[rows].max():
        edge = np.partition(scores[rows], FIRST)[FIRST]
        first, rows = rows[scores[rows] <= edge], rows[scores[rows] > edge]
    else:
        rows = rows[:0]
    for part in (first, rows):
        keys = (waiting.job[part], scores[part], -waiting.priority[part])
        yield from waiting.job[part[np.lexsort(keys)]].tolist()
