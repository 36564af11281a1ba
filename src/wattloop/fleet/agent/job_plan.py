"""Who the job of a start event is: its user, its cards and CPUs on this node."""

from collections.abc import Mapping, Sequence

from wattloop.fleet.agent.events import JobEvent
from wattloop.fleet.agent.gpu_numbers import gpu_names, parse_numbers
from wattloop.fleet.agent.job_facts import cpus_on_node, facts_of_event
from wattloop.fleet.agent.job_run import RunPlan
from wattloop.fleet.agent.site import Site
from wattloop.measure.run_header import new_run_id

__all__ = ["job_plan", "tells_of"]


def job_plan(
    event: JobEvent, site: Site, domains: Sequence[str], *, time_s: float, wall_s: float
) -> RunPlan:
    """A run for the job of a start event.

    Args:
        event: what the prolog left.
        site: this node.
        domains: names of what can be read here, cards among them.
        time_s: when it begins, on the monotonic clock.
        wall_s: the same as a time of day.
    """
    facts = event.facts
    cpus = cpus_on_node(facts.get("cpus", ""), facts.get("nodelist", ""), site.node)
    plan = RunPlan(
        run_id=new_run_id(wall_s),
        event=event.name,
        job=event.job,
        uid=_uid(facts),
        user=facts.get("user", ""),
        cpus=cpus or 0,
        whole=cpus is not None and cpus >= site.cpus,
        started_s=time_s,
        started_wall_s=wall_s,
        facts=facts_of_event(facts, cluster=site.config.cluster, node=site.node),
    )
    numbers = _gpu_numbers(facts)
    found, strange = gpu_names(numbers, domains, site.gpu_numbers)
    plan.gpus = tuple(found)
    if strange or (facts.get("gpus") and not numbers):
        which = ", ".join(map(str, strange)) or facts.get("gpus", "")
        plan.note(f"no sensor here belongs to GPU {which} of Slurm; its energy is not known")
    if cpus is None:
        plan.note("how many CPUs it has here is not known: its share is by CPU time alone")
    plan.facts["exclusive"] = "yes" if plan.whole else "no"
    plan.facts["cpus_on_node"] = str(plan.cpus)
    plan.facts["gpus_on_node"] = str(len(numbers))
    return plan


def tells_of(event: JobEvent, plan: RunPlan, site: Site, domains: Sequence[str]) -> bool:
    """Whether a start tells of a run that is known, and not of a job that begins anew.

    A requeued job has another restart count; a controller that lost its state gives numbers out
    again, to whomever and on whatever cards.
    """
    facts = event.facts
    gpus, _ = gpu_names(_gpu_numbers(facts), domains, site.gpu_numbers)
    said = (facts.get("restart", ""), _uid(facts), tuple(gpus))
    return said == (plan.facts.get("restart", ""), plan.uid, plan.gpus)


def _uid(facts: Mapping[str, str]) -> int:
    return int(facts["uid"]) if facts.get("uid", "").isdecimal() else -1


def _gpu_numbers(facts: Mapping[str, str]) -> list[int]:
    return parse_numbers(facts["gpus"]) if facts.get("gpus") else []
