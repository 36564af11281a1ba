"""A card as Markdown, with the lines that Hugging Face's model cards have a place for."""

import json
from datetime import UTC, datetime

from wattloop.check.markdown import as_cell, table
from wattloop.report.card import Card

__all__ = ["card_markdown"]

HEADERS = ("", "figure", "how", "from")


def card_markdown(card: Card) -> str:
    """One table per section."""
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
    """`co2_eq_emissions`, in grams; empty where there are none."""
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
