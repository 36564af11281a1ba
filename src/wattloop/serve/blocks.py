"""HTML of report parts on pages; charts are definitions that the page's script draws."""

import json
from collections.abc import Iterator, Sequence
from html import escape

from markupsafe import Markup

from wattloop.report.document import Block, Chart, Document
from wattloop.report.figures.chart import chart_parts
from wattloop.report.figures.render import is_wide
from wattloop.report.html import block_html


def blocks_html(blocks: Sequence[Block]) -> Markup:
    """Render blocks as HTML; texts are escaped where they are made."""
    return _written(blocks, set())


def sections_html(document: Document) -> list[tuple[str, Markup]]:
    """Render heading and content of every section of a report."""
    written: set[str] = set()
    return [(each.heading, _written(each.blocks, written)) for each in document.sections]


def _written(blocks: Sequence[Block], written: set[str]) -> Markup:
    """Render blocks; data sets that the page has already (`written`) are not repeated."""
    parts: list[str] = []
    for block in blocks:
        if isinstance(block, Chart):
            parts += _chart(block, written)
        else:
            parts.append(block_html(block))
    return Markup("\n".join(parts))


def _chart(block: Chart, written: set[str]) -> Iterator[str]:
    spec, tables = chart_parts(block.chart)
    for table in tables:
        if table not in written:
            written.add(str(table))
            yield _data(table, table.text)
    name = escape(block.name)
    yield (
        f'<figure{is_wide(block.chart)}><div class="chart" data-chart="spec-{name}" role="group" '
        f'aria-label="{escape(block.alternative)}"></div></figure>'
    )
    yield _data(f"spec-{name}", json.dumps(spec))


def _data(name: str, text: str) -> str:
    # data, not a script: it may not be ended by a text in it
    text = text.replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'
