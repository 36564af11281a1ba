"""First in, first out: jobs start in order of arrival."""

from collections.abc import Sequence
from itertools import islice

from wattloop.schedule.actions import Action, Start
from wattloop.schedule.free_gpus import FreeGpus
from wattloop.schedule.objectives import TIME
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.queue import JobQueue
from wattloop.schedule.view import ClusterView


class Fifo(Policy):
    """Start jobs in order of arrival on their fastest free placement, until one does not fit."""

    name = "fifo"

    def decide(self, view: ClusterView) -> Sequence[Action]:
        queue, free = view.queue, view.free
        head = queue.head()
        option = None if head is None else fastest(queue, head, free)
        if head is None or option is None:
            return ()
        starts, shape = [Start(head, option)], queue.options(head).shape(option)
        if len(queue) == 1 or free.total == shape[1]:
            return starts
        free = free.copy()
        free.take(shape)
        for job in islice(queue.by_arrival(), 1, None):
            option = fastest(queue, job, free) if free.total else None
            if option is None:
                break
            starts.append(Start(job, option))
            free.take(queue.options(job).shape(option))
        return starts


def fastest(queue: JobQueue, job: int, free: FreeGpus) -> int | None:
    """Return the job's fastest option that fits; None if none does."""
    options = queue.options(job)
    for option in queue.options_by(TIME, job):
        if free.fits(options.shape(option)):
            return option
    return None
