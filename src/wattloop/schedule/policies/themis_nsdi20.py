"""Themis as published: auctions of GPU leases for finish-time fairness (Mahajan et al., NSDI 2020).

    rho = T_shared / T_ideal
    T_shared = age + remaining work on an allocation,  T_ideal = all work on 1/N of the GPUs

At each auction the 1 - f jobs with the worst rho bid for all GPUs whose lease has ended. GPUs go
where the product of 1/rho grows most (Nash social welfare, by greedy steps per GPU). A winner keeps
the share c = (welfare of the others with it) / (welfare of the others without it) of its GPUs, the
hidden payment that makes honest bids best. What is left goes to the other jobs, which the paper
draws at random, by arrival here. A job is an app of the paper; its GPU type is chosen by the bid.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from itertools import islice
from weakref import WeakKeyDictionary

from wattloop.core.errors import ConfigError
from wattloop.schedule.actions import Action, Preempt, Resize, Start, Wake
from wattloop.schedule.estimates.oracle import Shape
from wattloop.schedule.free_gpus import FreeGpus
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.node_plan import NodePlan
from wattloop.schedule.preemption import Keeps
from wattloop.schedule.queue import JobQueue
from wattloop.schedule.view import ClusterView

UNSERVED = 1e6
"""rho of a job without GPUs, finite so that products can be compared."""
ROUNDING_S = 1e-6
MOST_BIDS = 16
"""Most jobs of an auction, those with the worst rho."""
Bid = tuple[float, int, Shape]
"""rho, option, shape."""
Line = tuple[float, float]
"""rho of a job without run time, and its growth with the seconds of a sample."""
_known: WeakKeyDictionary[JobQueue, dict[int, list[Bid]]] = WeakKeyDictionary()
"""Queue -> kind, or job with estimates of its own -> its fastest options."""


class ThemisNsdi20(Policy):
    """rho = (age + T) / (T on 1/N of the GPUs); the worst bid first for GPUs without a lease.

    A lease ends after `lease_s`. Then the job bids with the others: it stays, is resized where the
    engine lets jobs be, or is stopped where stopped jobs keep their progress. Elsewhere a lease
    lasts until the end of the job.

    Args:
        lease_s: length of a lease.
        fairness: f, the share of jobs that does not bid.
    """

    name = "themis-nsdi20"
    needs_free_gpus = False

    def __init__(self, lease_s: float = 1200.0, fairness: float = 0.8) -> None:
        if not 0 < lease_s < math.inf:
            raise ConfigError(f"lease_s is {lease_s:g}; give seconds")
        if not 0 <= fairness < 1:
            raise ConfigError(f"fairness is {fairness:g}; give a share below 1")
        self.lease_s, self.fairness = lease_s, fairness

    def decide(self, view: ClusterView) -> Sequence[Action]:
        if not len(view.queue):
            return ()
        rules = view.preemption
        ends = rules.keeps is not Keeps.NOTHING or rules.resize_s is not None
        leased = [each for each in view.running.values() if ends and not each.is_done]
        over, later_s = list[int](), math.inf
        lease_s, near_s = self.lease_s, max(view.round_s, 2 * ROUNDING_S)
        for each in leased:
            had, rest_s = divmod(view.now_s - each.started_s + ROUNDING_S, lease_s)
            # a lease that no one else wins is renewed
            if had and rest_s <= near_s:
                over.append(each.job)
            later_s = min(later_s, each.started_s + (had + 1) * lease_s)
        wake: list[Action] = [Wake(later_s)] if view.now_s < later_s < math.inf else []
        if not over and not view.free.total:
            return wake
        return [*self._auction(view, over), *wake]

    def _auction(self, view: ClusterView, over: Sequence[int]) -> list[Action]:
        room = list(view.free.by_type)
        for job in over:
            room[view.running[job].type_index] += view.running[job].gpus
        jobs = [*over, *islice(view.queue.by_arrival(), 4 * MOST_BIDS)]
        best = {job: self._best(view, job) for job in jobs}
        lines = self._lines(view, best)
        now = {job: self._rho_now(view, job, lines[job], best[job]) for job in jobs}
        order = sorted(jobs, key=lambda job: (-now[job], job))
        count = min(max(math.ceil((1 - self.fairness) * len(jobs)), 1), MOST_BIDS)
        bidding = {job: _bids(lines[job], best[job]) for job in order[:count]}
        won = _welfare(bidding, room)
        if len(bidding) > 1:
            won = {job: self._paid(bidding, room, won, job) for job in won}
        left = room.copy()
        for _, _, shape in won.values():
            left[shape[0]] -= shape[1]
        # leftovers go to the other jobs, by arrival
        for job in sorted(set(jobs) - set(won)):
            if not any(left):
                break
            fitting = [bid for bid in best[job] if bid[2][1] <= left[bid[2][0]]]
            if fitting:
                won[job] = min(fitting)
                left[won[job][2][0]] -= won[job][2][1]
        return self._actions(view, over, won)

    def _actions(
        self, view: ClusterView, over: Sequence[int], won: Mapping[int, Bid]
    ) -> list[Action]:
        """Return starts; without any, the first change of a job whose lease has ended."""
        free, starts = view.free.copy(), list[Action]()
        for job, wanted in won.items():
            if job not in view.queue:
                continue
            choices = [wanted]
            if not free.fits(wanted[2]):  # not in one node: the best that is
                smaller = (each for each in self._best(view, job) if each[2][1] <= wanted[2][1])
                choices = [each for each in smaller if free.fits(each[2])]
            if choices:
                _, option, shape = min(choices)
                free.take(shape)
                starts.append(Start(job, option))
        if starts:
            return starts
        waits = any(job in view.queue for job in won)
        can_resize, plan = view.preemption.resize_s is not None, NodePlan(view)
        for job in over if waits else ():
            running = view.running[job]
            bid = won.get(job)
            if bid is None:
                if view.preemption.keeps is not Keeps.NOTHING:
                    return [Preempt(job)]
            elif can_resize and bid[2][1] < running.gpus and plan.fits_without([job], bid[2]):
                return [Resize(job, bid[1])]
        return []

    def _paid(
        self,
        bids: Mapping[int, Sequence[Bid]],
        room: Sequence[int],
        won: Mapping[int, Bid],
        job: int,
    ) -> Bid:
        """Return a winner's allocation after its hidden payment."""
        others = {each: bid for each, bid in bids.items() if each != job}
        alone = _welfare(others, room)
        log_c = sum(
            math.log(alone.get(each, (UNSERVED,))[0]) - math.log(won.get(each, (UNSERVED,))[0])
            for each in others
        )
        most = won[job][2][1] * math.exp(min(log_c, 0.0))
        smaller = [bid for bid in bids[job] if bid[2][1] <= most and bid[2][0] == won[job][2][0]]
        # fewer GPUs than a job can use would be none: it keeps the fewest
        least = min(bid[2][1] for bid in bids[job] if bid[2][0] == won[job][2][0])
        fewest = [bid for bid in bids[job] if bid[2][:2] == (won[job][2][0], least)]
        return min(smaller or fewest)

    def _lines(self, view: ClusterView, best: Mapping[int, list[Bid]]) -> dict[int, Line]:
        """Return age / T_ideal and left work / T_ideal of each job.

        rho = (age + left work x seconds of a sample) / T_ideal is linear in the last of these.
        """
        share = view.cluster.gpus / max(len(view.queue) + len(view.running), 1)
        ideal_s, found = dict[int, float](), dict[int, Line]()
        for job, options in best.items():
            if id(options) not in ideal_s:  # jobs of a kind have the same list
                mean_s = [unit_s for unit_s, _, shape in options if shape[1] <= share]
                mean_s = mean_s or [max(options, default=(0.0,))[0]]
                ideal_s[id(options)] = sum(mean_s) / len(mean_s)
            left = view.queue.work(job) if job in view.queue else self._left(view, job)
            whole_s = max(float(view.jobs.work[job]) * ideal_s[id(options)], 1e-9)
            age_s = view.now_s - float(view.jobs.arrival_s[job])
            found[job] = age_s / whole_s, left / whole_s
        return found

    def _best(self, view: ClusterView, job: int) -> list[Bid]:
        """Return (seconds per sample, option, shape) of the fastest option of each shape."""
        queue = view.queue
        known = _known.setdefault(queue, {})
        owner = queue.kind_of[job] if queue.is_exact else -1 - job
        if owner not in known:
            found: dict[Shape, Bid] = {}
            unit_s = queue.estimates_for(job, 1.0).time_s.tolist()
            empty, shapes = FreeGpus.of_all(view.cluster), queue.options(job).shapes()
            possible = {shape for shape in set(shapes) if empty.fits(shape)}
            for option, shape in enumerate(shapes):
                if shape in possible and unit_s[option] < found.get(shape, (math.inf,))[0]:
                    found[shape] = (unit_s[option], option, shape)
            known[owner] = list(found.values())
        return known[owner]

    def _left(self, view: ClusterView, job: int) -> float:
        running = view.running[job]
        unit_s = float(view.queue.estimates_for(job, 1.0).time_s[running.option])
        left = max(running.expected_end_s - view.now_s, 0.0) / max(unit_s, 1e-12)
        return min(left, running.work_at_start)

    def _rho_now(self, view: ClusterView, job: int, line: Line, best: Sequence[Bid]) -> float:
        """Return rho on the present allocation; of a waiting job by how long it has waited."""
        age, slope = line
        running = view.running.get(job)
        if running is None or not best:
            return UNSERVED + (age + slope * min(best)[0] if best else 0.0)
        unit_s = next((each[0] for each in best if each[1] == running.option), min(best)[0])
        return age + slope * unit_s


