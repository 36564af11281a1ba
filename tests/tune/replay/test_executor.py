"""Segments by the tables: time, energy, quality and caps are those that were measured."""

import pytest

from tests.tune.replay.small_tables import write_tables
from wattloop.tune.replay.executor import BATCH, CapScripts, ReplayExecutor
from wattloop.tune.replay.tables import read_workloads
from wattloop.tune.segment import CAP_LEVER, CapRequest, RateSweep, Segment, Status, Until


@pytest.fixture
def workload(tmp_path):
    """The small one."""
    tables = write_tables(tmp_path)
    return read_workloads([tables.power], tables.train, tables.problems)[0][0]


def segment(size=64, name="a", **options):
    return Segment(key=name, candidate=name, parameters={BATCH: size}, **options)


def test_a_whole_training_is_what_was_measured(workload):
    """Six epochs of 50 s at 160 W."""
    bench = ReplayExecutor(workload, CapScripts())
    progress = bench.run(segment())
    assert progress.status is Status.REACHED
    assert progress.time_s == pytest.approx(300)
    assert progress.energy_j == pytest.approx(6 * 50 * 160)
    assert [point.quality for point in progress.curve] == [None, 0.5, 0.5, 0.5, 0.5, 0.8]
    assert progress.provenance == "replayed"


def test_a_training_goes_on_under_another_cap(workload):
    """Epochs to the target do not depend on the cap."""
    bench = ReplayExecutor(workload, CapScripts())
    first = bench.run(segment(until=Until(epochs=2)))
    second = bench.run(segment(levers={CAP_LEVER: 100.0}))
    assert (first.status, second.status) == (Status.PAUSED, Status.REACHED)
    assert second.energy_j == pytest.approx(4 * 60 * 95)
    assert bench.total_j == pytest.approx(first.energy_j + second.energy_j)


def test_a_segment_may_end_inside_an_epoch(workload):
    """Where that is asked for, after so many seconds; else at the end of the epoch."""
    bench = ReplayExecutor(workload, CapScripts())
    part = bench.run(segment(until=Until(time_s=5, anywhere=True)))
    assert part.epochs == pytest.approx(0.1)
    assert part.energy_j == pytest.approx(5 * 160)
    assert bench.run(segment(until=Until(time_s=5))).epochs == 1


def test_a_search_for_a_cap_counts_as_training(workload):
    """Its seconds are part of the segment, and the best cap stays."""
    bench = ReplayExecutor(workload, CapScripts())
    progress = bench.run(segment(cap=CapRequest(), until=Until(epochs=3)))
    assert progress.cap is not None
    assert progress.cap.cap_w == 100.0
    assert progress.epochs == 3
    assert 3 * 60 * 95 < progress.energy_j < 3 * 50 * 160
    assert bench.trained["a"] == (64, 100.0)


def test_a_search_that_the_target_cuts_short_finds_nothing(workload):
    """A cap that was not tried is not known."""
    bench = ReplayExecutor(workload, CapScripts())
    bench.run(segment(until=Until(epochs=5.99, anywhere=True)))
    progress = bench.run(segment(cap=CapRequest()))
    assert progress.status is Status.REACHED
    assert progress.cap is None


def test_an_exploration_leaves_no_trace_but_its_cost(workload):
    """The training continues where it was before."""
    bench = ReplayExecutor(workload, CapScripts())
    bench.run(segment(until=Until(epochs=2)))
    bench.run(segment(until=Until(epochs=4), keep=False))
    assert bench.run(segment(until=Until(epochs=3))).epochs == 3
    assert bench.spent_j["a"] == pytest.approx(5 * 50 * 160)


def test_noise_is_in_what_is_told_not_in_what_is_accounted(workload):
    """The truth is the table's."""
    bench = ReplayExecutor(workload, CapScripts(0.05), seed=3)
    progress = bench.run(segment())
    assert progress.energy_j != pytest.approx(6 * 50 * 160, rel=1e-4)
    assert progress.energy_j == pytest.approx(6 * 50 * 160, rel=0.1)
    assert progress.uncertainty_j > 0
    assert bench.total_j == pytest.approx(6 * 50 * 160)


def test_a_training_ends_at_the_most_epochs(workload):
    """Below the target that is a failure."""
    bench = ReplayExecutor(workload, CapScripts())
    progress = bench.run(segment(size=128))
    assert progress.status is Status.ENDED
    assert progress.epochs == workload.max_epochs
    assert "a" not in bench.reached


def test_what_the_tables_cannot_say_is_refused(workload):
    """Rates are not swept, and a cap that was not measured is not set."""
    bench = ReplayExecutor(workload, CapScripts())
    sweep = RateSweep(low=1e-3, high=1, count=10)
    assert bench.run(segment(rates=sweep)).status is Status.NOT_SUPPORTED
    assert bench.run(segment(levers={CAP_LEVER: 123.0})).status is Status.NOT_SET


def test_windows_are_extended_until_energy_is_known():
    """At 5% a reading, seven of them are needed for 2%."""
    assert CapScripts(0.05).readings == 7
    assert CapScripts(0.0).readings == 4
