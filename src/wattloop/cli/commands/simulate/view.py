"""Terminal output and figures of campaigns."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from wattloop.cli.output import print_rows, print_table, say
from wattloop.cli.progress import spinner, trial_columns, updated_row
from wattloop.core.units import format_duration, iso_time
from wattloop.report.campaign import (
    COLUMNS,
    change_text,
    difference_table,
    policy_table,
    spread_text,
)
from wattloop.report.figures.campaign import (
    goal_figures,
    load_figure,
    over_time_figures,
    trade_off_figure,
)
from wattloop.report.figures.render import save
from wattloop.schedule.campaigns.campaign import (
    Campaign,
    Outcomes,
    SimulationJob,
    seeds_from,
    seeds_text,
)
from wattloop.schedule.campaigns.runner import CampaignCallback
from wattloop.schedule.campaigns.summary import Summary, by_variant, per_cell, summary_of
from wattloop.schedule.campaigns.workers import simulate
from wattloop.schedule.metrics.metrics import LEAST_PAIRS
from wattloop.store.experiments import Experiment

if TYPE_CHECKING:
    from wattloop.schedule.campaigns.whatif import WhatIf


Rows = list[dict[str, Any]]
MOST_VARIANTS = 3


def draw(campaign: "Campaign", outcomes: "Outcomes", folder: Path) -> None:
    rows = [row for row in per_cell(outcomes) if row.get("error") is None]
    if not rows:
        say("wattloop: nothing to draw")
        return
    said = f"{campaign.scenario.name}, simulated"
    setting = "variant" if campaign.scenario.variants else None
    with spinner("drawing"):
        charts = {"throughput-energy": trade_off_figure(rows, said, setting=setting)}
        charts |= _by_load(campaign, rows, said)
        names = list(campaign.scenarios)
        over_time = names if len(names) <= MOST_VARIANTS else [names[0], names[-1]]
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


def _over_time(campaign: "Campaign", variant: str, rows: Rows) -> dict[str, Any]:
    """Draw power and GPU allocation on the first seed."""
    scenario, seed = campaign.scenarios[variant], campaign.seeds[0]
    world = scenario.world(seed)
    ended = {row["policy"] for row in rows}
    results = {
        choice.label: simulate(world, choice)
        for choice in campaign.choices
        if choice.label in ended
    }
    return over_time_figures(results, world.truth, f"{scenario.name}, simulated, seed {seed}")


def campaign_dict(experiment: Experiment, outcomes: "Outcomes") -> dict[str, Any]:
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
        print_table(policy_table(summary, ("\n" if number else "") + title, budget=budget))
        differences = difference_table(summary, budget=budget)
        if differences is not None:
            sys.stdout.write("\n")
            print_table(differences)
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


def print_whatif(found: "WhatIf") -> None:
    from wattloop.schedule.campaigns.whatif import AS_IT_IS, CHANGED

    summary = found.summary
    rows: list[tuple[str, ...]] = []
    for column in COLUMNS:
        before, after = (summary.spreads[label].get(column.metric) for label in (AS_IT_IS, CHANGED))
        if before is None and after is None:
            continue
        if column.optional and not any(each and each.mean for each in (before, after)):
            continue
        difference = summary.differences[CHANGED].get(column.metric)
        p_value = None if difference is None else difference.p_value
        rows.append(
            (
                column.header,
                spread_text(before, column),
                spread_text(after, column),
                change_text(difference, column),
                "" if p_value is None else f"{p_value:.2g}",
            )
        )
    headers: tuple[str, ...] = ("", AS_IT_IS, CHANGED, "difference", "p")
    if not any(row[-1] for row in rows):
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    print_rows(headers, rows, title=found.title, spare=("p",))
    if 1 < len(summary.seeds) < LEAST_PAIRS:
        least = 2 / 2 ** len(summary.seeds)
        say(
            f"wattloop: no p: with {len(summary.seeds)} seeds none is below {least:.2g}, however "
            f"sure a difference is; the intervals hold, --seeds {LEAST_PAIRS} or more has a p"
        )
    typer.echo(f"\n{found.sentence}")
    print_remarks(summary)
    for note in summary.notes:
        say(f"wattloop: {note}")


@contextmanager
def progress() -> Iterator[CampaignCallback]:
    with updated_row(trial_columns, left="") as update:
        yield _Listener(update)


class _Listener(CampaignCallback):
    def __init__(self, update: Callable[..., None]) -> None:
        self._update = update

    def begins(self, experiment: Experiment, cells: int, known: int, *, resumed: bool) -> None:
        self._update(total=cells, completed=known)
        what = f"{cells} simulation{'s' * (cells != 1)}"
        if known == cells:
            say(f"wattloop: {experiment.experiment_id}: {what}, known already")
            return
        verb = "going on with" if resumed else "beginning"
        had = f", {known} of them known already" if known else ""
        say(f"wattloop: {verb} {experiment.experiment_id}: {what}{had}")

    def ended(self, cell: SimulationJob, outcome: Mapping[str, Any], left_s: float) -> None:
        if "error" in outcome:
            say(f"wattloop: {cell.label}: failed: {outcome['error']}")
        left = f"left: {format_duration(left_s)}"
        self._update(advance=1, left=left, description=cell.label)
