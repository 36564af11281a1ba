"""A report on a campaign: policies side by side on the same seeds."""

import time
from collections.abc import Mapping
from typing import Any

from wattloop.report.campaign_table import Cells, difference_cells, policy_cells
from wattloop.report.document import Block, Chart, Document, Note, Paragraph, Section, Table
from wattloop.report.figures.campaign import goal_figures, trade_off_figure
from wattloop.schedule.campaigns.store import known_outcomes
from wattloop.schedule.campaigns.summary import Summary, by_variant, per_cell, summary_of
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment
from wattloop.trials.runner import with_status_now
from wattloop.version import __version__

__all__ = ["report_of_campaign"]

IN_WORDS = {
    "misses": "Share of deadlines missed, by policy",
    "fairness": "Jain's index over users, by policy",
}
SCOPES = {"gpu": "energy of the GPUs", "cluster": "energy of the whole cluster"}


def report_of_campaign(store: Store, experiment: Experiment) -> Document:
    """Everything a campaign found, so far where it is not finished."""
    experiment = with_status_now(store, experiment)
    outcomes = known_outcomes(store, experiment)
    scenario: Mapping[str, Any] = experiment.spec.get("scenario") or {}
    name = str(scenario.get("name") or experiment.name)
    scope = SCOPES.get(str(experiment.spec.get("scope")), "energy")
    said = f"{name}, simulated, {scope}"
    sections = []
    if scenario.get("description"):
        sections.append(Section("The scenario", (Paragraph(str(scenario["description"])),)))
    rows = [row for row in per_cell(outcomes) if row.get("error") is None]
    for variant, found in by_variant(outcomes).items():
        own = [row for row in rows if row.get("variant", "") == variant]
        blocks = _variant(summary_of(found), own, said, budget=scenario.get("budget") is not None)
        sections.append(Section(variant or "Policies", tuple(blocks)))
    if not outcomes:
        sections.append(Section("Policies", (Paragraph("No simulation has ended yet."),)))
    seeds = experiment.spec.get("seeds", "")
    return Document(
        title=f"Campaign {name}",
        subtitle=f"simulated, {scope}; seeds {seeds}; {experiment.status}",
        sections=tuple(sections),
        made_wall_s=time.time(),
        version=__version__,
        about={"kind": "campaign", "id": experiment.experiment_id},
    )


def _variant(
    summary: Summary, rows: list[dict[str, Any]], said: str, *, budget: bool
) -> list[Block]:
    seeds = len(summary.seeds)
    title = f"Mean ± sd of {seeds} seeds; * best" if seeds > 1 else "One seed: no deviation"
    blocks: list[Block] = [_table(policy_cells(summary, title, budget=budget))]
    differences = difference_cells(summary, budget=budget)
    if differences is not None:
        blocks.append(_table(differences))
    # names of charts are places on the page: one variant's must differ from another's
    end = (
        "".join(c if c.isalnum() else "-" for c in str(rows[0].get("variant", ""))) if rows else ""
    )
    if rows:
        chart = trade_off_figure(rows, said)
        blocks.append(Chart(f"trade-off{end}", chart, "Jobs per hour against energy, by policy"))
    blocks += [
        Chart(f"{name}{end}", chart, IN_WORDS[name])
        for name, chart in goal_figures(rows, said).items()
    ]
    blocks += [
        Note(f"{policy} on seed {seed}: {error}", tone="warning", title="Failed:")
        for (policy, seed), error in summary.failed.items()
    ]
    blocks += [
        Note(f"{count} jobs: {why}", tone="warning", title="Can never run:")
        for why, count in summary.never.items()
    ]
    blocks += [
        Note(f"{count} jobs under {policy}, the first: {first}", tone="warning", title="Left:")
        for policy, (count, first) in summary.left.items()
    ]
    blocks += [
        Note(f"{count} actions of {policy}, the first: {first}", tone="warning", title="Refused:")
        for policy, (count, first) in summary.refused.items()
    ]
    return blocks


def _table(cells: Cells) -> Table:
    numbers = frozenset(range(1, len(cells.headers)))
    return Table(cells.headers, tuple(cells.rows), cells.title, numbers)
