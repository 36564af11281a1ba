"""Energy cards as Markdown for Hugging Face, and as SVG."""

import json
from datetime import UTC, datetime
from html import escape
from textwrap import wrap

from wattloop.check.markdown import as_cell, table
from wattloop.report.card import Card, CardFigure

HEADERS = ("", "figure", "how", "from")


def card_markdown(card: Card) -> str:
    day = datetime.fromtimestamp(card.trained_wall_s, UTC).strftime("%Y-%m-%d")
    lines = [f"## Energy card: {as_cell(card.model)}", "", f"Trained {day}, run `{card.run_id}`."]
    for section in card.sections:
        rows = [
            (
                figure.label,
                f"**{figure.shown}**",
                figure.provenance or "–",
                figure.note or "–",
            )
            for figure in section.figures
        ]
        lines += ["", f"### {section.heading}", "", table(HEADERS, rows)]
    if card.notes:
        lines += ["", *(f"- {as_cell(note)}" for note in card.notes)]
    metadata = _metadata(card)
    if metadata:
        lines += [
            "",
            "For the head of a model card on Hugging Face:",
            "",
            "```yaml",
            metadata,
            "```",
        ]
    return "\n".join(lines) + "\n"


def _metadata(card: Card) -> str:
    """Return `co2_eq_emissions` in grams; empty where unknown."""
    carbon = card.figure("training_carbon")
    if carbon.value is None:
        return ""
    hardware = [
        figure.shown
        for section in card.sections
        for figure in section.figures
        if figure.key.startswith("hardware_")
    ]
    source = f"Wattloop, {carbon.provenance}; {card.figure('carbon_intensity').note}"
    # JSON's strings are YAML's
    lines = [
        "co2_eq_emissions:",
        f"  emissions: {carbon.value:.6g}",
        f"  source: {json.dumps(source)}",
    ]
    if hardware:
        lines.append(f"  hardware_used: {json.dumps(', '.join(hardware), ensure_ascii=False)}")
    return "\n".join(lines)


# A card as one SVG: plain text and rectangles, no font or file from elsewhere.
#
# The label on a package of food is the model: the few figures that matter, large, in one frame.
# Colours follow the reader's light or dark setting.

WIDTH, MARGIN = 460, 20
LINE, SMALL_LINE = 20, 14
NOTE_CHARACTERS = 66
"""What fits into the width at the small size, by the widest of common sans-serif fonts."""

STYLE = """
  svg { color-scheme: light dark; }
  .card { fill: #ffffff; stroke: #1b1f24; }
  text { fill: #1b1f24; font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
  .title { font-size: 22px; font-weight: 800; }
  .model { font-size: 15px; font-weight: 600; }
  .heading { font-size: 13px; font-weight: 700; letter-spacing: 0.4px; }
  .label { font-size: 13px; }
  .value { font-size: 14px; font-weight: 700; text-anchor: end; }
  .note { font-size: 10.5px; fill: #57606a; }
  .rule { stroke: #1b1f24; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #c9d1d9; }
    text { fill: #e6edf3; }
    .note { fill: #9ea7b3; }
    .rule { stroke: #c9d1d9; }
  }
"""


def card_svg(card: Card) -> str:
    page = _Page()
    day = datetime.fromtimestamp(card.trained_wall_s, UTC).strftime("%Y-%m-%d")
    page.text("title", "Energy card", 26)
    for line in wrap(card.model, 48)[:3] or [""]:
        page.text("model", line, 22)
    page.text("note", f"trained {day}, run {card.run_id}", SMALL_LINE)
    for section in card.sections:
        page.rule(5)
        page.text("heading", section.heading, 17)
        for figure in section.figures:
            _figure(page, figure)
    if card.notes:
        page.rule(2)
        for note in card.notes:
            for line in wrap(note, NOTE_CHARACTERS):
                page.text("note", line, SMALL_LINE)
    page.rule(1)
    page.text(
        "note", "made with Wattloop; operational energy only, without making the hardware", 15
    )
    return page.svg(_alternative(card))


def _figure(page: "_Page", figure: CardFigure) -> None:
    values = wrap(figure.shown, 36) or [""]
    page.pair(figure.label, values[0])
    for line in values[1:]:
        page.pair("", line)
    said = ": ".join(part for part in (figure.provenance, figure.note) if part)
    for line in wrap(said, NOTE_CHARACTERS):
        page.text("note", line, SMALL_LINE)


def _alternative(card: Card) -> str:
    """Return the alternative text of the SVG."""
    return "; ".join(
        f"{section.heading}, {figure.label}: {figure.shown}"
        + (f" ({figure.provenance})" if figure.provenance else "")
        for section in card.sections
        for figure in section.figures
    )


class _Page:
    """Lines from top to bottom."""

    def __init__(self) -> None:
        self._y = float(MARGIN)
        self._parts: list[str] = []
        self._title = "Energy card"

    def text(self, kind: str, text: str, height: float) -> None:
        self._y += height
        self._parts.append(
            f'<text class="{kind}" x="{MARGIN}" y="{self._y:g}">{escape(text)}</text>'
        )

    def pair(self, label: str, value: str) -> None:
        self._y += LINE
        right = WIDTH - MARGIN
        if label:
            self._parts.append(
                f'<text class="label" x="{MARGIN}" y="{self._y:g}">{escape(label)}</text>'
            )
        self._parts.append(
            f'<text class="value" x="{right}" y="{self._y:g}">{escape(value)}</text>'
        )

    def rule(self, width: float) -> None:
        self._y += 10 + width / 2
        self._parts.append(
            f'<line class="rule" x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{self._y:g}" '
            f'y2="{self._y:g}" stroke-width="{width:g}"/>'
        )
        self._y += width / 2

    def svg(self, alternative: str) -> str:
        height = self._y + MARGIN
        body = "\n  ".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
            f'viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="card-title card-text">\n'
            f'  <title id="card-title">{self._title}</title>\n'
            f'  <desc id="card-text">{escape(alternative)}</desc>\n'
            f"  <style>{STYLE}</style>\n"
            f'  <rect class="card" x="2" y="2" width="{WIDTH - 4}" height="{height - 4:g}" rx="6" '
            f'stroke-width="2.5"/>\n  {body}\n</svg>\n'
        )
