"""What came of the steps of a study as rows of text, for a terminal and for a report alike."""

from collections.abc import Mapping
from typing import Any

from wattloop.core.units import format_number

__all__ = [
    "BEST_COLUMNS",
    "CANDIDATE_COLUMNS",
    "best_rows",
    "candidate_rows",
    "change_text",
    "differed_texts",
    "twin_rows",
]

UNKNOWN = "-"
BEST_COLUMNS = ("metric", "of", "best setting", "gain %", "how", "sweep")
CANDIDATE_COLUMNS = ("candidate", "figure", "goal", "mean", "change", "result")


def best_rows(found: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """The best settings of a characterization; a gain that could be chance is said to be so."""
    return tuple(
        (
            row["metric"],
            row["of"] or "all",
            row["setting"],
            f"{row['gain_pct']:+.1f}" + ("" if row["beyond_noise"] else " (within noise)"),
            row["provenance"],
            row["sweep"],
        )
        for row in found["best"]
    )


def twin_rows(found: Mapping[str, Any], within: str, beyond: str) -> tuple[tuple[str, ...], ...]:
    """A simulation beside what was measured: both values, how far off, and in which word."""
    return tuple(
        (
            row["metric"],
            format_number(row["measured"], 5),
            format_number(row["simulated"], 5),
            f"{row['off']:.1%}",
            within if row["within"] else beyond,
        )
        for row in found["twin"]
    )


def candidate_rows(found: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Every goal of every candidate that was simulated."""
    return tuple(
        (name, v["metric"], v["goal"], format_number(v["after"], 5), change_text(v), v["verdict"])
        for name, candidate in found["candidates"].items()
        for v in candidate["verdicts"]
    )


def differed_texts(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Figures that validation found other than they were predicted."""
    return tuple(
        f"{row['metric']} predicted {_five(row['predicted'])}, found {_five(row['found'])}"
        for row in found["differed"]
    )


def change_text(verdict: Mapping[str, Any]) -> str:
    """Against the baseline."""
    return UNKNOWN if verdict["change"] is None else f"{verdict['change']:+.1%}"


def _five(value: float | None) -> str:
    return UNKNOWN if value is None else format_number(value, 5)
