"""A campaign as tables: a row per policy, the best marked, and differences to the first."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from wattloop.analyze.intervals import Estimate
from wattloop.schedule.campaigns.summary import Summary
from wattloop.schedule.metrics.comparison import Difference

__all__ = [
    "COLUMNS",
    "Cells",
    "Column",
    "change_text",
    "difference_cells",
    "policy_cells",
    "spread_text",
]

UNKNOWN = "-"
BEST = " *"
UNSURE = " ?"


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of the table.

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
    Column("jobs_done", "jobs done", digits=4),
    Column("throughput_per_h", "jobs/h", better=1),
    Column("energy_kwh", "energy kWh", better=-1),
    Column("idle_kwh", "idle kWh"),
    Column("wasted_kwh", "wasted kWh", better=-1, optional=True),
    Column("jct_mean_s", "JCT min", 1 / 60, better=-1),
    Column("jct_p95_s", "JCT p95 min", 1 / 60, better=-1),
    Column("miss_rate", "misses %", 100.0, better=-1, is_share=True),
    Column("peak_power_w", "peak kW", 1e-3),
    Column("over_budget_s", "over budget s", better=-1, optional=True),
    Column("jain_jct", "Jain JCT", better=1),
    Column("jain_share", "Jain share", better=1),
    Column("preemptions", "preemptions", optional=True),
    Column("carbon_kg", "CO2e kg", better=-1, optional=True),
    Column("cost", "cost", better=-1, optional=True),
)
UNITS = ("kWh", "min", "%", "kW", "s", "kg")
DIFFERENCES = (
    *("throughput_per_h", "energy_kwh", "jct_mean_s", "jct_p95_s", "miss_rate"),
    *("jain_jct", "jain_share", "carbon_kg", "cost"),
)


class Cells(NamedTuple):
    """A table of texts."""

    headers: tuple[str, ...]
    rows: list[tuple[str, ...]]
    title: str


def policy_cells(summary: Summary, title: str = "", *, budget: bool = False) -> Cells:
    """Mean and deviation of each policy.

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
    return Cells(("policy", *(column.header for column in columns)), rows, title)


def difference_cells(summary: Summary, *, budget: bool = False) -> Cells | None:
    """How each policy differs from the first; None when there is one only."""
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
    return Cells(headers, rows, f"against {summary.labels[0]}, {how}")


def spread_text(found: Estimate | None, column: Column) -> str:
    """`10.9 ± 0.4`; the mean alone where one seed says nothing of the deviation."""
    if found is None:
        return UNKNOWN
    text = _mean(found.mean, column)
    if found.sd is None:
        return text
    decimals = _decimals(found.mean * column.scale, column.digits)
    return f"{text} ± {found.sd * column.scale:,.{decimals}f}"


def change_text(found: Difference | None, column: Column) -> str:
    """`-10.5 ± 1.2%`, in points for shares; a question mark where it may be chance."""
    if found is None:
        return UNKNOWN
    if column.is_share or found.relative is None:
        unit = " points" if column.is_share else ""
        mean, half = found.mean * column.scale, found.half_width
        half = None if half is None else half * column.scale
    else:
        unit, mean = "%", found.relative * 100
        half = None if found.relative_half_width is None else found.relative_half_width * 100
    text = f"{mean:+.1f}" if abs(mean) >= 0.05 else "0.0"
    if half is None:
        return text + unit
    return f"{text} ± {half:.1f}{unit}" + (UNSURE if 0.05 <= abs(mean) <= half else "")


def _unitless(header: str) -> str:
    words, _, unit = header.rpartition(" ")
    return words if unit in UNITS else header


def _columns(summary: Summary, *, budget: bool) -> list[Column]:
    kept = ("over_budget_s",) if budget else ()
    return [each for each in COLUMNS if each.metric in kept or _is_shown(each, summary)]


def _is_shown(column: Column, summary: Summary) -> bool:
    found = [summary.spreads[label].get(column.metric) for label in summary.labels]
    known = [each for each in found if each is not None]
    return bool(known) and (not column.optional or any(each.mean for each in known))


def _best(column: Column, summary: Summary) -> set[str]:
    """Who has the best mean, as far as it is printed; nobody where all are alike."""
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


def _mean(mean: float, column: Column) -> str:
    value = mean * column.scale
    return f"{value:,.{_decimals(value, column.digits)}f}"


def _decimals(value: float, digits: int) -> int:
    """How many decimals so many significant digits take: `0.0123`, `1,234`."""
    if value == 0 or not math.isfinite(value):
        return 0
    return min(6, max(0, digits - 1 - math.floor(math.log10(abs(value)))))
