"""Reports as one offline HTML file."""

import html
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from wattloop.core.table import Table
from wattloop.report.document import Badges, Block, Chart, Document, Facts, Note, Paragraph, Section
from wattloop.report.figures.render import drawing_scripts, is_wide, style_sheet

_e = html.escape
LONG = 40
"""Values of more characters are sentences, not figures."""


def document_html(document: Document) -> str:
    """Render the whole page, with style, scripts and data inside.

    Raises:
        ConfigError: the document has charts, and what draws them is not installed.
    """
    charts = document.charts()
    scripts = drawing_scripts(charts, renderer="svg") if charts else ""
    sections = "\n".join(_section(section) for section in document.sections)
    made = datetime.fromtimestamp(document.made_wall_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    contents = "".join(
        f'<li><a href="#{_anchor(each.heading)}">{_e(each.heading)}</a></li>'
        for each in document.sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="Wattloop {_e(document.version)}">
<title>{_e(document.title)}</title>
<style>{style_sheet()}</style>
</head>
<body>
<header>
<h1>{_e(document.title)}</h1>
<p class="subtitle">{_e(document.subtitle)}</p>
</header>
<nav aria-label="Sections"><ul>{contents}</ul></nav>
<main>
{sections}
</main>
<footer>Made by Wattloop {_e(document.version)}, {made}.</footer>
{scripts}
</body>
</html>
"""


def block_html(block: Block) -> str:
    """Render one part of a page; charts are empty figures that a script fills by name."""
    return _BLOCKS[type(block)](block)


def _section(section: Section) -> str:
    blocks = "\n".join(block_html(block) for block in section.blocks)
    anchor = _anchor(section.heading)
    return (
        f'<section aria-labelledby="{anchor}">\n<h2 id="{anchor}">{_e(section.heading)}</h2>\n'
        f"{blocks}\n</section>"
    )


def _paragraph(block: Paragraph) -> str:
    return f"<p>{_e(block.text)}</p>"


def _note(block: Note) -> str:
    title = f"<strong>{_e(block.title)}</strong> " if block.title else ""
    command = f"<pre><code>{_e(block.command)}</code></pre>" if block.command else ""
    source = f'<p class="source">{_e(block.source)}</p>' if block.source else ""
    return (
        f'<div class="note {_e(block.tone)}"><p>{title}{_e(block.text)}</p>{command}{source}</div>'
    )


def _facts(block: Facts) -> str:
    facts = "".join(
        f"<div><dt>{_e(fact.label)}</dt><dd{_long(fact.value)}>{_e(fact.value)}"
        + (f'<span class="remark">{_e(fact.note)}</span>' if fact.note else "")
        + "</dd></div>"
        for fact in block.facts
    )
    return f'<dl class="facts">{facts}</dl>'


def _long(text: str) -> str:
    return ' class="long"' if len(text) > LONG else ""


def _badges(block: Badges) -> str:
    badges = "".join(
        f'<li class="badge {_e(badge.tone)}"><span class="what">{_e(badge.label)}</span> '
        f'<span class="value">{_e(badge.value)}</span> '
        f'<span class="meaning">{_e(badge.meaning)}</span></li>'
        for badge in block.badges
    )
    return f'<ul class="badges">{badges}</ul>'


def _table(block: Table) -> str:
    def line(texts: Sequence[str], tag: str, scope: str = "") -> str:
        kinds = (' class="number"' if column.is_number else "" for column in block.columns)
        cells = (
            # a head without a text is a plain cell: there is nothing to read out
            f"<{tag}{kind}{scope}>{_e(text)}</{tag}>" if text else f"<td{kind}></td>"
            for kind, text in zip(kinds, texts, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"

    head = line(block.headers, "th", ' scope="col"')
    rows = "".join(line(texts, "td") for texts in block.texts())
    caption = f"<caption>{_e(block.title)}</caption>" if block.title else ""
    notes = "".join(f'<p class="source">{_e(note)}</p>' for note in block.notes)
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{_e(block.title)}">'
        f"<table>{caption}<thead>{head}</thead><tbody>{rows}</tbody></table></div>{notes}"
    )


def _chart(block: Chart) -> str:
    return (
        f'<figure{is_wide(block.chart)}><div class="chart" id="chart-{_e(block.name)}" '
        f'role="group" aria-label="{_e(block.alternative)}"></div></figure>'
    )


_BLOCKS: dict[type, Callable[[Any], str]] = {
    Paragraph: _paragraph,
    Note: _note,
    Facts: _facts,
    Badges: _badges,
    Table: _table,
    Chart: _chart,
}


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") or "section"
