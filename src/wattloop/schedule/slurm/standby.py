"""What would start if jobs ended before the next round: Slurm may start it without waiting for us.

A driver looks once a second; Slurm starts a job a few milliseconds after another has ended. So jobs
that the policy would start on the GPUs of those that may end any moment are let through ahead of
time. Power is counted as if nobody ended: whenever they start, the budget is kept.
"""

from collections.abc import Collection
from dataclasses import replace

from wattloop.schedule.policies.policy import Policy
from wattloop.schedule.slurm.live_view import LiveView
from wattloop.schedule.slurm.plan import PlannedStart, Planner

__all__ = ["MOST_STANDBY", "may_end_soon", "standby_starts"]

MOST_STANDBY = 64
ASKED = 4


def may_end_soon(live: LiveView, guessed: Collection[int], within_s: float) -> list[int]:
    """Running jobs that are believed to end within a time, are late, or of which nobody knows.

    Args:
        live: the view.
        guessed: jobs whose time is only their limit.
        within_s: until the round after the next.
    """
    now_s = live.view.now_s
    return [
        job
        for job, running in live.view.running.items()
        if job not in live.coming
        and running.started_s < now_s
        and (job in guessed or running.expected_end_s <= now_s + within_s)
    ]


def standby_starts(live: LiveView, policy: Policy, ending: Collection[int]) -> list[PlannedStart]:
    """Starts on GPUs of jobs that may end; the live view is used up.

    Raises:
        Exception: whatever the policy raises.
    """
    if not ending or not len(live.view.queue):
        return []
    view = live.view
    left = {job: running for job, running in view.running.items() if job not in ending}
    for job in ending:
        live.machines.give(view.running[job].nodes)
    # Nothing is stopped or recapped for what may never come.
    later = replace(live, view=replace(view, running=left, preemptions=[10**6] * len(live.jobs)))
    planner = Planner(later, policy)
    planner.may_only_start = True
    return planner.ask(ASKED).starts[:MOST_STANDBY]
