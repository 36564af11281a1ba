"""`wattloop tune replay`: figures as JSON, and bad input refused."""

import json

import pytest

from tests.tune.replay.small_tables import PROBLEMS, TRAIN, write_tables
from wattloop.cli.main import main

FIGURES = {
    "default_energy_j",
    "oracle_energy_j",
    "explore_d",
    "one_shot_d",
    "final_over_oracle",
    "within_5pct_share",
    "failures",
    "cum20_over_oracle",
    "cum50_over_oracle",
}


def test_every_figure_is_written(tmp_path, capsys):
    """One entry per problem and GPU, and medians over them."""
    tables = write_tables(tmp_path)
    other = tmp_path / "power_x2.csv"
    other.write_text(tables.power.read_text())
    words = [*tables.options, "--power", str(other), "--seeds", "2", "--recurrences", "20"]
    assert main(["tune", "replay", *words, "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert [entry["gpu"] for entry in found["problems"]] == ["x1", "x2"]
    for entry in found["problems"]:
        assert set(entry) >= FIGURES
        assert entry["cum50_over_oracle"] is None
    assert found["medians"]["failures"] == 0
    assert "median" in capsys.readouterr().out


def test_standard_output_may_be_the_json(tmp_path, capsys):
    """And nothing else."""
    words = write_tables(tmp_path).options
    options = ["--strategy", "default-cap", "--seeds", "1", "--noise", "2", "--json", "-"]
    assert main(["tune", "replay", *words, *options]) == 0
    assert json.loads(capsys.readouterr().out)["noise_pct"] == 2


def test_problems_lie_beside_the_trainings_unless_named(tmp_path, capsys):
    """And where there are none, the message names the file that was looked for."""
    words = write_tables(tmp_path).options
    at = words.index("--problems")
    short = [*words[:at], *words[at + 2 :], "--strategy", "default-cap", "--seeds", "1"]
    assert main(["tune", "replay", *short]) == 0
    (tmp_path / "problems.csv").rename(tmp_path / "others.csv")
    capsys.readouterr()
    assert main(["tune", "replay", *short]) == 2
    assert str(tmp_path / "problems.csv") in capsys.readouterr().err


def test_a_problem_that_is_left_out_is_named(tmp_path, capsys):
    """On standard error, and in the JSON."""
    tables = write_tables(tmp_path, problems=PROBLEMS + "e,m,sgd,0.5,1,10,8\n")
    options = ["--strategy", "default-cap", "--seeds", "1", "--json", "-"]
    assert main(["tune", "replay", *tables.options, *options]) == 0
    shown = capsys.readouterr()
    assert "e/m (sgd) on x1 is left out" in shown.err
    assert json.loads(shown.out)["left_out"][0]["dataset"] == "e"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--strategy", "rush"], "unknown strategy 'rush'; known are race"),
        (["--noise", "-1"], "--noise -1: give per cent"),
        (["--seeds", "0"], "--seeds 0: give at least 1"),
        (["--recurrences", "0"], "--recurrences 0"),
        (["--train", "none.csv"], "none.csv: no such file"),
        (["--json", "/no/such/folder/x.json"], "no folder"),
    ],
)
def test_bad_input_ends_with_2(tmp_path, words, said, capsys):
    """The error and the remedy, never a traceback."""
    tables = write_tables(tmp_path)
    assert main(["tune", "replay", *tables.options, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_bad_table_ends_with_2(tmp_path, capsys):
    """With its file and line."""
    tables = write_tables(tmp_path, train=TRAIN.replace("0.8,4", "0.8,x"))
    assert main(["tune", "replay", *tables.options]) == 2
    assert "train.csv, line 3: target_epoch is 'x'" in capsys.readouterr().err
