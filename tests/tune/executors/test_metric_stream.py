"""Metrics in lines of output and of files."""

import math

import pytest

from wattloop.tune.executors.command import LineReader, MetricLines


@pytest.mark.parametrize(
    ("line", "metrics", "epoch"),
    [
        ("accuracy=0.93", {"accuracy": 0.93}, None),
        ("epoch 3 accuracy: 0.93", {"accuracy": 0.93}, 3),
        ("Epoch 3/10 - loss: 0.21 - accuracy: 0.93", {"loss": 0.21, "accuracy": 0.93}, 3),
        ("[epoch=2] accuracy = 93.1%", {"accuracy": 0.931}, 2),
        ('{"epoch": 4, "accuracy": 0.9, "note": "x", "ok": true}', {"accuracy": 0.9}, 4),
        ("accuracy 0.5", {"accuracy": 0.5}, None),
        ("loss=nan accuracy=-inf", {"loss": math.nan, "accuracy": -math.inf}, None),
        ("eval/accuracy: 1e-3", {"eval/accuracy": 1e-3}, None),
        ("10%|##  | 3/30\raccuracy: 0.1\raccuracy: 0.2", {"accuracy": 0.2}, None),
    ],
)
def test_lines_that_tell_something(line, metrics, epoch):
    """Promise: the usual ways in which programs print their metrics are understood."""
    said = MetricLines("accuracy").parse(line)
    assert said.metrics == pytest.approx(metrics, nan_ok=True)
    assert said.epoch == epoch


@pytest.mark.parametrize(
    "line",
    ["", "loading data", "saved to /tmp/x=y", "12:34:56 began", "{broken json", "accuracy: good"],
)
def test_lines_that_tell_nothing(line):
    """Promise: other lines are left alone."""
    said = MetricLines("accuracy").parse(line)
    assert said is None or "accuracy" not in said.metrics


def test_an_epoch_of_its_own_line_holds_for_those_that_follow():
    """Promise: as Keras prints them."""
    lines = MetricLines("accuracy")
    assert lines.parse("Epoch 2/5").epoch == 2
    assert lines.parse("accuracy: 0.5").epoch == 2
    assert lines.parse("Epoch 3/5").epoch == 3
    assert lines.parse("accuracy: 0.6").epoch == 3


def test_rows_of_csv_and_json():
    """Promise: a file with a header, or an object per line."""
    lines = MetricLines("accuracy")
    assert lines.row("epoch,accuracy,note") is None
    assert lines.row("1,0.5,good") == ({"accuracy": 0.5}, 1, "", False)
    assert lines.row("2,,") == ({}, 2, "", False)
    assert MetricLines("accuracy").row('{"accuracy": 0.7}').metrics == {"accuracy": 0.7}


def test_only_whole_lines_are_read(tmp_path):
    """Promise: half a line waits for its end; a file that is truncated is read from its start."""
    path = tmp_path / "out"
    reader = LineReader(path)
    assert list(reader.lines()) == []
    with path.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert list(reader.lines()) == ["one"]
        file.write("o\nthree")
        file.flush()
        assert list(reader.lines()) == ["two"]
    assert list(reader.lines(last=True)) == ["three"]
    path.write_text("new\n")
    assert list(reader.lines()) == ["new"]
