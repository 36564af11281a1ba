"""Parts of reports on pages."""

from collections.abc import Sequence

from markupsafe import Markup

from wattloop.report.document import Block
from wattloop.report.html import block_html

__all__ = ["blocks_html"]


def blocks_html(blocks: Sequence[Block]) -> Markup:
    """Blocks as HTML; their texts are escaped where they are made."""
    return Markup("\n".join(block_html(block) for block in blocks))
