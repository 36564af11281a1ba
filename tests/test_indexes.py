"""Promises of the lists that readers start from: they are complete and correct."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def links_in(page: Path) -> list[str]:
    """Return the files that a page of Markdown links to, as written."""
    return re.findall(r"\]\(([^)#:]+\.md)", page.read_text("utf-8"))


def test_every_decision_is_in_the_list_of_decisions() -> None:
    """`docs/adr/README.md` lists each decision once, in the order of their numbers."""
    pages = sorted(each.name for each in (DOCS / "adr").glob("[0-9]*.md"))
    links = links_in(DOCS / "adr" / "README.md")
    assert [name for name in links if not name.startswith("../")] == pages


def test_every_page_is_in_the_list_of_pages() -> None:
    """`docs/README.md` leads to every page of the documentation."""
    pages = {each.name for each in DOCS.glob("*.md")} - {"README.md"}
    assert pages <= set(links_in(DOCS / "README.md"))


@pytest.mark.parametrize(
    "package", ["wattloop", "wattloop.predict", "wattloop.tune", "wattloop.kernels"]
)
def test_every_public_name_is_in_the_documentation(package: str) -> None:
    """Every public name of a package stands on a page, in code type."""
    pages = "".join(each.read_text("utf-8") for each in DOCS.glob("*.md"))
    code = " ".join(re.findall(r"```.*?```|`[^`\n]+`|^    .*$", pages, re.DOTALL | re.MULTILINE))
    names = importlib.import_module(package).__all__
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []


def test_the_changelog_is_by_area() -> None:
    """A user of one area finds its changes in one place, and every link leads to a page."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    parts = re.split(r"^### ", text.partition("## [Unreleased]")[2], flags=re.MULTILINE)[1:]
    sections = {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}
    assert list(sections) == [
        "Measure",
        "Control",
        "Cap and save",
        "Tune",
        "Predict",
        "Simulate and schedule",
        "Agent and fleet",
        "Dashboard and reports",
        "Compatibility",
        "Numbers",
    ]
    assert all(section.strip() for section in sections.values())
    assert [page for page in links_in(ROOT / "CHANGELOG.md") if not (ROOT / page).exists()] == []


def test_source_documents_are_named_where_they_are_used() -> None:
    """A page that mentions the thesis or Geißler et al. names the authors."""
    unnamed = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text("utf-8")
        prose = re.sub(
            r"^```.*?^```$|`[^`\n]*`|\]\([^)]*\)", "", text, flags=re.DOTALL | re.MULTILINE
        )
        assert not re.search(r"\bdocument 00\d\b", prose, re.IGNORECASE), page
        speaks = re.search(r"\bthesis\b|Geißler et al\.", prose, re.IGNORECASE)
        if speaks and page.name != "sources.md" and "sources.md" not in text:
            unnamed.append(page.relative_to(DOCS).as_posix())
    assert unnamed == []


def test_the_slowest_files_exist() -> None:
    """A renamed file would start last again, and the other workers would wait for it."""
    text = (ROOT / "tests" / "conftest.py").read_text("utf-8")
    named = re.findall(r'"(tests/[^"]+\.py)"', text)
    assert named
    assert [path for path in named if not (ROOT / path).is_file()] == []
