"""Promises of the dashboard in a real browser: drawn, accessible, and without requests to other
hosts.

Screenshots of all pages go to the folder that WATTLOOP_SCREENSHOTS names.
"""

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.libraries import library

pytest.importorskip("fastapi", reason="FastAPI is not installed")
pytest.importorskip("vl_convert", reason="vl-convert, which brings Vega, is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

import uvicorn

from tests.serve.filled import LONG, Filled, filled
from tests.store.test_job_queries import record
from wattloop.fleet.delivery.node_status import NodeStatus
from wattloop.fleet.nodes import NodeTable
from wattloop.report.figures.chart import DARK, INK, spec_of
from wattloop.report.figures.run import daily_figure
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions
from wattloop.store.database import open_store
from wattloop.store.runs import insert_run

driver = library("playwright.sync_api", reason="Playwright is not installed")
axe = library("axe_playwright_python.sync_playwright", reason="axe is not installed")
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

ARGUMENTS = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--disable-gpu",
)
DRAWN = (
    "overview",
    "jobs",
    "run",
    "live",
    "compare",
    "sweep",
    "search",
    "clusters",
    "campaign",
    "over-time",
)
DATA = ", ".join(f"svg .role-mark.mark-{kind} [d]" for kind in ("symbol", "rect", "line", "area"))
"""Marks of data: frames and axes are there in a blank chart as well."""
PATIENCE_MS = 180_000
"""A browser on a busy machine; what takes long is measured by a benchmark, not here."""
AXE_LEAVES = {
    "exclude": [
        # thousands of points without a text in them
        *([f".mark-{kind}"] for kind in ("symbol", "rect", "line", "rule", "area")),
        # rows that look like the six before them
        ["tbody tr:nth-child(n+7)"],
    ]
}


@dataclass
class Visit:
    """A browser's page, and all errors on it."""

    base: str
    page: Any
    store: Filled
    faults: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def open(self, name: str) -> Any:
        """Open an address and wait until its charts are drawn."""
        self.faults.clear()
        self.page.goto(self.base + self.store.pages[name], wait_until="load")
        self.page.wait_for_function("() => document.title.indexOf('Being worked out') < 0")
        if name in DRAWN:
            self.page.wait_for_selector("[data-chart], [data-curves]")
            _wait_drawn(self.page)
        return self.page


