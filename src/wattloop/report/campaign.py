"""The report on a campaign: policies next to each other on the same seeds."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from wattloop.analyze.repeats import Estimate
from wattloop.core.table import Table
from wattloop.report.document import Block, Chart, Document, Note, Paragraph, Section
from wattloop.report.figures.campaign import budget_figure, goal_figures, trade_off_figure
from wattloop.schedule.campaigns.store import known_outcomes
from wattloop.schedule.campaigns.summary import Summary, by_variant, per_cell, summary_of
from wattloop.schedule.metrics.metrics import Difference
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment
from wattloop.trials.experiment_lock import with_status_now

UNKNOWN = "-"
BEST = " *"
UNSURE = " ?"


@dataclass(frozen=True, slots=True)
class CampaignColumn:
    """A metric of the table.

    Attributes:
        metric: its name in JSON.
        header: with the unit.
        scale: from the metric's unit to the header's.
        better: -1 when less is better, 1 when more is, 0 when neither.
        digits: significant ones.
        is_share: differences are in percentage points.
        optional: shown only where some policy has it and it is not zero.
    """

    metric: str
    header: str
    scale: float = 1.0
    better: int = 0
    digits: int = 3
    is_share: bool = False
    optional: bool = False


COLUMNS = (
    CampaignColumn("jobs_done", "jobs done", digits=4),
    CampaignColumn("throughput_per_h", "jobs/h", better=1),
    CampaignColumn("energy_kwh", "energy kWh", better=-1),
    CampaignColumn("idle_kwh", "idle kWh"),
    CampaignColumn("wasted_kwh", "wasted kWh", better=-1, optional=True),
    CampaignColumn("jct_mean_s", "JCT min", 1 / 60, better=-1),
    CampaignColumn("jct_p95_s", "JCT p95 min", 1 / 60, better=-1),
    CampaignColumn("miss_rate", "misses %", 100.0, better=-1, is_share=True),
    CampaignColumn("peak_power_w", "peak kW", 1e-3),
    CampaignColumn("over_budget_s", "over budget s", better=-1, optional=True),
    CampaignColumn("jain_jct", "Jain JCT", better=1),
    CampaignColumn("jain_share", "Jain share", better=1),
    CampaignColumn("preemptions", "preemptions", optional=True),
    CampaignColumn("carbon_kg", "CO2e kg", better=-1, optional=True),
    CampaignColumn("cost", "cost", better=-1, optional=True),
)

UNITS = ("kWh", "min", "%", "kW", "s", "kg")
DIFFERENCES = (
    *("throughput_per_h", "energy_kwh", "jct_mean_s", "jct_p95_s", "miss_rate"),
    *("jain_jct", "jain_share", "carbon_kg", "cost"),
)
SPARE = ("Jain share", "Jain JCT", "idle kWh", "peak kW", "JCT p95 min", "preemptions", "JCT p95")
"""Columns that a narrow terminal loses first."""


def policy_table(summary: Summary, title: str = "", *, budget: bool = False) -> Table:
    """Return mean and deviation of each policy.

    Args:
        summary: of one variant.
        title: above the table.
        budget: there is one, so that keeping it is news, too.
    """
    columns = _columns(summary, budget=budget)
    best = {column.metric: _best(column, summary) for column in columns}
    rows = []
    for label in summary.labels:
        cells = [
            spread_text(summary.spreads[label].get(column.metric), column)
            + (BEST if label in best[column.metric] else "")
            for column in columns
        ]
        rows.append((label, *cells))
    headers = ("policy", *(column.header for column in columns))
    return Table.of(headers, rows, title, range(1, len(headers)), spare=SPARE)


def difference_table(summary: Summary, *, budget: bool = False) -> Table | None:
    """Return how each policy differs from the first; None with a single policy."""
    if len(summary.labels) < 2:
        return None
    columns = [c for c in _columns(summary, budget=budget) if c.metric in DIFFERENCES]
    rows = [
        (label, *(change_text(differences.get(c.metric), c) for c in columns))
        for label, differences in summary.differences.items()
    ]
    pairs = len(summary.seeds)
    how = f"95% interval over {pairs} paired seeds; ? may be chance"
    if pairs == 1:
        how = "on the same seed"
    headers = ("", *(_unitless(column.header) for column in columns))
    title = f"against {summary.labels[0]}, {how}"
    return Table.of(headers, rows, title, range(1, len(headers)), spare=SPARE)


def spread_text(found: Estimate | None, column: CampaignColumn) -> str:
    """Format `10.9 ± 0.4`; the mean alone with a single seed."""
    if found is None:
        return UNKNOWN
    text = _mean(found.mean, column)
    if found.sd is None:
        return text
    decimals = _decimals(found.mean * column.scale, column.digits)
    return f"{text} ± {found.sd * column.scale:,.{decimals}f}"


def change_text(found: Difference | None, column: CampaignColumn) -> str:
    """Format `-10.5 ± 1.2%`, in points for shares; a question mark if it may be chance."""
    if found is None:
        return UNKNOWN
    if column.is_share or found.relative is None:
        unit = " points" if column.is_share else ""
        mean, half = found.mean * column.scale, found.half_width
        half = None if half is None else half * column.scale
    else:
        unit, mean = "%", found.relative * 100
        half = None if found.relative_half_width is None else found.relative_half_width * 100
    if not unit and 0 < abs(mean) < 1:  # an amount, such as a cost of cents
        least, text, error = 0.0, f"{mean:+.3g}", f"{half or 0.0:.3g}"
    else:
        least, error = 0.05, f"{half or 0.0:.1f}"
        text = f"{mean:+.1f}" if abs(mean) >= least else "0.0"
    if half is None:
        return text + unit
    return f"{text} ± {error}{unit}" + (UNSURE if least <= abs(mean) <= half else "")


def _unitless(header: str) -> str:
    words, _, unit = header.rpartition(" ")
    return words if unit in UNITS else header


def _columns(summary: Summary, *, budget: bool) -> list[CampaignColumn]:
    kept = ("over_budget_s",) if budget else ()
    return [each for each in COLUMNS if each.metric in kept or _is_shown(each, summary)]


def _is_shown(column: CampaignColumn, summary: Summary) -> bool:
    found = [summary.spreads[label].get(column.metric) for label in summary.labels]
    known = [each for each in found if each is not None]
    return bool(known) and (not column.optional or any(each.mean for each in known))


def _best(column: CampaignColumn, summary: Summary) -> set[str]:
    """Return the policies with the best printed mean; none where all are alike."""
    means: Mapping[str, float] = {
        label: found.mean
        for label in summary.labels
        if (found := summary.spreads[label].get(column.metric)) is not None
    }
    if not column.better or len(means) < 2:
        return set()
    top = max(means.values(), key=lambda mean: mean * column.better)
    winners = {label for label, mean in means.items() if _mean(mean, column) == _mean(top, column)}
    return set() if len(winners) == len(means) else winners


def _mean(mean: float, column: CampaignColumn) -> str:
    value = mean * column.scale
    return f"{value:,.{_decimals(value, column.digits)}f}"


def _decimals(value: float, digits: int) -> int:
    """Return the decimals of so many significant digits: `0.0123`, `1,234`."""
    if value == 0 or not math.isfinite(value):
        return 0
    return min(6, max(0, digits - 1 - math.floor(math.log10(abs(value)))))


IN_WORDS = {
    "misses": "Share of deadlines missed, by policy",
    "fairness": "Jain's index over users, by policy",
}
SCOPES = {"gpu": "energy of the GPUs", "cluster": "energy of the whole cluster"}


def report_of_campaign(store: Store, experiment: Experiment) -> Document:
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
        blocks = _variant(summary_of(found), own, said, budgets_w=_budgets_w(scenario))
        sections.append(Section(variant or "Policies", tuple(blocks)))
    if not outcomes:
        sections.append(Section("Policies", (Paragraph("No simulation has ended yet."),)))
    seeds = experiment.spec.get("seeds", "")
    return Document(
        title=f"Campaign {name}",
        subtitle=f"simulated, {scope}; seeds {seeds}; {experiment.status}",
        sections=tuple(sections),
        about={"kind": "campaign", "id": experiment.experiment_id},
    )


def _budgets_w(scenario: Mapping[str, Any]) -> list[float]:
    """Return the values of the power budget; empty without one."""
    budget = scenario.get("budget")
    values = budget.get("values") if isinstance(budget, Mapping) else None
    return [float(w) for w in values or () if isinstance(w, int | float) and w > 0]


def _variant(
    summary: Summary, rows: list[dict[str, Any]], said: str, *, budgets_w: list[float]
) -> list[Block]:
    seeds = len(summary.seeds)
    title = f"Mean ± sd of {seeds} seeds; * best" if seeds > 1 else "One seed: no deviation"
    tables: list[Block] = [policy_table(summary, title, budget=bool(budgets_w))]
    differences = difference_table(summary, budget=bool(budgets_w))
    if differences is not None:
        tables.append(differences)
    # names of charts are places on the page: one variant's must differ from another's
    end = (
        "".join(c if c.isalnum() else "-" for c in str(rows[0].get("variant", ""))) if rows else ""
    )
    blocks: list[Block] = []
    if budgets_w and rows:
        # what such a scenario is about comes first
        power = budget_figure(rows, budgets_w, said)
        blocks.append(Chart(f"budget{end}", power, "Mean and peak power against the budget"))
    blocks += tables
    if rows:
        chart = trade_off_figure(rows, said)
        blocks.append(Chart(f"trade-off{end}", chart, "Jobs per hour against energy, by policy"))
    blocks += [
        Chart(f"{name}{end}", chart, IN_WORDS[name])
        for name, chart in goal_figures(rows, said).items()
    ]
    return [*blocks, *(Note(text, tone="warning", title=title) for title, text in _faults(summary))]


def _faults(summary: Summary) -> Iterator[tuple[str, str]]:
    for (policy, seed), error in summary.failed.items():
        yield "Failed:", f"{policy} on seed {seed}: {error}"
    for why, count in summary.never.items():
        yield "Can never run:", f"{count} jobs: {why}"
    for policy, (count, first) in summary.left.items():
        yield "Left:", f"{count} jobs under {policy}, the first: {first}"
    for policy, (count, first) in summary.refused.items():
        yield "Refused:", f"{count} actions of {policy}, the first: {first}"
