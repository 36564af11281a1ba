"""Reports as PDF, typeset by Typst with the layout `report.typ`."""

import json
import re
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.table import Table
from wattloop.report.document import Badges, Block, Chart, Document, Facts, Note, Paragraph
from wattloop.report.figures.render import image_of, needs_libraries

REMEDY = "pip install 'wattloop[report]'"
PAGE_PT = 482.0
"""Width of the text on a page."""
CHART_PT_PER_PX = 0.72
CHART_MARGIN_PX = {"left": 20, "right": 24, "top": 5, "bottom": 5}
"""Charts are laid out in Liberation Sans. Without that font they are typeset in a wider one, whose
labels would be cut off at the edge."""


def document_pdf(document: Document) -> bytes:
    """Render the whole report.

    Raises:
        ConfigError: what typesets it, or what draws its charts, is not installed.
    """
    needs_typesetter()
    import typst

    if document.charts():
        needs_libraries()
    with tempfile.TemporaryDirectory(prefix="wattloop-report-") as folder:
        place = Path(folder)
        (place / "data.json").write_text(json.dumps(_data(document, place)), "utf-8")
        template = resources.files("wattloop.report").joinpath("report.typ").read_text("utf-8")
        (place / "report.typ").write_text(template, "utf-8")
        return bytes(typst.compile(place / "report.typ", root=place))


def needs_typesetter() -> None:
    """Raise ConfigError with the command that installs what is missing."""
    try:
        import typst  # noqa: F401 - only whether it is there
    except ImportError:
        raise ConfigError(f"PDF reports need typst, which is not installed: {REMEDY}") from None


def _data(document: Document, folder: Path) -> dict[str, Any]:
    made = datetime.fromtimestamp(document.made_wall_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {
        "title": document.title,
        "subtitle": document.subtitle,
        "version": document.version,
        "made": f"Made by Wattloop {document.version}, {made}",
        "sections": [
            {"heading": each.heading, "blocks": [_block(b, folder) for b in each.blocks]}
            for each in document.sections
        ],
    }


def _block(block: Block, folder: Path) -> dict[str, Any]:
    return _BLOCKS[type(block)](block, folder)


def _paragraph(block: Paragraph, _: Path) -> dict[str, Any]:
    return {"kind": "paragraph", "text": _breakable(block.text)}


def _note(block: Note, _: Path) -> dict[str, Any]:
    return {
        "kind": "note",
        "text": _breakable(block.text),
        "tone": block.tone,
        "title": block.title,
        "command": block.command,
        "source": block.source,
    }


def _facts(block: Facts, _: Path) -> dict[str, Any]:
    facts = [
        {"label": f.label, "value": _breakable(f.value), "note": _breakable(f.note)}
        for f in block.facts
    ]
    return {"kind": "facts", "facts": facts}


def _badges(block: Badges, _: Path) -> dict[str, Any]:
    badges = [
        {"label": b.label, "value": b.value, "tone": b.tone, "meaning": b.meaning}
        for b in block.badges
    ]
    return {"kind": "badges", "badges": badges}


LONGEST_WORD = 24
"""Longer words without a space may be broken: in a narrow column they would cover the next one."""


def _breakable(text: str) -> str:
    """Return a text whose long words may be broken, after a sign or else anywhere."""
    return re.sub(rf"\S{{{LONGEST_WORD},}}", lambda found: _broken(found[0]), text)


def _broken(word: str) -> str:
    parts = re.findall(r"[^/_.,:;=-]+[/_.,:;=-]*|[/_.,:;=-]+", word)
    pieces = [part[at : at + 12] for part in parts for at in range(0, len(part), 12)]
    return "\u200b".join(pieces)


def _table(block: Table, _: Path) -> dict[str, Any]:
    return {
        "kind": "table",
        "columns": [_breakable(header) for header in block.headers],
        "rows": [[_breakable(text) for text in texts] for texts in block.texts()],
        "caption": block.title,
        "numbers": [n for n, column in enumerate(block.columns) if column.is_number],
        "notes": list(block.notes),
    }


def _chart(block: Chart, folder: Path) -> dict[str, Any]:
    name = f"chart-{block.name}.svg"
    image = image_of({**block.chart, "padding": CHART_MARGIN_PX}, ".svg")
    (folder / name).write_bytes(image)
    return {
        "kind": "chart",
        "file": name,
        "alternative": block.alternative,
        "width": min(PAGE_PT, _width_px(image) * CHART_PT_PER_PX),
    }


def _width_px(svg: bytes) -> float:
    found = re.search(rb'<svg[^>]*? width="([\d.]+)', svg)
    return float(found.group(1)) if found else PAGE_PT


_BLOCKS: dict[type, Callable[[Any, Path], dict[str, Any]]] = {
    Paragraph: _paragraph,
    Note: _note,
    Facts: _facts,
    Badges: _badges,
    Table: _table,
    Chart: _chart,
}