def _wait_drawn(page: Any) -> None:
    page.wait_for_function(
        "() => [...document.querySelectorAll('[data-chart], [data-curves]')]"
        ".every((place) => place.querySelector('svg.marks'))",
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Iterator[Filled]:
    """One store for all tests."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(shared_cache)
    with filled(tmp_path_factory.mktemp("dashboard")) as found:
        with open_store(found.path) as opened:  # the overview shows the last days
            insert_run(opened, record(90, name="of today", started_wall_s=time.time() - 600))
        yield found
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="module")
def base(store: Filled) -> Iterator[str]:
    """A server on any free port."""
    app = create_app(ServeOptions(store=str(store.path)))
    _hear_of_nodes(app.state.wattloop.nodes)
    with _serving(app) as found:
        yield found


@contextmanager
def _serving(app: Any) -> Iterator[str]:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        settings = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)


def _hear_of_nodes(book: NodeTable) -> None:
    """Deliver a healthy status, a refused one and an old one."""
    now_s = time.time()
    said = NodeStatus(
        power_w={"gpu:0": 412.0, "cpu": 80.0},
        limit_w={"gpu:0": 700.0},
        provenance="measured",
        jobs=tuple(str(number) for number in range(12)),
        faults=("gpu:1: no reading since 12:03",),
        read_wall_s=now_s + 1e6,
    )
    book.record("node1", now_s, said)
    book.record("node2", now_s + 90.0, NodeStatus(power_w={"gpu:0": 300.0}))
    book.record_refusal("node2", "POST /api/v1/ingest/x: a run of another node")
    book.load({"node3": (now_s - 600.0, {"status": {"power_w": {"gpu:0": 100.0}}})})


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    with driver.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield found
        found.close()


@pytest.fixture(scope="module")
def visit(browser: Any, base: str, store: Filled) -> Iterator[Visit]:
    """A wide window on a light machine."""
    with _window(browser, base, store, "light") as found:
        yield found


@pytest.fixture(scope="module")
def dark_visit(browser: Any, base: str, store: Filled) -> Iterator[Visit]:
    """A wide window on a dark machine."""
    with _window(browser, base, store, "dark") as found:
        yield found


@contextmanager
def _window(browser: Any, base: str, store: Filled, scheme: str) -> Iterator[Visit]:
    context = browser.new_context(
        viewport={"width": WIDE, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    found = Visit(base, context.new_page(), store)
    page = found.page
    page.set_default_timeout(PATIENCE_MS)
    page.on("console", lambda m: m.type == "error" and found.faults.append(m.text))
    page.on("pageerror", lambda error: found.faults.append(str(error)))

    def seen(asked: Any) -> None:
        if not asked.url.startswith((base, "data:", "blob:")):
            found.elsewhere.append(asked.url)

    page.on("request", seen)
    yield found
    context.close()


@pytest.fixture(scope="module")
def phone(browser: Any, base: str, store: Filled) -> Iterator[Visit]:
    """A narrow window on a dark machine."""
    context = browser.new_context(
        viewport={"width": NARROW, "height": 800}, color_scheme="dark", reduced_motion="reduce"
    )
    found = Visit(base, context.new_page(), store)
    found.page.set_default_timeout(PATIENCE_MS)
    yield found
    context.close()


NAMES = (
    *(
        "overview",
        "jobs",
        "nodes",
        "run",
        "live",
        "compare",
        "sweeps",
        "sweep",
        "searches",
        "search",
        "clusters",
    ),
    *("predict", "campaigns", "campaign", "over-time", "studies", "study", "api", "missing"),
)
WIDE, NARROW = 1_280, 360


@pytest.mark.parametrize("name", NAMES)
def test_a_page_opens_draws_and_can_be_used_by_everybody(visit: Visit, name: str) -> None:
    """Charts have marks, without a console error, another request or a finding of axe, twice."""
    page = visit.open(name)
    assert page.locator("h1").count() == 1
    if name in DRAWN:
        for chart in page.locator("[data-chart], [data-curves]").all():
            assert chart.locator(DATA).count(), f"a chart of {name} is blank"
    assert [fault for fault in visit.faults if "404" not in fault or name != "missing"] == []
    assert visit.elsewhere == []
    for theme in ("light", "dark"):
        if page.evaluate("document.documentElement.dataset.theme") != theme:
            page.click("#theme")
            _wait_drawn(page)
        found = _faults(page, colours_only=theme == "dark")
        assert not found, "\n".join([theme, *found])
        _photograph(page, name)
    page.click("#theme")


def test_a_run_that_goes_on_is_followed(visit: Visit) -> None:
    """New data appear without a click."""
    from tests.serve.filled import more_power

    page = visit.open("live")
    line = page.locator("[data-curves] svg .mark-line path").first
    before = line.get_attribute("d")
    more_power(visit.store.live, 100, 130)
    page.wait_for_function(
        "(before) => document.querySelector('[data-curves] svg .mark-line path')"
        ".getAttribute('d') !== before",
        arg=before,
    )
    page.wait_for_selector("#signal-charts svg.marks .mark-line path")
    signal = "document.querySelector('#signal-charts svg .mark-line path').getAttribute('d')"
    before = page.evaluate(signal)
    more_power(visit.store.live, 130, 160)
    page.wait_for_function(f"(before) => {signal} !== before", arg=before)


def test_the_keyboard_reaches_everything(visit: Visit) -> None:
    """The first key leads past the navigation, and the focus is visible."""
    page = visit.open("jobs")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    page.keyboard.press("Tab")
    width = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert width not in ("", "0px")


def test_a_dark_machine_gets_dark_pages(dark_visit: Visit) -> None:
    """This takes no click and causes no error."""
    page = dark_visit.open("run")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert not _faults(page, colours_only=True)
    assert (dark_visit.faults, dark_visit.elsewhere) == ([], [])


@pytest.mark.parametrize("machine", ["visit", "dark_visit"])
def test_the_theme_can_be_switched_and_is_kept(
    request: pytest.FixtureRequest, machine: str
) -> None:
    """The choice overrides the machine's setting."""
    visit: Visit = request.getfixturevalue(machine)
    page = visit.open("api")
    first = page.evaluate("document.documentElement.dataset.theme")
    page.click("#theme")
    second = page.evaluate("document.documentElement.dataset.theme")
    assert {first, second} == {"light", "dark"}
    visit.open("studies")
    assert page.evaluate("document.documentElement.dataset.theme") == second
    page.click("#theme")


def test_one_crosshair_shows_the_values_of_all_curves(visit: Visit) -> None:
    """The mouse works over power or a signal, and the keyboard works too."""
    page = visit.open("run")
    page.wait_for_selector("#signal-charts svg.marks")
    assert page.locator("#readout").is_hidden()
    page.hover("[data-curves] svg.marks")
    text = page.inner_text("#readout")
    assert "gpu:0" in text and "gpu:1" in text and "gpu:0/utilisation" in text
    page.focus("#signal-charts .curve")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("(b) => document.getElementById('readout').innerText !== b", arg=text)


def test_clusters_change_with_the_form(visit: Visit) -> None:
    """A choice in the form changes the chart."""
    page = visit.open("clusters")
    page.fill("input[name=k]", "4")
    page.click("button[type=submit] >> text=Group")
    # computed in the background; the page reloads by itself
    page.get_by_text("means of 4 clusters").first.wait_for()


def test_charts_are_dark_where_the_page_is(visit: Visit) -> None:
    """They change without a reload of the page."""
    page = visit.open("run")
    label = "document.querySelector('[data-curves] .role-axis-label text').getAttribute('fill')"
    light = page.evaluate(label)
    page.click("#theme")
    page.wait_for_function(f"(light) => {label} !== light", arg=light)
    assert (light, page.evaluate(label)) == (INK, DARK[INK])
    page.click("#theme")


def test_a_list_is_searched_while_one_types_and_rows_are_compared(visit: Visit) -> None:
    """The page does not reload, and the address holds the state."""
    page = visit.open("jobs")
    page.evaluate("window.same = true")
    page.fill("input[name=text]", "train-1")
    page.wait_for_function("() => document.querySelectorAll('#list tbody tr').length === 10")
    assert page.evaluate("window.same") is True
    assert "text=train-1" in page.url
    assert page.locator("button[data-go]").is_disabled()
    page.check("#list tbody tr:nth-child(2) input[name=run]")
    page.check("#list tbody tr:nth-child(1) input[name=run]")
    page.click("button[data-go]")
    page.wait_for_url("**/compare?run=2026-018&run=2026-019")


def test_a_chart_is_always_that_of_its_list(visit: Visit) -> None:
    """Promise: a chart of all runs does not stay below a list of some of them."""
    page = visit.open("jobs")
    assert page.locator("#slopes").count() == 1
    page.fill("input[name=text]", "train-1")
    page.wait_for_function("() => location.search.includes('train-1')")
    assert page.locator("#slopes").count() == 0
    page.click("button >> text=Filter")
    page.wait_for_load_state()
    shown = page.locator("#list tbody tr").count()
    counts = page.locator("section[aria-labelledby=slopes] tbody td:last-child").all_inner_texts()
    assert sum(map(int, counts)) <= shown


def test_columns_are_hidden_by_the_reader_and_stay_so(visit: Visit) -> None:
    """The choice survives another search."""
    page = visit.open("jobs")
    head = page.locator("th[data-column=carbon]")
    assert head.is_visible()
    page.click(".chooser summary")
    page.uncheck("#columns input[value=carbon]")
    assert head.is_hidden()
    visit.open("jobs")
    assert head.is_hidden()
    page.click(".chooser summary")
    page.check("#columns input[value=carbon]")


def test_long_names_do_not_make_tall_rows(visit: Visit) -> None:
    """One line, with the whole name on hover."""
    page = visit.open("jobs")
    long = page.locator(f"a[title='{LONG}']")
    rows = page.locator("[aria-label=Runs] tbody tr")
    tall = rows.evaluate_all("found => found.map(row => row.offsetHeight)")
    assert long.count() == 1
    assert long.evaluate("link => link.closest('tr').offsetHeight") == min(tall)


def test_nodes_show_who_draws_what_and_who_is_silent(visit: Visit) -> None:
    """The page quotes the agents that were refused."""
    page = visit.open("nodes")
    assert page.locator("tbody tr").count() == 3
    text = page.inner_text("main")
    for said in ("node1", "492", "without cpu", "silent", "another node", "and 4 more", "+90.0 s"):
        assert said in text, said


CUT_TEXTS = """() => [...document.querySelectorAll("svg.marks")].flatMap((chart) => {
  const edge = chart.getBoundingClientRect().right + 2;
  return [...chart.querySelectorAll(".role-title text, .role-legend text")]
    .filter((text) => getComputedStyle(text).opacity !== "0")
    .filter((text) => text.getBoundingClientRect().right > edge)
    .map((text) => text.textContent);
})"""

CROWDED_LABELS = """() => [...document.querySelectorAll("svg.marks .role-axis-label")]
  .flatMap((axis) => {
    const seen = [...axis.querySelectorAll("text")]
      .filter((text) => getComputedStyle(text).opacity !== "0")
      .filter((text) => !(text.getAttribute("transform") || "").includes("rotate"))
      .map((text) => [text.textContent, text.getBoundingClientRect()])
      .sort((one, other) => one[1].left - other[1].left);
    return seen.slice(1)
      .filter(([, box], n) => Math.abs(box.top - seen[n][1].top) < 2
        && box.left - seen[n][1].right < 4)
      .map(([words]) => words);
  })"""
"""Numbers below an axis with less than 4 pixels between them."""


@pytest.mark.parametrize("name", NAMES)
def test_a_phone_needs_no_sideways_scrolling(phone: Visit, name: str) -> None:
    """Wide tables scroll within themselves, charts are whole and readable, axe finds nothing."""
    page = phone.open(name)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW
    cut = page.evaluate(
        "() => [...document.querySelectorAll('svg.marks')].filter((one) => "
        "one.getBoundingClientRect().right > innerWidth).length"
    )
    assert cut == 0
    assert page.evaluate(CUT_TEXTS) == []
    assert page.evaluate(CROWDED_LABELS) == []
    assert "[object" not in page.content()
    found = _faults(page, colours_only=False)
    assert not found, "\n".join(found)
    _photograph(page, f"{name}-phone")


def test_dates_below_a_chart_are_apart_on_a_phone(phone: Visit) -> None:
    """Thirty days in 270 pixels: fewer dates, with space between them."""
    page = phone.open("overview")
    days = [(f"2026-11-{day:02d}", "vision", 4e6) for day in range(1, 31)]
    gaps = page.evaluate(
        """async (spec) => {
          const place = document.querySelector("[data-chart]");
          await vegaEmbed(place, fitted(spec), embed);
          const boxes = [...place.querySelectorAll(".role-axis-label")][0].querySelectorAll("text");
          const seen = [...boxes].filter((text) => getComputedStyle(text).opacity !== "0")
            .map((text) => text.getBoundingClientRect()).sort((a, b) => a.left - b.left);
          return seen.slice(1).map((box, n) => box.left - seen[n].right);
        }""",
        spec_of(daily_figure(days, "project")),
    )
    assert len(gaps) >= 2
    assert min(gaps) >= 6


TOUCHING_TEXTS = """() => {
  const charts = [...document.querySelectorAll("svg.marks")];
  const chart = charts.find((one) => one.textContent.includes("Parallel coordinates"));
  const boxes = [...chart.querySelectorAll(".mark-text:not(.role-legend-label) text")]
    .filter((text) => text.textContent && getComputedStyle(text).opacity !== "0")
    .map((text) => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([words, a], n) => boxes.slice(n + 1)
    .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1
      && a.top < b.bottom - 1 && b.top < a.bottom - 1)
    .map(([others]) => `${words} on ${others}`));
}"""


def test_texts_of_parallel_coordinates_do_not_touch_on_a_phone(phone: Visit) -> None:
    """Promise: with ten axes in 250 pixels, ends and names of the axes stand upright."""
    assert phone.open("search").evaluate(TOUCHING_TEXTS) == []


def test_lists_of_an_empty_store_have_no_script_errors(browser: Any, tmp_path: Path) -> None:
    """An empty list has no rows to tick."""
    faults: list[str] = []
    app = create_app(ServeOptions(store=str(tmp_path / "runs.db")))
    with _serving(app) as base, browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: faults.append(str(error)))
        for path in ("/", "/jobs", "/compare", "/nodes", "/predict"):
            page.goto(base + path, wait_until="load")
    assert faults == []


def _faults(page: Any, *, colours_only: bool) -> list[str]:
    """Return axe's findings; a page that was switched to dark differs from the light one in
    colours only.
    """
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if colours_only:
        options["runOnly"] = ["color-contrast"]
    found = axe.Axe().run(page, context=AXE_LEAVES, options=options).response["violations"]
    return [
        f"{fault['id']}: {fault['nodes'][0]['html'][:300]} {fault['nodes'][0]['failureSummary']}"
        for fault in found
    ]


def _photograph(page: Any, name: str) -> None:
    folder = os.environ.get("WATTLOOP_SCREENSHOTS")
    if not folder:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    dark = page.evaluate("document.documentElement.dataset.theme") == "dark"
    name = f"{name}{'-dark' if dark else ''}"
    page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
    page.screenshot(path=Path(folder) / f"{name}-top.png")  # as docs/dashboard.md shows it
