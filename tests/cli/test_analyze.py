"""Promises of `wattloop analyze`: over files, sweeps and searches; bad input is code 2."""

import csv
import io
import json
import sys
from dataclasses import replace

import pytest

from tests.analyze.synthetic_runs import cali3_runs, greenscreen_runs
from tests.cli.conftest import Machine
from tests.support.synthetic_sweep import CAPS_W, made_sweep, time_s
from wattloop.cli.main import main
from wattloop.store.database import open_store
from wattloop.store.experiments import (
    begin_trial,
    create_experiment,
    end_trial,
    set_experiment_status,
)
from wattloop.tune.search_store import SearchRecord, open_search
from wattloop.tune.segment import Progress, Segment, Status, Until

for library in ("sklearn", "scipy"):
    pytest.importorskip(library, reason="the extra 'analyze' is not installed")

COMMANDS = (
    *("top", "quotient", "metrics", "pareto", "matrix"),
    *("ols", "correlation", "clusters", "importance"),
)


@pytest.fixture
def folder(here: Machine):
    """A folder with the tables of both documents."""
    for name, rows in (("green.csv", greenscreen_runs()), ("cali3.csv", cali3_runs())):
        with (here.folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return here.folder


def run(capsys, *words):
    """Exit code, standard output and standard error of a command line."""
    code = main(["analyze", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_writes_and_draws(folder, capsys, command):
    """A table, JSON, CSV and a figure from one CSV file, and what was assumed on the side."""
    pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")
    words = ["green.csv", "--json", "o.json", "--csv", "o.csv", "--figure", "o.svg"]
    code, out, err = run(capsys, command, *words)
    assert code == 0, err
    assert out.startswith("green.csv: ")
    assert "parameters, by their names and values: preprocessing" in err
    data = json.loads((folder / "o.json").read_text())
    assert data["source"]["rows"] == 80
    rows = list(csv.DictReader((folder / "o.csv").open()))
    assert len(rows) == len(data["rows"]) > 0
    assert "<svg" in (folder / "o.svg").read_text()


def test_standard_output_is_data_when_asked_for(folder, capsys):
    """`--json -` and `--csv -` print nothing else there; both at once cannot be."""
    code, out, _ = run(capsys, "ols", "green.csv", "--json", "-")
    assert code == 0
    assert len(json.loads(out)["rows"]) == 40
    _, out, _ = run(capsys, "ols", "green.csv", "--csv", "-")
    assert len(list(csv.DictReader(io.StringIO(out)))) == 40
    code, _, err = run(capsys, "ols", "green.csv", "--csv", "-", "--json", "-")
    assert (code, "only one can have standard output" in err) == (2, True)


def test_long_tables_are_cut_and_say_so(folder, capsys):
    """`--rows` decides; coefficients are always whole."""
    _, out, _ = run(capsys, "quotient", "green.csv", "--rows", "3")
    assert "... and 77 more" in out
    _, out, _ = run(capsys, "quotient", "green.csv", "--rows", "0")
    assert "more (--rows" not in out
    _, out, _ = run(capsys, "ols", "green.csv", "--rows", "3")
    assert "precision_global_policy_float" in out


def test_rows_and_columns_are_chosen(folder, capsys):
    """`--where` several times, `--parameters`, `--results`; what is left out is counted."""
    words = ["--where", "train_accuracy>=0.3", "--where", "batch_size!=32"]
    code, _, err = run(capsys, "pareto", "green.csv", *words, "--parameters", "lr", "--json", "o")
    assert code == 0
    data = json.loads((folder / "o").read_text())
    assert data["source"]["parameters"] == ["lr"]
    assert sum(data["source"]["left_out"].values()) == 80 - data["source"]["rows"] > 0
    assert "rows left out:" in err


def test_clusters_write_runs_with_their_cluster(folder, capsys):
    """`--assign`: every run, its cluster and components."""
    code, out, err = run(capsys, "clusters", "cali3.csv", "--strategy", "all", "--k", "5",
                         "--assign", "runs.csv")  # fmt: skip
    assert code == 0, err
    assert "means of 5 clusters" in out
    assert "influence of parameters" in out
    rows = list(csv.DictReader((folder / "runs.csv").open()))
    assert len(rows) == 400
    assert {row["cluster"] for row in rows if row["batch_size"] == "8"} == {"4"}


def test_the_matrix_can_be_sorted_by_the_quotient(folder, capsys):
    """The third matrix of figure 7."""
    code, _, err = run(capsys, "matrix", "green.csv", "--target", "quotient")
    assert code == 0, err
    assert "more quotient is better" in err


def test_a_stored_sweep_is_analysed(folder, capsys):
    """A row per trial, the lever as a number, whose energy it is, the default as reference."""
    experiment, trials = made_sweep()
    failed = replace(trials[0], key="gpus=1, extra #0", status="failed",
                     outcome={**trials[0].outcome, "status": "failed"})  # fmt: skip
    with open_store(str(folder / "runs.db")) as store:
        create_experiment(store, experiment)
        for trial in (*trials, failed):
            begin_trial(store, experiment.experiment_id, trial.key, trial.settings)
            end_trial(store, experiment.experiment_id, trial)
    code, _, err = run(capsys, "correlation", "made", "--target", "time_s", "--json", "o.json")
    assert code == 0, err
    source = json.loads((folder / "o.json").read_text())["source"]
    assert source["parameters"] == ["gpus", "gpu/power_limit_w"]
    assert source["rows"] == 24
    assert source["left_out"] == {"failed": 1}
    assert "energy of node" in source["source"]
    for command in ("matrix", "ols", "correlation", "metrics", "importance", "pareto"):
        code, _, err = run(capsys, command, "made", "--figure", "figure.svg")
        assert code == 0, err
        # a file of its own says whose energy it is, and where that comes from
        drawn = (folder / "figure.svg").read_text()
        assert "energy of node" in drawn, command
    code, _, err = run(capsys, "metrics", "last", "--where", "gpus=8", "--csv", "m.csv")
    assert "reference: mean of 3 default runs" in err
    rows = list(csv.DictReader((folder / "m.csv").open()))
    losses = {r["gpu/power_limit_w"]: float(r["time_loss_pct"]) for r in rows}
    expected = 100 * (time_s(CAPS_W[0], 8) / time_s(CAPS_W[-1], 8) - 1)
    assert losses["100.0"] == pytest.approx(expected, abs=2.5)


def stored_search(folder, maximize=True):
    """Six configurations: one diverged, one running, one with a conditional parameter inactive."""
    with open_store(str(folder / "runs.db")) as store:
        experiment, _ = open_search(store, {}, "made", name="mine")
        record = SearchRecord(store, experiment)
        for number in range(6):
            parameters = {"lr": 0.1 / (number + 1), "optimizer": "SGD" if number % 2 else "Adam"}
            if number % 2:
                parameters["momentum"] = 0.9
            segment = Segment(key=f"c{number}/1", candidate=f"c{number}", parameters=parameters,
                              until=Until(epochs=2))  # fmt: skip
            record.begin(segment)
            if number == 5:
                continue
            epochs = 2.0 + number
            progress = Progress(
                status=Status.DIVERGED if number == 0 else Status.PAUSED,
                time_s=10.0 * epochs,
                energy_j=1_000.0 * epochs + number,
                epochs=epochs,
                quality=0.5 + 0.05 * number,
                best=0.5 + 0.05 * number,
                metrics={"val_loss": 1.0 - 0.1 * number},
                provenance="simulated",
            )
            record.end(segment, progress, {})
        quality = {"metric": "score", "maximize": maximize, "target": None}
        facts = {"quality": quality, "scope": "gpu", "default": {"lr": 0.05}}
        set_experiment_status(store, experiment.experiment_id, "finished", facts)
        return experiment.experiment_id


def test_a_stored_search_is_analysed(folder, capsys):
    """A row per configuration, the metric by its name, what failed counted, nothing made up."""
    name = stored_search(folder)
    code, _, err = run(capsys, "pareto", name, "--json", "o.json")
    assert code == 0, err
    data = json.loads((folder / "o.json").read_text())
    assert data["source"]["parameters"] == ["lr", "optimizer", "momentum"]
    assert data["source"]["left_out"] == {"diverged": 1, "running": 1}
    assert data["source"]["source"] == "energy of gpu, simulated"
    named = {"best_score", "last_score", "val_loss", "energy_per_epoch_j"}
    assert named <= set(data["source"]["results"])
    assert "better is less energy_j, more best_score" in err
    first = data["rows"][0]
    assert (first["run"], first["momentum"]) == ("c1", 0.9)
    assert {row["momentum"] for row in data["rows"]} == {0.9, "inactive"}
    code, _, err = run(capsys, "metrics", "mine")
    assert "reference: c1" in err


def test_rows_of_different_epochs_are_compared_by_the_epoch(folder, capsys):
    """A run that a search stopped early did not save energy."""
    stored_search(folder)
    code, out, err = run(capsys, "importance", "mine", "--method", "variance")
    assert code == 0, err
    assert "what energy_per_epoch_j depends on" in out


def test_stopped_trainings_are_compared_over_the_same_work(folder, capsys):
    """A training that was stopped after 4 epochs did not save energy against one of 3."""
    stored_search(folder)
    code, _, err = run(capsys, "metrics", "mine", "--json", "o.json")
    assert code == 0
    assert "stopped after 3 to 6 epochs: compared by the epoch" in err
    rows = json.loads((folder / "o.json").read_text())["rows"]
    assert [row["epochs"] for row in rows] == [3, 4, 5, 6]
    for row in rows:
        assert row["energy_gain_pct"] == pytest.approx(0.0, abs=0.1)
        assert row["time_loss_pct"] == pytest.approx(0.0)


def test_trainings_to_a_target_are_compared_by_what_that_took(folder, capsys):
    """Energy to the target of those that reached it; others are named, not compared."""
    rows = ["candidate,lr,status,epochs,energy_j,time_s,to_target_j,to_target_s,is_default"]
    rows += ["c0,0.1,reached,14,140,14,100,10,true", "c1,0.2,paused,3,30,3,,,false"]
    rows += ["c2,0.3,reached,9,90,9,80,8,false"]
    (folder / "search.csv").write_text("\n".join(rows))
    code, _, err = run(capsys, "metrics", "search.csv", "--json", "o.json")
    assert code == 0, err
    assert "1 did not reach it: c1" in err
    gains = [row["energy_gain_pct"] for row in json.loads((folder / "o.json").read_text())["rows"]]
    assert gains == [0.0, None, pytest.approx(20.0)]


def test_accuracy_has_one_meaning(folder, capsys):
    """The best epoch, in `tune show` and in every analysis; the last has a name of its own."""
    with open_store(str(folder / "runs.db")) as store:
        experiment, _ = open_search(store, {}, "made", name="two")
        record = SearchRecord(store, experiment)
        for name, best, last in (("c0", 0.9, 0.6), ("c1", 0.8, 0.8)):
            segment = Segment(key=name, candidate=name, parameters={"lr": len(name)},
                              until=Until(epochs=2))  # fmt: skip
            record.begin(segment)
            progress = Progress(status=Status.ENDED, time_s=1.0, energy_j=10.0, epochs=2.0,
                                quality=last, best=best, provenance="measured")  # fmt: skip
            record.end(segment, progress, {})
        facts = {"quality": {"metric": "accuracy", "maximize": True, "target": None}}
        set_experiment_status(store, experiment.experiment_id, "finished", facts)
    code, out, err = run(capsys, "top", "two", "--by", "accuracy", "--json", "o.json")
    assert code == 0, err
    assert "best_accuracy" in out
    found = json.loads((folder / "o.json").read_text())
    assert [(row["run"], row["accuracy"]) for row in found["rows"]] == [("c0", 0.9), ("c1", 0.8)]
    assert {"best_accuracy", "last_accuracy"} <= set(found["source"]["results"])
    code, out, _ = run(capsys, "top", "two", "--by", "accuracy", "--quality", "last_accuracy")
    assert out.index("c1") < out.index("c0")
    code, out, _ = run(capsys, "top", "two", "--by", "accuracy", "--quality", "accuracy")
    assert out.index("c0") < out.index("c1")
    assert main(["tune", "show", "two"]) == 0
    shown = capsys.readouterr().out
    assert "best accuracy" in shown
    assert "0.9" in shown


def test_a_metric_to_be_made_small_is_known_as_such(folder, capsys):
    """The direction comes from the search, not from the name."""
    stored_search(folder, maximize=False)
    code, _, err = run(capsys, "matrix", "mine", "--target", "score")
    assert code == 0, err
    assert "less score is better" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ols", "none.csv"), "none.csv: cannot be read: No such file"),
        (("ols", "green.csv", "--target", "energy_hw"), "did you mean 'energy_wh'?"),
        (("ols", "green.csv", "--target", "optimizer"), "'optimizer' is not a number"),
        (("ols", "green.csv", "--target", "epochs"), "there is nothing to explain"),
        (("ols", "green.csv", "--where", "run<20"), "20 rows for"),
        (("clusters", "green.csv", "--k", "500"), "500 clusters of 80 rows"),
        (("clusters", "green.csv", "--dimensions", "4"), "--dimensions 4: give 2 or 3"),
        (("clusters", "empty.csv"), "empty.csv: empty"),
        (("pareto", "green.csv", "--where", "run=99"), "no row with run=99"),
        (("pareto", "green.csv", "--minimize", "lr", "--maximize", "lr"), "both small and large"),
        (("metrics", "green.csv", "--k", "x"), "--k x: write numbers"),
        (("top", "green.csv", "--threshold", "1"), "no run reaches"),
        (("matrix", "green.csv", "--target", "epochs"), "in every row"),
        (("correlation", "green.csv", "--figure", "o.gif"), "end it with .svg, .png, .html"),
        (("correlation", "green.csv", "--rows", "-1"), "--rows -1"),
        (("importance", "gaps.csv", "--target", "energy_j"), "column 'energy_j' has no values"),
        (("ols", "search-none"), "no such file, and nothing is stored yet"),
        (("ols", "green.csv", "--parameters", "lrr"), "did you mean 'lr'?"),
    ],
)
def test_bad_input_is_named_and_ends_with_code_2(folder, capsys, words, message):
    """Never a traceback."""
    (folder / "empty.csv").write_text("")
    (folder / "gaps.csv").write_text("lr,energy_j\n1,\n2,nan\n")
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_an_experiment_of_another_kind_is_refused(folder, capsys):
    """A benchmark is not a table of parameters."""
    experiment, _ = made_sweep()
    with open_store(str(folder / "runs.db")) as store:
        create_experiment(
            store, replace(experiment, experiment_id="bench-1", kind="bench", name="b")
        )
    code, _, err = run(capsys, "ols", "bench-1")
    assert (code, "no search or sweep yet" in err) == (2, True)
    code, _, err = run(capsys, "ols", "last")
    assert (code, "no search or sweep yet" in err) == (2, True)


def test_a_search_and_its_final_training_may_have_one_name(folder, capsys):
    """The name means the search, not the final training of its winner."""
    stored_search(folder)
    experiment, _ = made_sweep()
    with open_store(str(folder / "runs.db")) as store:
        final = replace(experiment, experiment_id="final-1", kind="final", name="mine")
        create_experiment(store, final)
    code, _, err = run(capsys, "pareto", "mine")
    assert code == 0, err


def test_a_missing_library_names_the_command_that_installs_it(folder, capsys, monkeypatch):
    """The extras are extras."""
    monkeypatch.setitem(sys.modules, "scipy", None)
    code, _, err = run(capsys, "ols", "green.csv")
    assert (code, "pip install 'wattloop[analyze]'" in err) == (2, True)
