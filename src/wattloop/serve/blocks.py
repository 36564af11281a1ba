"""Parts of reports on pages; charts as definitions that the page's script draws."""

import json
from collections.abc import Sequence
from html import escape

from markupsafe import Markup

from wattloop.report.document import Block, Chart, Document
from wattloop.report.html import block_html

__all__ = ["blocks_html", "sections_html"]


def blocks_html(blocks: Sequence[Block]) -> Markup:
    """Blocks as HTML; their texts are escaped where they are made."""
    return Markup("\n".join(_block(block) for block in blocks))


def sections_html(document: Document) -> list[tuple[str, Markup]]:
    """Heading and content of every section of a report."""
    return [(each.heading, blocks_html(each.blocks)) for each in document.sections]


def _block(block: Block) -> str:
    if not isinstance(block, Chart):
        return block_html(block)
    name = escape(block.name)
    # data, not a script: it may not be ended by a text in it
    spec = json.dumps(block.chart.to_dict(validate=False)).replace("<", "\\u003c")
    return (
        f'<figure><div class="chart" data-chart="spec-{name}" role="group" '
        f'aria-label="{escape(block.alternative)}"></div>'
        f'<script type="application/json" id="spec-{name}">{spec}</script></figure>'
    )
