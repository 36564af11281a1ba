"""Tables for a pull request."""

from collections.abc import Sequence

from wattloop.check.figures import format_figure
from wattloop.check.verdict import BaselineComparison, EnergyVerdict, Judgement
from wattloop.core.units import format_change

HEADERS = ("figure", "baseline", "now", "change", "noise", "verdict")
MARKS = {
    EnergyVerdict.REGRESSION: "❌ ",
    EnergyVerdict.IMPROVED: "✅ ",
    EnergyVerdict.SAME: "✅ ",
    EnergyVerdict.UNCLEAR: "❔ ",
}


def comparison_markdown(comparison: BaselineComparison, remarks: Sequence[str]) -> str:
    verdict = comparison.verdict
    rows = [
        (*row[:-1], MARKS[verdict] + f"**{row[-1]}**")
        for row in [judgement_row(comparison.judged, comparison.provenance)]
    ]
    rows += [(*judgement_row(one)[:-1], "shown only") for one in comparison.others]
    lines = [
        f"### Energy check: {verdict.value}",
        "",
        f"`{' '.join(comparison.name.split()).replace('`', '')}`",
        "",
        table(HEADERS, rows),
    ]
    if remarks:
        lines += ["", *(f"- {as_cell(remark)}" for remark in remarks)]
    return "\n".join(lines) + "\n"


def judgement_row(one: Judgement, provenance: str = "") -> tuple[str, ...]:
    how = f" ({provenance})" if provenance else ""
    return (
        one.kind.words + how,
        format_figure(one.kind, one.before),
        format_figure(one.kind, one.now),
        "–" if one.change is None else format_change(one.change),
        "not known" if one.noise is None else f"±{one.noise:.1%}",
        one.verdict.value,
    )


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; whatever stands in a cell is text."""
    lines = [headers, ["---"] * len(headers), *([as_cell(c) for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_cell(text: str) -> str:
    """On one line, without what Markdown or HTML would act upon."""
    plain = " ".join(str(text).split())
    for sign in ("\\", "|", "[", "`"):
        plain = plain.replace(sign, f"\\{sign}")
    return plain.replace("<", "&lt;")
