"""First in, first out: nobody overtakes."""

from collections.abc import Sequence

from wattloop.schedule.actions import Action, Start
from wattloop.schedule.objectives import TIME
from wattloop.schedule.policies.policy import Policy
from wattloop.schedule.view import ClusterView

__all__ = ["Fifo"]


class Fifo(Policy):
    """Starts the job that came first on its fastest placement; if none is free, all wait."""

    name = "fifo"

    def decide(self, view: ClusterView) -> Sequence[Action]:
        """Start the first job, if it fits."""
        queue = view.queue
        job = queue.head()
        if job is None:
            return ()
        options = queue.options(job)
        for option in queue.options_by(TIME, job):
            if view.free.fits(options.shape(option)):
                return (Start(job, option),)
        return ()
