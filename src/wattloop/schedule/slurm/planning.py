"""Asking the policy, about now and about what may come before the next round."""

from dataclasses import dataclass

from wattloop.schedule.described.described_job import EstimateSource
from wattloop.schedule.policies.policy import Policy
from wattloop.schedule.slurm.live_view import LiveView
from wattloop.schedule.slurm.plan import Plan, PlannedStart, Planner
from wattloop.schedule.slurm.site import Site
from wattloop.schedule.slurm.standby import may_end_soon, standby_starts

__all__ = ["Planned", "planned"]


@dataclass(frozen=True, slots=True)
class Planned:
    """What to do now, and what to prepare."""

    live: LiveView
    plan: Plan
    standby: list[PlannedStart]


def planned(
    live: LiveView, site: Site, policy: Policy, within_s: float | None
) -> tuple[Planned | None, str]:
    """The plan of a round, or what is wrong with the policy.

    Args:
        live: the view; it is used up.
        site: what is ours.
        policy: who decides.
        within_s: jobs that may end within this time are planned for as well; None for none.
    """
    try:
        plan = Planner(live, policy).ask()
        standby: list[PlannedStart] = []
        if within_s is not None and not plan.preempts and not plan.short_of_power:
            guessed = {
                number
                for number in live.view.running
                if site.believed.of(live.jobs[number]).source is EstimateSource.TIME_LIMIT
            }
            ending = may_end_soon(live, guessed, within_s)
            standby = standby_starts(live, policy, ending)
    except Exception as error:  # noqa: BLE001 - whatever a policy does must not stop the driver
        return None, f"{type(error).__name__}: {error}"
    return Planned(live, plan, standby), ""
