"""Promises of clusters: the families of document 000's grid, found again in generated data."""

import numpy as np
import pytest

from tests.analyze.synthetic_runs import cali3_runs
from tests.support.libraries import library
from wattloop.analyze.clusters import build_features, clusters
from wattloop.analyze.table_reader import table_of
from wattloop.core.errors import ConfigError

library("sklearn", reason="the extra 'analyze' is not installed")

IDLE = {"precision", "dataloader_workers", "tpu_cores"}


@pytest.fixture(scope="module")
def table():
    return table_of(cali3_runs(), name="cali3")


@pytest.mark.parametrize("strategy", ["results", "all", "hybrid"])
def test_parameters_of_little_influence_are_found(table, strategy):
    """fp16, workers and TPU cores; not batch size and accumulation, in all three strategies."""
    found = clusters(table, strategy)
    assert set(found.little) == IDLE
    influence = next(t for t in found.others if t.name == "influence")
    assert influence.rows[0]["parameter"] == "batch_size"
    assert influence.rows[0]["of_results"] > 0.9


def test_the_five_clusters_of_the_document_come_back(table):
    """k = 5, parameters and results, second pass: 64 with 16 steps, 64 with fewer, 32, 16 and 8."""
    found = clusters(table, "all", k=5)
    got = [(r["batch_size"], r["gradient_accumulation_steps"], r["runs"]) for r in found.rows]
    assert got == [
        (64, 16, 20),
        (64, 3.75, 80),
        (32, pytest.approx(6.2), 100),
        (16, pytest.approx(6.2), 100),
        (8, pytest.approx(6.2), 100),
    ]
    assert found.rows[0]["precision=fp32"] == 0.5
    assert found.rows[4]["energy_wh"] == pytest.approx(512, abs=2)


def test_a_split_without_effect_on_results_is_recognised(table):
    """The first pass of five clusters splits along the TPU cores, which change no result."""
    found = clusters(table, "all", k=5)
    influence = next(t for t in found.others if t.name == "influence")
    row = next(r for r in influence.rows if r["parameter"] == "tpu_cores")
    assert row["between_clusters"] > 0.3
    assert row["of_results"] < 0.01
    assert "tpu_cores" in found.little


def test_the_second_pass_separates_better(table):
    """Without irrelevant columns the silhouette rises, and those columns are not used."""
    found = clusters(table, "all")
    first = next(note for note in found.notes if note.startswith("silhouette of the first pass"))
    assert found.silhouette > float(first.rpartition(" ")[2]) + 0.1
    assert not IDLE & set(found.used)


def test_the_number_of_clusters_is_that_of_the_highest_silhouette():
    """Three clouds are three clusters; the same every time, numbered by energy."""
    rng = np.random.default_rng(4)
    centres = ((9.0, 1.0), (1.0, 9.0), (5.0, 5.0))
    rows = [
        {"cap": n % 2, "energy_j": x + rng.normal(0, 0.2), "time_s": y + rng.normal(0, 0.2)}
        for n in range(20)
        for x, y in centres
    ]
    cloud = table_of(rows, name="clouds")
    found = clusters(cloud, "results")
    assert found.facts["clusters"] == 3
    assert found.silhouette > 0.9
    assert [round(r["energy_j"]) for r in found.rows] == [1, 5, 9]
    assert (clusters(cloud, "results").labels == found.labels).all()
    silhouettes = next(t for t in found.others if t.name == "silhouettes")
    assert [r["k"] for r in silhouettes.rows] == list(range(2, 11))


def test_levels_weigh_as_much_as_a_number():
    """A parameter of four text levels has total variance 1, as a number has."""
    rows = [{"o": "abcd"[n % 4], "p": "xy"[n % 2], "energy_j": float(n)} for n in range(40)]
    features = build_features(table_of(rows, name="t"), ["o", "p", "energy_j"])
    assert features.names == ("o=a", "o=b", "o=c", "o=d", "p=y", "energy_j")
    variances = features.scaled.var(axis=0)
    assert variances[:4].sum() == pytest.approx(1)
    assert variances[4:] == pytest.approx([1, 1])


def test_components_are_those_of_the_variance(table):
    """Shares fall, add up to at most 1, and the projection has that variance."""
    found = clusters(table, "results")
    assert found.projection.shape == (400, 3)
    assert list(found.explained) == sorted(found.explained, reverse=True)
    assert sum(found.explained) <= 1 + 1e-9
    spread = found.projection.var(axis=0)
    assert spread / spread[0] == pytest.approx(np.array(found.explained) / found.explained[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 500}, "500 clusters of 400 rows"),
        ({"k": 1}, "it takes two or more"),
        ({"strategy": "dbscan"}, "unknown strategy 'dbscan'"),
        ({"results": ["precision"]}, "is not a number"),
        ({"results": ["energy"]}, "did you mean 'energy_wh'"),
    ],
)
def test_unusable_input_is_refused(table, options, message):
    """Too many, too few, an unknown column, or text."""
    with pytest.raises(ConfigError, match=message):
        clusters(table, **options)


def test_rows_that_are_all_equal_make_no_clusters():
    """All values are equal, or fewer rows differ than there are clusters."""
    rows = [{"cap": n % 2, "energy_j": 1.0} for n in range(6)]
    with pytest.raises(ConfigError, match="no result varies"):
        clusters(table_of(rows, name="t"))
    rows = [{"cap": n % 2, "energy_j": float(n % 2)} for n in range(6)]
    with pytest.raises(ConfigError, match="2 different rows among 6 make no 3 clusters"):
        clusters(table_of(rows, name="t"), "results", k=3)


def test_rows_with_gaps_are_left_out():
    """They are counted, and a constant column is named."""
    rows = [{**r, "epochs": 5} for r in cali3_runs()]
    rows[7]["eval_loss"] = None
    found = clusters(table_of(rows, name="t"), "results", k=4)
    assert len(found.labels) == 399
    assert "1 rows with missing values left out" in found.notes
    assert "left out, the same in every row: epochs" in found.notes


def test_a_result_that_few_rows_have_is_left_out_not_the_rows(table):
    """Few configurations of a search reach their target; the others are clustered all the same."""
    rows = [{**r, "to_target_j": 5.0 + n if n < 20 else None} for n, r in enumerate(cali3_runs())]
    found = clusters(table_of(rows, name="c"), "results", k=3)
    assert found.facts["rows"] == len(rows)
    assert "left out, missing in more than 10% of the rows: to_target_j" in found.notes
    named = clusters(table_of(rows, name="c"), "results", k=2, results=["to_target_j"])
    assert named.facts["rows"] == 20


@pytest.mark.parametrize("turned", [False, True])
def test_components_of_two_columns_have_signs_of_their_own(turned):
    """Their entries are equal in size, so rounding must not decide which one is made positive."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        x = rng.normal(size=30)
        y = rng.normal(size=30) + (-x if turned else x)
        rows = [{"energy_j": float(a), "time_s": float(b)} for a, b in zip(x, y, strict=True)]
        found = clusters(table_of(rows, name="t", parameters=[], results=["energy_j", "time_s"]))
        components = next(t for t in found.others if t.name == "components")
        assert [components.rows[0][key] > 0 for key in ("pc1", "pc2")] == [True, True]
