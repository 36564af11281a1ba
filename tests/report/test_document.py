"""Promises of reports: no network, texts shown as texts, and complete pages."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from wattloop.core.table import Table
from wattloop.report.document import (
    Badges,
    Chart,
    Document,
    DocumentBadge,
    Fact,
    Facts,
    Note,
    Paragraph,
    Section,
)

pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")

from wattloop.report.figures.chart import Spec, mark
from wattloop.report.html import document_html
from wattloop.report.pdf import document_pdf

NASTY = '<script>alert(1)</script> & #let x "quoted" \\ $math$ *bold*'


def chart() -> Spec:
    """Draw two bars."""
    return mark("bar", rows=[{"x": "</script>", "y": 1}, {"x": "b", "y": 2}], x="x:N", y="y:Q")


def nasty_document() -> Document:
    """Build every kind of block, with a text that has a meaning in HTML and in Typst."""
    blocks = (
        Paragraph(NASTY),
        Note(NASTY, tone="warning", title=NASTY, command=NASTY, source=NASTY),
        Facts((Fact(NASTY, NASTY, NASTY),)),
        Badges((DocumentBadge(NASTY, NASTY, "good", NASTY),)),
        Table.of((NASTY, "n"), ((NASTY, "1"), ("b", "2")), NASTY, (1,), (NASTY,)),
        Chart("bars", chart(), NASTY),
    )
    return Document(NASTY, NASTY, (Section(NASTY, blocks),), 0.0, "0")


def test_texts_are_shown_and_never_run() -> None:
    """A tag or name with markup in it is text on the page."""
    page = document_html(nasty_document())
    body, _, scripts = page.partition("<script>")
    assert "alert(1)" in body
    assert "<script" not in body
    assert scripts.count("</script>") == 2  # of the two in the template


def test_a_page_loads_nothing() -> None:
    """No element loads anything from another address."""
    body = document_html(nasty_document()).partition("<script>")[0]
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", body)


def test_every_chart_has_words_for_those_who_cannot_see_it() -> None:
    """The alternative text is the chart's label."""
    page = document_html(nasty_document())
    assert 'role="group" aria-label="&lt;script&gt;' in page


def test_the_same_parts_are_typeset() -> None:
    """Typst accepts every kind of block with any text."""
    pytest.importorskip("typst", reason="typst is not installed")
    assert document_pdf(nasty_document()).startswith(b"%PDF-")


def wide_document(columns: int) -> Document:
    """Build a table like that of a campaign with all its figures."""
    names = tuple(f"figure {n}" for n in range(columns))
    rows = tuple((policy, *["1,234.5 ± 12.3 *"] * columns) for policy in ("fifo", "aurachronos"))
    table = Table.of(("policy", *names), rows, "wide", range(1, columns + 1))
    return Document("t", "s", (Section("h", (table,)),), 0.0, "0")


@pytest.mark.parametrize("columns", [2, 8, 20])
def test_wide_tables_are_typeset_below_each_other(columns: int, tmp_path: Path) -> None:
    """No column overlaps another: the rest follows below, with the first column again."""
    found = words_of(wide_document(columns), tmp_path)
    assert found.count(">1,234.5<") == 2 * columns


def test_words_without_a_space_are_broken_instead_of_covering_others(tmp_path: Path) -> None:
    """Paths, identifiers and hashes in columns, facts and notes."""
    long = "/scratch/users/ada/experiments/" + "unbroken" * 12
    rows = ((long, "a" * 90, "1.0"), ("short", "b", "2.0"))
    table = Table.of(("where", "hash", "value"), rows, "long", (2,))
    facts = Facts((Fact("folder", long), Fact("other", "x")))
    parts = (table, facts, Note(long), Paragraph(long))
    words_of(Document("t", "s", (Section("h", parts),), 0.0, "0"), tmp_path)


def words_of(document: Document, folder: Path) -> str:
    """Return the words of its PDF with their places; check that none is outside the margin or
    overlaps.
    """
    pytest.importorskip("typst", reason="typst is not installed")
    pdftotext = shutil.which("pdftotext")
    if pdftotext is None:
        pytest.skip("pdftotext of poppler-utils is not installed")
    (folder / "wide.pdf").write_bytes(document_pdf(document))
    words = [pdftotext, "-bbox", str(folder / "wide.pdf"), "-"]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    boxes = [
        tuple(map(float, re.findall(r'(?:xMin|yMin|xMax|yMax)="([\d.]+)"', line)))
        for line in found.splitlines()
        if "<word" in line
    ]
    for number, (left, top, right, bottom) in enumerate(boxes):
        assert right < 595 - 50, "beyond the margin of the page"
        for x0, y0, x1, y1 in boxes[:number]:
            apart = right <= x0 + 0.5 or x1 <= left + 0.5 or bottom <= y0 + 2 or y1 <= top + 2
            assert apart, "printed over another word"
    return found


def test_a_page_without_charts_needs_no_scripts() -> None:
    """A page of text only stays small."""
    plain = Document("t", "s", (Section("h", (Paragraph("p"),)),), 0.0, "0")
    page = document_html(plain)
    assert "<script" not in page
    assert len(page) < 10_000
