"""Promises to a new reader of the dashboard: five answers within three clicks from its front page.

Each test follows links, buttons and boxes by the text that a reader sees, and counts them.
"""

import re
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")
pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
pytest.importorskip("vl_convert", reason="vl-convert, which brings Vega, is not installed")

import uvicorn
from playwright.sync_api import sync_playwright

from tests.serve.test_browser import _faults, _photograph
from tests.support.first_look import BARE_NODE, FAULT, fill, node_reports
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions
from wattloop.store.database import open_store

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
PATIENCE_MS = 180_000
MOST_CLICKS = 3


@dataclass
class Reader:
    """A reader who starts at the front page, and whose clicks are counted."""

    page: Any
    clicks: int = 0

    def click(self, role: str, name: str, within: str = "body") -> None:
        """Click the element with this text; a link leads to a page that is then loaded."""
        place = self.page.locator(within).get_by_role(role, name=name, exact=True).first
        self.clicks += 1
        place.click()
        self.page.wait_for_load_state("load")
        self.page.wait_for_function("() => document.title.indexOf('Being worked out') < 0")

    def sees(self, text: str, within: str = "main") -> None:
        """Wait until a text is visible."""
        assert self.clicks <= MOST_CLICKS
        self.page.locator(within).get_by_text(text).first.wait_for(state="visible")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path: Path = tmp_path_factory.mktemp("first-look") / "runs.db"
    with open_store(path) as store:
        fill(store)
    app = create_app(ServeOptions(store=str(path)))
    app.state.wattloop.nodes.load(node_reports())
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def window() -> Iterator[Any]:
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser.new_page(viewport={"width": 1_280, "height": 900})
        browser.close()


@pytest.fixture
def reader(base: str, window: Any) -> Reader:
    window.set_default_timeout(PATIENCE_MS)
    window.goto(base)
    return Reader(window)


def test_what_cost_most_last_week(reader: Reader) -> None:
    """The card of the most expensive run covers last week, and the list has the same runs."""
    reader.click("link", "last week", "section:has(#largest)")
    reader.sees("unet-seg", "section:has(#largest)")
    cells = reader.page.locator("section:has(#largest) tbody tr").first.locator("td")
    assert "unet-seg" in cells.nth(1).inner_text() and "EUR" in cells.nth(2).inner_text()
    week = reader.page.locator("section:has(h2:text-is('This week'))").inner_text()
    (runs,) = re.findall(r"\(last week (\d+)\)", week)
    reader.click("link", "all of them", "section:has(#largest)")
    assert reader.page.locator("#list tbody tr").count() == int(runs) >= 3
    first = reader.page.locator("#list tbody tr").first.inner_text()
    assert "unet-seg" in first and "EUR" in first
    assert reader.clicks <= MOST_CLICKS


def test_which_of_two_runs_is_better_and_whether_it_is_certain(reader: Reader) -> None:
    """Two ticks and one button on the front page give a sentence."""
    cards = "section:has(#largest)"
    reader.click("checkbox", "Compare gpt2", cards)
    reader.click("checkbox", "Compare gpt2-capped", cards)
    reader.click("button", "Compare 2", cards)
    reader.sees("gpt2-capped is better than gpt2: gpt2-capped has energy per step -")
    reader.sees("Certain of these two runs: more than the sensors err")


def test_two_runs_are_found_by_name_on_the_page_of_comparisons(reader: Reader) -> None:
    """Search while typing, and click on each: no box to tick, no button."""
    reader.click("link", "Compare", "header")
    for name in ("vit-base", "bert-large"):
        reader.page.get_by_role("searchbox", name="Search").fill(name)
        reader.page.wait_for_function(
            "(name) => [...document.querySelectorAll('#list a')].every((a) => a.text === name)",
            arg=name,
        )
        reader.click("link", name, "#list")
    reader.sees("bert-large against vit-base: not certain.")


def test_why_a_run_is_wasteful(reader: Reader) -> None:
    """The page of the run shows it, with evidence and a remedy."""
    reader.click("link", "gpt2", "section:has(#largest)")
    reader.sees("Waste, and what to do about it")
    reader.sees("data", "section:has(#advice)")
    assert reader.page.locator("section:has(#advice) .note").count() >= 1


