"""Promises of the course of SM2: users who searched by `sm2` can see figures 1 and 2 of it."""

from pathlib import Path

import pytest

pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")
pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")

from wattloop.cli.main import main
from wattloop.report.document import Chart, Section
from wattloop.report.subject import report_of
from wattloop.store.database import open_store
from wattloop.testing.synthetic_trainings import SyntheticExecutor, synthetic_problem
from wattloop.tune.api import search

SM2 = {"name": "sm2", "configurations": 4, "patience": 2, "least_gain": 0.02}
CHARTS = ["course", *(f"rates-c{number}" for number in range(4))]


def searched(place: Path, strategy: str | dict[str, object]) -> str:
    """A stored search of trainings that are formulas."""
    problem = synthetic_problem(ranges=True, target=None)
    found = search(
        bench=lambda parts: SyntheticExecutor(parts.problem),
        space=problem.space,
        metric="accuracy",
        goal="maximize",
        strategy=strategy,
        rate="lr",
        epochs=40,
        trials=12,
        store=str(place),
    )
    return found.search_id


def course_of(place: Path, search_id: str) -> Section | None:
    with open_store(place) as store:
        sections = report_of(store, search_id).sections
    return next((s for s in sections if s.heading == "The course of SM2"), None)


def test_a_report_shows_the_course_of_a_stored_search(tmp_path: Path) -> None:
    """Figure 2 first, then figure 1 of each configuration, from the store alone."""
    place = tmp_path / "runs.db"
    section = course_of(place, searched(place, SM2))
    assert section is not None
    charts = [block for block in section.blocks if isinstance(block, Chart)]
    assert [chart.name for chart in charts] == [f"sm2-{name}" for name in CHARTS]


def test_figures_are_written_to_the_requested_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tune show --figures DIR`: an SVG and a PNG each, and a page with all."""
    place, folder = tmp_path / "runs.db", tmp_path / "figures"
    words = ["tune", "show", searched(place, SM2), "--store", str(place)]
    assert main([*words, "--figures", str(folder)]) == 0
    assert {path.stem for path in folder.glob("*.svg")} == set(CHARTS)
    assert "simulated" in (folder / "index.html").read_text()
    assert f"5 figures in {folder}" in capsys.readouterr().err


def test_other_strategies_have_no_such_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Empty sections and folders are left out, and the message says where figures exist."""
    place, folder = tmp_path / "runs.db", tmp_path / "figures"
    search_id = searched(place, "random")
    assert course_of(place, search_id) is None
    words = ["tune", "show", search_id, "--store", str(place), "--figures", str(folder)]
    assert main(words) == 0
    assert f"wattloop report {search_id}" in capsys.readouterr().err
    assert main(["tune", "show", "no-such", "--store", str(place), "--figures", str(folder)]) == 2
    assert not folder.exists()
