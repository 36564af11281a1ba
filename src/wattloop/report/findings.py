"""Analyses as report parts: tables, figures and warnings."""

from collections.abc import Callable, Mapping
from typing import Any

from wattloop.analyze.findings import Findings
from wattloop.core.errors import ConfigError
from wattloop.core.table import Table
from wattloop.report.document import Block, Chart, Note, Section

ROWS_SHOWN = 40


def findings_blocks(found: Findings) -> list[Block]:
    """Return tables with their notes, and warnings set apart."""
    cells = found.cells()
    numbers = frozenset(
        place
        for place, key in enumerate(found.columns)
        if any(isinstance(row.get(key), int | float) for row in found.rows)
    )
    more = len(cells) - ROWS_SHOWN
    facts = "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in _facts(found).items())
    notes = (
        *([facts] if facts else ()),
        *found.notes,
        *((f"and {more} more rows",) if more > 0 else ()),
    )
    blocks: list[Block] = [
        Table.of(found.headers, tuple(cells[:ROWS_SHOWN]), found.title, numbers, notes)
    ]
    blocks += [Note(text, tone="warning", title="Beware:") for text in found.warnings]
    for other in found.others:
        blocks += findings_blocks(other)
    return blocks


def analysis_section(
    heading: str,
    analysis: Callable[[], Findings],
    figures: Callable[[Any], Mapping[str, Any]],
) -> Section:
    """Return the section of one analysis, or the reason why it cannot be made."""
    try:
        found = analysis()
    except ConfigError as error:
        return Section(heading, (Note(str(error), title="Not possible:"),))
    drawn = [
        Chart(name, chart, f"{heading}: {found.title}")
        for name, chart in figures(found).items()
        if chart is not None
    ]
    return Section(heading, (*drawn, *findings_blocks(found)))


def _facts(found: Findings) -> dict[str, str]:
    from wattloop.analyze.findings import cell

    return {name: cell(value) for name, value in found.facts.items()}
