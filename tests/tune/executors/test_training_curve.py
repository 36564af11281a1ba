"""Promises of the training curve: the meaning of reports."""

import math

import pytest

from wattloop.tune.executors.training_curve import TrainingCurve
from wattloop.tune.search_problem import Quality
from wattloop.tune.segment import Status, Until


def course(**options):
    return TrainingCurve(Quality(metric="accuracy", target=0.9), **options)


def epochs_of(one):
    return [(mark.epoch, mark.quality) for mark in one.marks]


def test_each_report_of_the_metric_ends_an_epoch():
    """Promise: without a word about epochs, reports of the metric are counted."""
    one = course()
    assert not one.report({"loss": 1.0}, None, 0.0)
    assert one.report({"accuracy": 0.5}, None, 1.0)
    assert one.report({"accuracy": 0.6}, None, 2.0)
    assert epochs_of(one) == [(1, 0.5), (2, 0.6)]
    assert one.metrics == {"loss": 1.0, "accuracy": 0.6}


@pytest.mark.parametrize("first", [0, 1])
def test_epochs_are_counted_from_zero_or_one(first):
    """Promise: the first epoch is one epoch, whatever the training calls it."""
    one = course()
    for number in range(3):
        one.report({"accuracy": 0.1}, first + number, float(number))
    assert [mark.epoch for mark in one.marks] == [1, 2, 3]


def test_parts_of_epochs_are_kept():
    """Promise: a trainer that evaluates twice an epoch says so."""
    one = course()
    for epoch in (0.5, 1.0, 1.5):
        one.report({"accuracy": epoch / 10}, epoch, epoch)
    assert [mark.epoch for mark in one.marks] == [0.5, 1.0, 1.5]


def test_a_resumed_training_goes_on_counting():
    """Promise: epochs of a training that begins at four are five and more."""
    for first in (4, 5):
        one = course(epochs=4.0)
        one.report({"accuracy": 0.2}, first, 0.0)
        assert one.epochs == 5


def test_a_later_epoch_ends_one_without_the_metric():
    """Promise: an epoch that did not report its quality has none, and is an epoch all the same."""
    one = course()
    one.report({"loss": 1.0}, 1, 0.0)
    assert one.report({"loss": 0.9}, 2, 1.0)
    one.report({"accuracy": 0.7}, 2, 2.0)
    assert epochs_of(one) == [(1, None), (2, 0.7)]


def test_the_last_word_of_an_epoch_counts():
    """Promise: the same epoch reported twice is one epoch."""
    one = course()
    one.report({"accuracy": 0.7}, 1, 0.0)
    one.report({"accuracy": 0.8}, 1, 1.0)
    assert epochs_of(one) == [(1, 0.8)]


def test_a_training_that_counts_reports_when_it_likes():
    """Promise: only the end that it states ends an epoch."""
    one = course(counted=True)
    assert not one.report({"accuracy": 0.3}, None, 0.0)
    assert not one.report({"accuracy": 0.4}, None, 1.0)
    one.end_epoch(2.0)
    one.end_epoch(3.0)
    assert epochs_of(one) == [(1, 0.4), (2, None)]
    assert one.best == 0.4


@pytest.mark.parametrize("name", ["accuracy", "loss", "val_loss"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_has_diverged(name, value):
    """Promise: the metric and losses; other numbers may be what they like."""
    one = course()
    assert one.report({name: value}, None, 0.0)
    assert one.verdict(Until(), 0.0, None) is Status.DIVERGED
    assert name in one.diverged
    other = course()
    assert not other.report({"grad_norm": value}, None, 0.0)
    assert not other.diverged


def test_a_metric_that_disappears_is_missed():
    """Promise: said when it is late by twice what was usual, and not before."""
    one = course(counted=True)
    for epoch in range(12):
        if epoch in (1, 3, 5):
            one.report({"accuracy": 0.1}, None, 0.0)
        one.end_epoch(0.0)
        assert bool(one.missed) == (epoch >= 10)
    assert one.missed == "accuracy was not reported any more after epoch 6"


@pytest.mark.parametrize(
    ("until", "quality", "status"),
    [
        (Until(epochs=1), 0.5, Status.PAUSED),
        (Until(epochs=2), 0.5, None),
        (Until(), 0.95, Status.REACHED),
        (Until(at_target=False), 0.95, None),
        (Until(time_s=5.0), 0.5, Status.PAUSED),
        (Until(energy_j=50.0), 0.5, Status.PAUSED),
        (Until(energy_j=500.0, time_s=50.0), 0.5, None),
    ],
)
def test_bounds_end_a_segment(until, quality, status):
    """Promise: the first bound that is reached ends it; the target only where it is asked for."""
    one = course()
    one.report({"accuracy": quality}, None, 0.0)
    assert one.verdict(until, 5.0, 50.0) is status


def test_how_far_an_epoch_is():
    """Promise: a partial epoch is reported where its steps are known, and never a whole one."""
    one = course(counted=True)
    one.steps = 10
    assert one.epochs_now == 0
    one.end_epoch(0.0)
    one.steps = 5
    assert one.epochs_now == 1.5
    one.steps = 50
    assert 1.9 < one.epochs_now < 2


@pytest.mark.parametrize("counted", [True, False])
def test_the_last_word_is_no_epoch_of_its_own(counted):
    """Promise: a training that reports and then returns its metrics has not trained once more."""
    one = course(counted=counted)
    for _ in range(2):
        one.report({"accuracy": 0.5}, None, 0.0)
        if counted:
            one.end_epoch(0.0)
    one.conclude({"accuracy": 0.5, "size": 3.0}, 1.0)
    assert one.epochs == 2
    assert one.metrics["size"] == 3.0
    if counted:
        one.conclude({"accuracy": 0.7}, 2.0)
        assert epochs_of(one) == [(1, 0.5), (2, 0.7)]
        assert one.best == 0.7


@pytest.mark.parametrize("counted", [True, False])
def test_the_only_word_is_an_epoch(counted):
    """Promise: a training that only returns its metrics has trained once."""
    one = course(counted=counted)
    one.conclude({"accuracy": 0.5}, 1.0)
    assert epochs_of(one) == [(1, 0.5)]


@pytest.mark.parametrize(
    ("epochs_s", "end_s", "silent"),
    [
        ((10.0, 20.0, 30.0), 95.0, True),
        ((10.0, 20.0, 30.0), 75.0, False),  # a last look at the model
        ((10.0, 20.0, 70.0), 95.0, False),  # its epochs may take as long as that
        ((10.0, 20.0), 95.0, False),  # too few to know
        ((0.1, 0.2, 0.3), 2.0, False),  # quick epochs, and the end of the program
        ((), 95.0, False),
    ],
)
def test_silence_is_measured_by_epochs_of_the_same_training(epochs_s, end_s, silent):
    """Promise: only a training that ran for several of its own epochs is called silent."""
    one = course()
    for at_s in epochs_s:
        one.report({"accuracy": 0.5}, None, at_s)
    assert bool(one.silent(0.0, end_s)) is silent


def test_silence_of_a_whole_segment_is_silence():
    """Promise: epochs of segments before tell how long they take; pauses between do not count."""
    one = course()
    for at_s in (10.0, 20.0, 30.0):
        one.report({"accuracy": 0.5}, None, at_s)
    one.begin()
    assert not one.silent(1_000.0, 1_040.0)
    assert "after epoch 3" in one.silent(1_000.0, 1_060.0)
