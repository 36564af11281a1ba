"""What `wattloop simulate` prints and writes of a campaign."""

from typing import TYPE_CHECKING, Any

from wattloop.cli.output import say
from wattloop.cli.simulate_table import print_campaign
from wattloop.schedule.campaigns.campaign import seeds_from, seeds_text
from wattloop.schedule.campaigns.summary import Summary, by_variant, per_cell, summary_of
from wattloop.store.experiments import Experiment
from wattloop.store.tables import iso_time

if TYPE_CHECKING:
    from wattloop.schedule.campaigns.campaign import Outcomes

__all__ = ["campaign_dict", "print_outcomes", "print_remarks"]


def campaign_dict(experiment: Experiment, outcomes: "Outcomes") -> dict[str, Any]:
    """A campaign as plain data: a row per policy and seed, and what they come to."""
    summaries = {name: summary_of(found).to_dict() for name, found in by_variant(outcomes).items()}
    return {
        "campaign": experiment.experiment_id,
        "name": experiment.name,
        "status": experiment.status,
        "created": iso_time(experiment.created_wall_s),
        "provenance": "simulated",
        "scope": experiment.spec.get("scope"),
        "results": per_cell(outcomes),
        "summary": summaries[""] if list(summaries) == [""] else summaries,
        "spec": experiment.spec,
    }


def print_outcomes(experiment: Experiment, outcomes: "Outcomes") -> None:
    """The tables, then what a reader must know."""
    if not outcomes:
        say(f"wattloop: {experiment.experiment_id}: nothing has ended yet")
        return
    notes: dict[str, None] = {}
    for number, (variant, found) in enumerate(by_variant(outcomes).items()):
        summary = summary_of(found)
        count = len(summary.seeds)
        how = "one seed: no deviation is known" if count == 1 else f"mean ± sd of {count} seeds"
        name = f"{experiment.name}/{variant}" if variant else experiment.name
        title = f"{name}, simulated, {_whose(experiment)}, {how}; * best"
        budget = bool(experiment.spec.get("scenario", {}).get("budget"))
        print_campaign(summary, ("\n" if number else "") + title, budget=budget)
        print_remarks(summary, f"{variant}: " if variant else "")
        notes |= dict.fromkeys(summary.notes)
    for note in notes:
        say(f"wattloop: {note}")
    expected = _expected(experiment)
    if len(outcomes) < expected:
        say(f"wattloop: {experiment.status}: {len(outcomes)} of {expected} simulations so far")


def _whose(experiment: Experiment) -> str:
    scopes = {"gpu": "energy of the GPUs", "cluster": "energy of GPUs, hosts and network"}
    return scopes.get(str(experiment.spec.get("scope")), "energy of the cluster")


def _expected(experiment: Experiment) -> int:
    spec = experiment.spec
    seeds = len(seeds_from(spec["seeds"])) if spec.get("seeds") else 0
    return len(spec.get("policies", ())) * seeds * max(1, len(spec.get("variants", ())))


def print_remarks(summary: Summary, of: str = "") -> None:
    """Jobs that never ran, impossible actions, failures."""
    for reason, count in summary.never.items():
        say(f"wattloop: {of}{count} job{'s' * (count != 1)} can never run: {reason}")
    for label, (count, first) in summary.left.items():
        what = f"{count} job{'s' * (count != 1)} waited for ever"
        say(f"wattloop: {of}{label}: {what}; the first: {first}")
    for label, (count, first) in summary.refused.items():
        what = f"{count} impossible action{'s' * (count != 1)} refused"
        say(f"wattloop: {of}{label}: {what}; the first: {first}")
    for label in dict.fromkeys(label for label, _ in summary.failed):
        seeds = tuple(seed for who, seed in summary.failed if who == label)
        error = summary.failed[label, seeds[0]]
        which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds_text(seeds)}"
        say(f"wattloop: {of}{label} failed on {which}: {error}")
    if len(summary.seeds) == 1 and len(summary.labels) > 1:
        say("wattloop: one seed says nothing of chance; try --seeds 10")
