"""Terminal output and figures of campaigns."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattloop.cli.output import print_table, say
from wattloop.cli.progress import spinner
from wattloop.report.campaign import difference_cells, policy_cells
from wattloop.report.figures.campaign import goal_figures, load_figure, trade_off_figure
from wattloop.report.figures.cluster_power import over_time_figures
from wattloop.report.figures.render import save
from wattloop.schedule.campaigns.campaign import seeds_from, seeds_text
from wattloop.schedule.campaigns.summary import Summary, by_variant, per_cell, summary_of
from wattloop.schedule.campaigns.workers import simulated
from wattloop.store.experiments import Experiment
from wattloop.store.tables import iso_time

if TYPE_CHECKING:
    from wattloop.schedule.campaigns.campaign import Campaign, Outcomes


SPARE = ("Jain share", "Jain JCT", "idle kWh", "peak kW", "JCT p95 min", "preemptions", "JCT p95")


def print_campaign(summary: "Summary", title: str, *, budget: bool = False) -> None:
    """Print mean and deviation of each policy, then its difference from the first.

    Args:
        summary: of one variant.
        title: above the table.
        budget: there is one, so that keeping it is news, too.
    """
    found = policy_cells(summary, title, budget=budget)
    _print(found.headers, found.rows, found.title)
    differences = difference_cells(summary, budget=budget)
    if differences is not None:
        _print(differences.headers, differences.rows, f"\n{differences.title}")


def _print(headers: tuple[str, ...], rows: list[tuple[str, ...]], title: str) -> None:
    print_table(headers, rows, title=title, spare=[name for name in SPARE if name in headers])


Rows = list[dict[str, Any]]


MOST_VARIANTS = 3


def draw(campaign: "Campaign", outcomes: "Outcomes", folder: Path) -> None:
    """Write all figures that the data allow."""
    rows = [row for row in per_cell(outcomes) if row.get("error") is None]
    if not rows:
        say("wattloop: nothing to draw")
        return
    said = f"{campaign.scenario.name}, simulated"
    setting = "variant" if campaign.scenario.variants else None
    with spinner("drawing"):
        charts = {"throughput-energy": trade_off_figure(rows, said, setting=setting)}
        charts |= _by_load(campaign, rows, said)
        over_time = _drawn_over_time(list(campaign.scenarios))
        for variant in campaign.scenarios:
            own = [row for row in rows if row.get("variant", "") == variant]
            found = goal_figures(own, f"{campaign.scenarios[variant].name}, simulated")
            if variant in over_time:
                found |= _over_time(campaign, variant, own)
            end = f"-{variant}" if variant else ""
            charts |= {f"{name}{end}": chart for name, chart in found.items()}
        notes = [campaign.scenario.description] if campaign.scenario.description else []
        written = save(charts, folder, title=campaign.scenario.name, notes=notes)
    say(f"wattloop: {len(charts)} figures in {folder}: see {written[-1]}")


def _by_load(campaign: "Campaign", rows: Rows, said: str) -> dict[str, Any]:
    """Draw completion time against the arrival rate, if variants differ in it."""
    made = {name: each.jobs.generate for name, each in campaign.scenarios.items()}
    rates = {name: each.rate_per_s for name, each in made.items() if each is not None}
    if len(set(rates.values())) < 2 or len(rates) < len(made):
        return {}
    with_rates = [
        row | {"rate_per_s": rates[row["variant"]]} for row in rows if row["jct_mean_s"] is not None
    ]
    return {"completion-load": load_figure(with_rates, said)}


def _drawn_over_time(variants: list[str]) -> list[str]:
    """Return the variants to draw over time: of many, the first and the last."""
    return variants if len(variants) <= MOST_VARIANTS else [variants[0], variants[-1]]


def _over_time(campaign: "Campaign", variant: str, rows: Rows) -> dict[str, Any]:
    """Draw power and GPU allocation on the first seed."""
    scenario, seed = campaign.scenarios[variant], campaign.seeds[0]
    world = scenario.world(seed)
    ended = {row["policy"] for row in rows}
    results = {
        choice.label: simulated(world, choice)
        for choice in campaign.choices
        if choice.label in ended
    }
    return over_time_figures(results, world.truth, f"{scenario.name}, simulated, seed {seed}")


def campaign_dict(experiment: Experiment, outcomes: "Outcomes") -> dict[str, Any]:
    """Return a campaign as plain data: a row per policy and seed, and their summary."""
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
    """Print the tables, then remarks."""
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
    """Print jobs that never ran, impossible actions, and failures."""
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
