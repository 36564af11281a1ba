"""Promises of the figures of analyses: labelled, complete, self-contained."""

import json

import pytest

from tests.analyze.synthetic_runs import cali3_runs, greenscreen_runs
from wattloop.analyze.clusters import clusters
from wattloop.analyze.configuration_matrix import configuration_matrix
from wattloop.analyze.correlation import correlations
from wattloop.analyze.efficiency_quotient import quotients, top_runs
from wattloop.analyze.importance import importances
from wattloop.analyze.ols import regression
from wattloop.analyze.pareto import pareto_front
from wattloop.analyze.row_metrics import row_metrics
from wattloop.analyze.table_reader import table_of
from wattloop.core.errors import ConfigError
from wattloop.report.figures.chart import MOST_POINTS, spec_of, titled
from wattloop.report.figures.clusters import cluster_figures
from wattloop.report.figures.render import save_one
from wattloop.report.figures.search import (
    MOST_PARALLEL_LINES,
    histogram_figures,
    learning_figures,
    matrix_figures,
    metrics_figures,
    parallel_figure,
    pareto_figures,
    quotient_figures,
    top_figures,
)
from wattloop.report.figures.statistics import (
    correlation_figures,
    importance_figures,
    regression_figures,
)

for library, extra in (("vl_convert", "figures"), ("sklearn", "analyze")):
    pytest.importorskip(library, reason=f"the extra '{extra}' is not installed")


@pytest.fixture(scope="module")
def runs():
    return table_of(greenscreen_runs(), name="g", source="energy of gpu, simulated")


@pytest.fixture(scope="module")
def grouped():
    return clusters(table_of(cali3_runs(), name="c"), "all", k=5)


def text_of(charts):
    return json.dumps([spec_of(chart) for chart in charts.values()])


def data_of(chart):
    """Return all rows in a chart, at any level."""
    found = []

    def look(part):
        if isinstance(part, dict):
            found.extend(part["values"] if isinstance(part.get("values"), list) else [])
            for inner in part.values():
                look(inner)
        elif isinstance(part, list):
            for inner in part:
                look(inner)

    look(spec_of(chart))
    return found


def test_every_level_is_in_the_figure_of_coefficients(runs):
    """40 intervals with the target's unit."""
    charts = regression_figures(regression(runs, "energy_wh"))
    rows = [row for row in data_of(charts["coefficients"]) if "term" in row]
    assert len(rows) == 40
    assert "energy (Wh)" in text_of(charts)
    assert all(row["low"] < row["coef"] < row["high"] for row in rows)


def test_the_page_of_clusters_turns_and_lets_columns_be_chosen(grouped):
    """Two and three components, sliders, lists of columns, all runs coloured by cluster."""
    charts = cluster_figures(grouped)
    assert list(charts) == ["clusters-2d", "clusters-3d", "clusters-columns"]
    space = spec_of(charts["clusters-3d"])
    assert {p["name"] for p in space["params"]} >= {"turn", "tilt"}
    chosen = {
        p["name"]: p["bind"]["options"] for p in spec_of(charts["clusters-columns"])["params"]
    }
    assert set(chosen) == {"across", "up"}
    assert "energy_wh" in chosen["across"]
    assert len(data_of(charts["clusters-2d"])) == 400
    assert next(iter(cluster_figures(grouped, 3))) == "clusters-3d"


def test_points_at_the_edge_are_not_clipped(grouped):
    """A chart that can be moved clips at its edge, so there is a margin."""
    encoding = spec_of(cluster_figures(grouped)["clusters-2d"])["encoding"]
    assert [encoding[axis]["scale"]["padding"] > 5 for axis in "xy"] == [True, True]


def test_the_front_and_its_knee_are_marked(runs):
    """As many points as the front has, one of them the knee."""
    found = pareto_front(table_of(cali3_runs(), name="c"))
    rows = data_of(pareto_figures(found)["pareto"])
    assert sum(row["front"] for row in rows) == len(found.rows)
    assert [row["run"] for row in rows if row["knee"]] == [found.knee]
    assert "ring: knee" in text_of(pareto_figures(found))
    assert "ring" not in text_of(pareto_figures(pareto_front(runs)))
    three = pareto_front(runs, {"energy_wh": False, "val_accuracy": True, "time_s": False})
    assert "time (s)" in text_of(pareto_figures(three))


def test_the_matrix_has_a_field_per_run_and_parameter(runs):
    """80 runs, ten parameters; very many runs are drawn as shares."""
    chart = matrix_figures(configuration_matrix(runs, "energy_wh"))["matrix"]
    assert len(data_of(chart)) == 800
    many = table_of(greenscreen_runs(1_000), name="g")
    rows = data_of(matrix_figures(configuration_matrix(many, "energy_wh"))["matrix"])
    assert len({row["line"] for row in rows}) == 200
    assert 0 < min(row["share"] for row in rows) < 1