def _bids(line: Line, best: Sequence[Bid]) -> list[Bid]:
    """Return (rho, option, shape) of a job for each shape, on its fastest option."""
    age, slope = line
    return [(max(age + slope * unit_s, 1e-12), option, shape) for unit_s, option, shape in best]


def _welfare(bids: Mapping[int, Sequence[Bid]], room: Sequence[int]) -> dict[int, Bid]:
    """Return job -> bid that maximises the product of 1/rho, by greedy steps per GPU."""
    left, won = list(room), dict[int, Bid]()
    heap = [
        (-math.log(UNSERVED / bid[0]) / bid[2][1], job, -1, bid)
        for job, offers in bids.items()
        for bid in offers
        if bid[2][1] <= left[bid[2][0]] and bid[0] < UNSERVED
    ]
    heapq.heapify(heap)
    while heap:
        _, job, since, bid = heapq.heappop(heap)
        has = won.get(job)
        if (-1 if has is None else has[1]) != since:
            continue
        _, _, (type_index, gpus, _) = bid
        had = has[2][1] if has is not None and has[2][0] == type_index else 0
        if gpus - had > left[type_index]:
            continue
        if has is not None:
            left[has[2][0]] += has[2][1]
        left[type_index] -= gpus
        won[job] = bid
        for more in bids[job]:
            if more[2][1] > gpus and more[0] < bid[0]:
                gain = math.log(bid[0] / more[0]) / (more[2][1] - gpus)
                heapq.heappush(heap, (-gain, job, bid[1], more))
    return won
