"""Promises of the documentation site: every page is in it, references follow the code, links work.

`make docs` builds the site; these tests need no MkDocs.
"""

import fnmatch
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.support.transcripts import not_printed

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = runpy.run_path(str(ROOT / "scripts" / "docs_site.py"))
CHECK = runpy.run_path(str(ROOT / "scripts" / "check_site.py"))
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def test_the_navigation_leads_somewhere_and_to_every_page() -> None:
    """Readers of the site find a new page even before the navigation names it."""
    nav = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), yaml.BaseLoader)["nav"]
    pages = [each.relative_to(DOCS).as_posix() for each in DOCS.rglob("*.md")]
    made_at_build = ("reference/", "notebooks/")
    named = [p for p in SITE["_leaves"](nav) if not p.startswith(made_at_build)]
    assert [pattern for pattern in named if not fnmatch.filter(pages, pattern)] == []
    config = SimpleNamespace(nav=[{"Home": "README.md"}], extra={})
    SITE["on_config"](config)
    assert set(pages) <= set(SITE["_leaves"](config.nav))


def test_the_reference_of_the_command_line_has_every_verb_and_option() -> None:
    """It is generated from the program."""
    import typer

    from wattloop.cli.app import VERBS
    from wattloop.cli.commands.runs.command import app

    pages = SITE["_cli_pages"]()
    assert set(pages) == {f"reference/cli/{name}.md" for name in (*VERBS, "README")}
    command = typer.main.get_command(app).commands["list"]  # type: ignore[attr-defined] # a group
    listed = pages["reference/cli/runs.md"].partition("## runs list")[2].partition("\n## ")[0]
    options = [each.opts[0] for each in command.params if each.name != "help"]
    assert options
    assert [name for name in options if f"`{name}" not in listed] == []


def test_the_reference_of_python_has_every_public_name() -> None:
    """Names of `__all__`, by the modules that define them."""
    import importlib

    page = SITE["_python_page"]()
    objects = re.findall(r"^::: (\S+)$", page, re.MULTILINE)
    for package in SITE["PACKAGES"]:
        for name in importlib.import_module(package).__all__:
            assert any(each.rpartition(".")[2] == name for each in objects), (package, name)
    for path in objects:
        module, _, name = path.rpartition(".")
        source = ROOT / "src" / Path(*module.split("."))
        found = (
            source.with_suffix(".py")
            if source.with_suffix(".py").exists()
            else source / "__init__.py"
        )
        assert re.search(
            rf"^(?:class|def|async def) {name}\b|^{name}\b", found.read_text(), re.M
        ), path


def test_the_reference_of_the_api_has_every_call() -> None:
    """It is generated from the server's own OpenAPI document."""
    pytest.importorskip("fastapi", reason="FastAPI is not installed")
    page = SITE["_http_page"]()
    assert "### `GET /api/v1/jobs`" in page
    assert "### `POST /api/v1/predict`" in page
    assert "`since`" in page


def test_a_broken_site_is_noticed(tmp_path: Path) -> None:
    """A broken link or anchor, and a script from another server, fail the build."""
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "search_index.js").write_text('var __index = {"docs": [{}, {}]}')
    (tmp_path / "a.html").write_text('<h1 id="top"></h1><a href="b.html#there">b</a>')
    (tmp_path / "b.html").write_text('<h2 id="there"></h2><a href="a.html#top">a</a>')
    assert CHECK["faults_of"](tmp_path) == []
    broken = '<a href="b.html#gone"></a><a href="c.html"></a><script src="https://x.org/y.js">'
    (tmp_path / "a.html").write_text(broken)
    assert len(CHECK["faults_of"](tmp_path)) == 4  # and b.html's link to a.html#top


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_shows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From top to bottom in a real kernel; numbers may differ."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    text = path.read_text("utf-8")
    for library in ("torch", "vl_convert"):
        if library in text or (library == "vl_convert" and "report.figures" in text):
            pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.setenv("WATTLOOP_STORE", str(tmp_path / "runs.db"))
    monkeypatch.setenv("WATTLOOP_METERS", "estimate")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    shown = nbformat.reads(text, 4)
    ran = nbclient.NotebookClient(nbformat.reads(text, 4), timeout=300, kernel_name="python3")
    printed = ran.execute()
    for before, after in zip(shown.cells, printed.cells, strict=True):
        assert not_printed(tuple(lines_of(before)), lines_of(after)) == []
        assert pictures_in(before) == pictures_in(after)


def lines_of(cell: Any) -> list[str]:
    outputs = cell.get("outputs", ())
    return [line for each in outputs for line in each.get("text", "").splitlines()]


def pictures_in(cell: Any) -> int:
    outputs = cell.get("outputs", ())
    return sum("image/svg+xml" in each.get("data", {}) for each in outputs)
