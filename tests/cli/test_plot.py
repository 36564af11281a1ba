"""Promises of figures on a terminal: they fit, show the rows, and say what cannot be drawn."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import without_escapes
from wattloop.cap.finder import CapFinder
from wattloop.cli.main import main
from wattloop.cli.plot import NotDrawable, render_chart
from wattloop.report.figures.chart import channel, layers, mark, styled
from wattloop.store.database import open_store
from wattloop.store.experiments import Experiment, create_experiment

CURVE = [
    {"x": float(n), "y": float(n * n), "of": name, "best": n == 3}
    for name in ("first", "second")
    for n in range(10)
]


def line_chart(rows: list[dict[str, Any]], **more: Any) -> Any:
    lines = layers(
        mark("line", y=channel("y:Q", "Joules")),
        mark("text", where="datum.best", y="y:Q", text="of:N"),
        rows=rows,
        x=channel("x:Q", "Watts", **more),
        color=channel("of:N", None),
    )
    return styled(lines, "Joules against watts", "simulated")


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal with colours; pytest's own replacement of standard output is none."""
    monkeypatch.setattr("wattloop.cli.plot.is_terminal", lambda stream: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize("room", [60, 80, 200])
def test_curves_fit_and_have_axes(screen: None, room: int) -> None:
    """Promise: title, both axes with their ends, a legend, and dots, within the terminal."""
    lines = [without_escapes(line) for line in render_chart(line_chart(CURVE), room)]
    assert max(map(len, lines)) <= room
    text = "\n".join(lines)
    for part in ("Joules against watts", "simulated", "Joules", "Watts", " 81 │", "  0 │"):
        assert part in text
    assert "━ first  ━ second" in text
    assert any(0x2800 < ord(letter) < 0x2900 for letter in text)


@pytest.mark.parametrize(("term", "no_color"), [("dumb", ""), ("xterm", "1")])
def test_curves_are_told_apart_without_colours(
    screen: None, monkeypatch: pytest.MonkeyPatch, term: str, no_color: str
) -> None:
    """Promise: no colours under NO_COLOR or on a plain terminal: a character per curve."""
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", no_color)
    text = "\n".join(render_chart(line_chart(CURVE), 60))
    assert "\x1b" not in text
    assert "* first  + second" in text
    assert term != "dumb" or text.isascii()


def test_a_higher_value_is_drawn_higher(screen: None) -> None:
    """Promise: the canvas has the values: a rising curve goes from the lower left to the right."""
    rows = [{"x": 0.0, "y": 0.0, "of": "a", "best": False}, {"x": 9.0, "y": 5.0, "of": "a"}]
    lines = [without_escapes(line) for line in render_chart(line_chart(rows), 40, 8)]
    drawn = [line.partition("│")[2] for line in lines if "│" in line]
    first = [len(line) - len(line.lstrip()) for line in drawn if line.strip()]
    assert first == sorted(first, reverse=True)
    assert len(first) == 8


def test_bars_have_names_and_values(screen: None) -> None:
    """Promise: one line per bar, in proportion."""
    rows = [{"part": "gpu:0", "j": 468.0}, {"part": "cpu", "j": 117.0}]
    bars = mark("bar", rows=rows, y="part:N", x=channel("j:Q", "Energy (J)"))
    *_, gpu, cpu = render_chart(styled(bars, "Parts", ""), 60)
    assert gpu.startswith("gpu:0 ") and gpu.endswith(" 468")
    assert gpu.count("█") == pytest.approx(4 * cpu.count("█"), abs=3)


def test_a_heat_map_is_refused_with_a_reason() -> None:
    """Promise: a figure that a terminal cannot show is refused, not drawn wrongly."""
    cells = mark("rect", rows=[{"a": "1", "b": "2", "z": 3.0}], x="a:N", y="b:N", color="z:Q")
    with pytest.raises(NotDrawable, match="rect"):
        render_chart(styled(cells, "Matrix", ""), 60)


@pytest.mark.parametrize("value", [0.0, -5.0, 1e-12, 1e12])
def test_a_constant_curve_is_drawn(screen: None, value: float) -> None:
    """Promise: a single point or a flat line has an axis as any other."""
    rows = [{"x": 1.0, "y": value, "of": "a", "best": False}]
    assert render_chart(line_chart(rows), 60)
    assert render_chart(line_chart(rows, scale={"type": "log"}), 60)


def test_control_characters_in_names_are_escaped(screen: None) -> None:
    """Promise: a name of a run cannot move the cursor."""
    rows = [{"x": 1.0, "y": 2.0, "of": name, "best": True} for name in ("a\x1b[2J", "b\n\x07")]
    text = without_escapes("\n".join(render_chart(line_chart(rows), 60)))
    assert "\x1b" not in text and "\x07" not in text


def test_nothing_to_draw_and_unknown_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: a store without runs, and an unknown figure, are errors with a remedy."""
    monkeypatch.setenv("WATTLOOP_STORE", str(tmp_path / "runs.db"))
    assert main(["runs", "plot"]) == 2
    assert "no runs yet" in capsys.readouterr().err
    assert main(["sweep", "plot", "nothing"]) == 2
    assert capsys.readouterr().err


@pytest.fixture
def cap_search(tmp_path: Path) -> str:
    """A store with a finished search of the best cap."""
    finder = CapFinder([300.0, 400.0, 500.0, 600.0, 700.0], "energy", noise=0.01)
    for cap_w, time_s, energy_j in ((700.0, 10.0, 6_000.0), (400.0, 11.0, 4_300.0)):
        finder.tell(cap_w, time_s, energy_j, 0.01)
    facts = {"finder": finder.to_dict(), "choice": finder.best().to_dict()}
    made = Experiment(
        experiment_id="cap-20260101", kind="cap", status="finished", created_wall_s=1e9, facts=facts
    )
    with open_store(tmp_path / "runs.db") as store:
        create_experiment(store, made)
    return str(tmp_path / "runs.db")


@pytest.mark.parametrize("room", [60, 80, 200])
def test_a_cap_search_is_drawn(
    cap_search: str, room: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: energy of the probes against the cap, within the terminal; time by its name."""
    monkeypatch.setattr("wattloop.cli.plot.terminal_room", lambda stream: room)
    assert main(["cap", "plot", "--store", cap_search]) == 0
    out, err = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= room
    assert "GPU energy against the power cap" in out and "Power cap (W)" in out
    assert "6,000" in out and "other figures, by --figure: time" in err
    assert main(["cap", "plot", "-f", "time", "--store", cap_search]) == 0
    assert "Time against the power cap" in capsys.readouterr().out


@pytest.mark.parametrize("ending", ["svg", "png", "html"])
def test_a_cap_search_is_written_to_a_file(cap_search: str, ending: str, tmp_path: Path) -> None:
    """Promise: the same figure as a file; the report on the search has both and the probes."""
    pytest.importorskip("vl_convert", reason="vl-convert is not installed")
    file = tmp_path / f"caps.{ending}"
    assert main(["cap", "plot", "last", "-o", str(file), "--store", cap_search]) == 0
    assert file.stat().st_size > 2_000
    page = tmp_path / "report.html"
    assert main(["report", "cap-20260101", "-o", str(page), "--store", cap_search]) == 0
    assert "Best cap for energy" in page.read_text("utf-8")
