"""What `wattloop simulate` prints of a campaign."""

from typing import TYPE_CHECKING

from wattloop.cli.output import print_table
from wattloop.report.campaign_table import difference_cells, policy_cells

if TYPE_CHECKING:
    from wattloop.schedule.campaigns.summary import Summary

__all__ = ["print_campaign"]

SPARE = ("Jain share", "Jain JCT", "idle kWh", "peak kW", "JCT p95 min", "preemptions", "JCT p95")


def print_campaign(summary: "Summary", title: str, *, budget: bool = False) -> None:
    """Mean and deviation of each policy, then how each differs from the first.

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