def test_what_the_job_would_cost_on_an_h100(reader: Reader) -> None:
    """The run alone gives money, time, energy and CO2e of the whole job, with intervals."""
    reader.click("link", "gpt2-capped", "section:has(#largest)")
    reader.click("link", "On another GPU: what would it cost on an H100?")
    reader.sees("gpt2-capped on NVIDIA H100")
    rows = reader.page.locator("section:has(#moved) tbody tr").all_inner_texts()
    for what, unit in (("time", "min"), ("energy", "Wh"), ("cost", "EUR"), ("carbon", "CO2e")):
        (row,) = (row for row in rows if row.startswith(f"{what}\t"))
        assert row.count(unit) >= 2, row
    chosen = reader.page.locator("section:has(#moved) select[name=gpu]")
    assert chosen.input_value() == "h100-sxm"


def test_what_a_job_would_cost_is_asked_on_the_page_of_predictions(reader: Reader) -> None:
    """The newest run on an H100 is selected at the start."""
    reader.click("link", "Predict", "header")
    reader.click("button", "Show its cost")
    reader.sees("gpt2-capped on NVIDIA H100")


def test_a_run_whose_model_is_known_has_a_closer_prediction(reader: Reader) -> None:
    """The form has model, batch and number of GPUs; the step is predicted, too."""
    for library in ("torch", "transformers"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    reader.click("link", "gpt2", "section:has(#largest)")
    reader.click("link", "On another GPU: what would it cost on an H100?")
    reader.sees("One step of gpt2")
    reader.sees("gpt2 on NVIDIA H100")
    assert reader.page.locator("input[name=batch]").input_value() == "8"
    reader.page.wait_for_selector("[data-chart] svg.marks")


def test_whether_anything_is_wrong_on_node_7(reader: Reader) -> None:
    """The front page names the node; its row shows the fault, and the other rows are healthy."""
    reader.sees(FAULT)
    reader.click("link", "node7", "section:has(#health)")
    row = reader.page.locator("tr[id='node7']")
    assert FAULT in row.inner_text()
    assert "well" in reader.page.locator("tr[id='node6']").inner_text()
    assert reader.clicks <= MOST_CLICKS


def test_a_node_without_an_agent_is_judged_by_its_runs(reader: Reader) -> None:
    """It shows sensors and failed runs of a host without an agent; its name leads to them."""
    reader.click("link", "Nodes", "header")
    row = reader.page.locator(f"tr[id='{BARE_NODE}']")
    assert "no agent" in row.inner_text() and "1 run failed" in row.inner_text()
    reader.click("link", "1 run failed", f"tr[id='{BARE_NODE}']")
    assert reader.page.locator("#list tbody tr").count() == 1
    assert reader.clicks <= MOST_CLICKS


ANSWERS = {
    "jobs": "/jobs?sort=cost",
    "overview": "/?cost=last+week",
    "choice": "/compare?run=20260101-000003-000003",
    "comparison": "/compare?run=20260101-000003-000003&run=20260101-000004-000004",
    "wasteful": "/runs/20260101-000003-000003",
    "nodes": "/nodes",
    "predict": "/predict",
    "cost": "/predict?run=20260101-000003-000003&gpu=h100-sxm&gpus=2",
}
"""Pages that answer the questions; test_browser.py has the others."""


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize(
    ("width", "theme"), [(1_280, "light"), (1_280, "dark"), (360, "light"), (360, "dark")]
)
def test_answers_can_be_read_by_everybody(
    base: str, window: Any, name: str, width: int, theme: str
) -> None:
    """axe finds no fault, and no element is wider than the window."""
    window.set_default_timeout(PATIENCE_MS)
    window.set_viewport_size({"width": width, "height": 900})
    window.goto(base + ANSWERS[name], wait_until="load")
    if window.evaluate("document.documentElement.dataset.theme") != theme:
        window.click("#theme")
    assert _faults(window, colours_only=False) == []
    assert window.evaluate("document.documentElement.scrollWidth") <= width
    _photograph(window, f"answer-{name}-{width}-{theme}")
    window.set_viewport_size({"width": 1_280, "height": 900})