def test_source_and_units_are_stated(runs):
    """The line under the title names the source and scope of the energy."""
    found = quotients(runs)
    assert "energy of gpu, simulated" in text_of(quotient_figures(runs, found))
    assert "Energy per epoch (Wh)" in text_of(quotient_figures(runs, found))
    assert "quotient (1/Wh)" in text_of(top_figures(top_runs(runs)))
    assert "Time loss (%)" in text_of(metrics_figures(row_metrics(runs, "run 3")))
    assert "Energy (J)" in text_of(metrics_figures(row_metrics(runs)))
    assert titled("batch_size") == "batch size"


def test_very_many_points_are_downsampled_with_a_note():
    """Ten thousand points on top of each other would show nothing more."""
    many = table_of(greenscreen_runs(3_000), name="g")
    charts = quotient_figures(many, quotients(many))
    assert MOST_POINTS <= len(data_of(charts["quotient"])) <= MOST_POINTS + 1
    assert "of 3000 runs drawn" in text_of(charts)
    lines = {"parallel": parallel_figure(many)}
    assert f"{MOST_PARALLEL_LINES} of 3000 runs drawn" in text_of(lines)


def test_a_single_column_is_drawn_by_cluster():
    """One main component does not span a plane."""
    rows = [{"cap": n % 2, "energy_j": float(n % 5)} for n in range(20)]
    found = clusters(table_of(rows, name="t"), "results", k=3)
    charts = cluster_figures(found)
    assert list(charts) == ["clusters-2d", "clusters-columns"]
    assert found.projection.shape == (20, 1)


def test_odd_names_of_columns_do_not_break_a_figure():
    """Dots, brackets and quotes have a meaning in charts; here they are names."""
    rows = [
        {"params.lr[0]": n % 3, 'it\'s "odd"': n % 2, "energy_j": float(n), "val.accuracy": n / 9}
        for n in range(10)
    ]
    table = table_of(rows, name="t")
    charts = pareto_figures(pareto_front(table)) | correlation_figures(correlations(table))
    charts |= cluster_figures(clusters(table, k=2))
    for name, chart in charts.items():
        assert spec_of(chart), name
    assert [row["t1"] for row in data_of(charts["pareto"])][:1] == [0.0]


@pytest.mark.parametrize("kind", ["svg", "png", "html"])
def test_one_file_of_each_kind(tmp_path, runs, kind):
    """An image has the first chart; a page has all of them and needs no network."""
    place = tmp_path / f"figure.{kind}"
    charts = importance_figures(importances(runs, "energy_wh", method="variance"))
    save_one(charts, place, title="t")
    data = place.read_bytes()
    assert {"svg": b"<svg", "png": b"\x89PNG", "html": b"vegaEmbed"}[kind] in data
    assert [p.name for p in tmp_path.iterdir()] == [place.name]
    if kind == "html":
        assert b"https://cdn" not in data


def test_hints_for_pages_are_not_in_images(tmp_path, runs):
    """An image has no cell to point at."""
    charts = correlation_figures(correlations(runs))
    for kind in ("svg", "html"):
        save_one(charts, tmp_path / f"figure.{kind}", title="t")
    image = (tmp_path / "figure.svg").read_text()
    assert "Pearson's r" in image
    assert "point at" not in image
    assert '"Pearson\'s r; point at a cell for p"' in (tmp_path / "figure.html").read_text()


def test_a_file_of_an_unknown_kind_is_refused(tmp_path):
    """The error comes before any file is written."""
    with pytest.raises(ConfigError, match=r"end it with \.svg, \.png, \.html"):
        save_one({}, tmp_path / "figure.gif", title="t")


def test_learning_curves_have_every_run_and_the_best_in_front():
    """Quality and losses of all runs, power and time of the best, and no figure of a single
    epoch.
    """
    epochs = [
        {"candidate": name, "epoch": n, "time_s": 2.0, "energy_j": 9.0, "power_w": 4.5,
         "quality": 0.1 * n, "val_loss": 1 / n}
        for name in ("a", "b") for n in (1, 2, 3)
    ]  # fmt: skip
    drawn = learning_figures(epochs, "b", "accuracy", "simulated")
    assert len(drawn["learning"]["hconcat"]) == 2
    assert len(drawn["best-run"]["hconcat"]) == 4
    every, front = drawn["learning"]["hconcat"][0]["layer"]
    assert front["transform"] == [{"filter": 'datum.run === "b"'}]
    assert every["transform"] == [{"filter": '!(datum.run === "b")'}]
    assert learning_figures(epochs[:1], "a", "accuracy", "simulated") == {}


def test_histograms_bin_results_and_count_levels():
    """Figures 3, 4 and 8 of GreenScreen, and one per parameter."""
    table = table_of(greenscreen_runs(), name="made")
    (chart,) = histogram_figures(table, ["val_accuracy", "batch_size", "epochs"]).values()
    accuracy, batch = chart["concat"]  # every run has 50 epochs: nothing to draw
    assert accuracy["encoding"]["x"]["bin"]
    assert batch["encoding"]["x"]["sort"] == ["4", "32", "64", "128"]
