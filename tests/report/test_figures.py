"""Promises of the figures: complete, labelled, self-contained, and with their source."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.synthetic_sweep import CAPS_W, energy_j, made_sweep
from wattloop.core.errors import ConfigError
from wattloop.integrations.stored_steps import StepPoint
from wattloop.report.figures.chart import spec_of
from wattloop.report.figures.render import image_of, page_of, save, writable_folder
from wattloop.report.figures.run import daily_figure, power_figure, steps_figure
from wattloop.report.figures.sweep import lever_title, plain_name, sweep_figures, technique_figures
from wattloop.store.database import open_store
from wattloop.store.journal_import import import_orphaned
from wattloop.store.runs import find_run
from wattloop.sweep.result import SweepResult, result_of
from wattloop.testing.journals import close_journal, ended, write_journal

pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")
pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")


def made(**options: Any) -> SweepResult:
    return result_of(*made_sweep(**options))


def texts(chart: Any) -> str:
    return json.dumps(spec_of(chart))


def values(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The data of the first layer."""
    data = spec.get("data") or spec["layer"][0]["data"]
    return list(data["values"])


def test_every_figure_of_document_004_is_drawn() -> None:
    """Figures 2 to 7 and the speed-up, each with units and the source of its numbers."""
    figures = sweep_figures(made(gpus=(1, 2, 4, 8)))
    assert set(figures) == {
        "energy-decrease",
        "time-increase",
        "edp",
        "eds",
        "gain-minus-loss",
        "times",
        "speed-up",
    }
    for name, chart in figures.items():
        text = texts(chart)
        assert "simulated" in text, name
        unit = "Number of GPUs" if name in ("times", "speed-up") else "GPU power limit (W)"
        assert unit in text, name
    real = spec_of(figures["speed-up"])["layer"][1]["data"]["values"]
    eight = [row["speed_up"] for row in real if row["gpus"] == 8]
    assert eight == [pytest.approx(8**0.8)] * len(eight) != []


def test_the_best_point_of_each_curve_is_marked() -> None:
    """One ring per GPU count."""
    rows = values(spec_of(sweep_figures(made(gpus=(1, 8)))["energy-decrease"]))
    best = {(row["curve"], row["setting"]) for row in rows if row["best"]}
    lowest = {n: min(CAPS_W, key=lambda cap: energy_j(cap, n)) for n in (1, 8)}
    assert best == {("1 GPU", f"{lowest[1]} W"), ("8 GPUs", f"{lowest[8]} W")}


def test_figures_that_there_is_no_data_for_are_left_out() -> None:
    """One point, or one GPU count, does not make a curve."""
    assert sweep_figures(made(caps_w=(260,), gpus=(None,))) == {}
    assert "times" not in sweep_figures(made(gpus=(8,)))


def test_the_thesis_figures_compare_workloads_and_techniques() -> None:
    """EDP against time, power of both components, and the synthesis where there are several."""
    kinds = (("gemm", "jax"), ("gemm", "tf"))
    figures = technique_figures([made(gpus=(None,), workloads=kinds)])
    assert set(figures) == {"edp-against-time", "power", "synthesis"}
    assert "Average power (W)" in texts(figures["power"])
    assert "formula card jax" in texts(figures["synthesis"])


def test_power_over_time_is_downsampled_and_has_its_tdp(tmp_path: Path) -> None:
    """An hour at 10 Hz is drawn from a few hundred points."""
    with open_store(tmp_path / "runs.db") as store:
        write_journal(store.journals, "r1", seconds=3_600, end=ended())
        import_orphaned(store, close_journal)
        chart = power_figure(store, {"default": find_run(store, "r1")}, "gpu", 700.0)
    rows = values(spec_of(chart))
    assert 100 < len(rows) <= 1_000
    assert rows[0]["power_w"] == pytest.approx(300.0, abs=1.0)
    assert "TDP 700 W" in texts(chart)


def test_steps_are_counted_in_whole_numbers() -> None:
    """Promise: the axis of a short run has 1, 2, 3, not 1.0, 1.5, 2.0."""
    points = [StepPoint(n, 1, 0.1, 2.0 + n, None, None, None, 0.1 * n) for n in range(3)]
    chart = steps_figure(points, "measured")
    assert chart is not None
    svg = image_of(chart, ".svg").decode()
    assert ">2<" in svg and ">1.5<" not in svg and ">2.0<" not in svg


def test_files_are_whole_and_need_no_network(tmp_path: Path) -> None:
    """SVG, PNG, and a page that loads nothing."""
    chart = sweep_figures(made(gpus=(8,), name="</script><b>x"))["edp"]
    written = save({"edp": chart}, tmp_path / "figures", title="a <b> title", notes=["simulated"])
    assert [path.name for path in written] == ["edp.svg", "edp.png", "index.html"]
    assert (tmp_path / "figures" / "edp.png").read_bytes().startswith(b"\x89PNG")
    assert "EDP (kJ s)" in (tmp_path / "figures" / "edp.svg").read_text()
    page = (tmp_path / "figures" / "index.html").read_text()
    assert "a &lt;b&gt; title" in page
    assert page.count("</script>") == 2
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<script|src=|href=", outside)


@pytest.mark.parametrize("name", ["</script><b>", "<!--<script>"])
def test_a_stored_name_cannot_end_the_script_nor_hide_its_end(name: str) -> None:
    """After `<!--<script>` a parser takes the next `</script>` for a part of the script."""
    page = page_of({"days": daily_figure([("2026-01-01", name, 1e6)], "project")}, title="t")
    data = page[page.index("const specs = ") :].splitlines()[:2]
    assert name.replace("<", "\\u003c") in data[1]
    assert "<" not in "".join(data)


def test_a_missing_library_is_reported_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes before any figure is drawn."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ConfigError, match=r"vl_convert.*pip install 'wattloop\[figures\]'"):
        page_of({}, title="")


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """The error names the folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file: figures cannot be written there"):
        save({}, tmp_path / "file", title="")


def test_wide_figures_take_both_columns_of_the_page(tmp_path: Path) -> None:
    """Nothing overlaps its neighbour; the folder is checked before text is measured."""
    charts = sweep_figures(result_of(*made_sweep()))
    charts["wide"] = {**charts["edp"], "width": 800}
    page = page_of(charts, title="t")
    assert '<figure class="wide"><div class=chart id="chart-wide">' in page
    assert '<figure><div class=chart id="chart-edp"></div></figure>' in page
    writable_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="figures cannot be written there"):
        writable_folder(tmp_path / "file" / "x")


def test_levers_have_names_for_people() -> None:
    """With unit where there is one."""
    assert lever_title({"name": "gpu:0,1/sm_clock", "unit": "MHz"}) == "GPU 0, 1 sm clock (MHz)"
    assert lever_title({"name": "cpu/governor", "unit": "name"}) == "CPU governor"
    assert plain_name("gpu:0,1/sm_clock") == "gpu-0-1-sm_clock"
