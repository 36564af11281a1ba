"""Stored searches as candidates, tables and summaries."""

from dataclasses import replace

import pytest

from wattloop.store.experiments import (
    Experiment,
    TrialRecord,
    begin_trial,
    create_experiment,
    end_trial,
    find_experiment,
    read_trials,
    set_experiment_status,
)
from wattloop.tune.results import epoch_rows, read_candidates, search_table, summarize_search
from wattloop.tune.search_problem import Quality
from wattloop.tune.segment import CapFound, EpochPoint, Progress, Segment, Status

QUALITY = Quality(metric="accuracy", target=0.8)


def point(epoch, quality, time_s, energy_j):
    return EpochPoint(epoch=epoch, quality=quality, time_s=time_s, energy_j=energy_j)


@pytest.fixture
def search(store):
    """Writes segments of one search, in order."""
    facts = {
        "quality": {"metric": "accuracy", "maximize": True, "target": 0.8},
        "default": {"epochs": 1},
        "best": {"candidate": "b", "parameters": {"epochs": 2}, "why": "cheapest"},
        "scope": "gpu",
    }
    experiment = Experiment(experiment_id="search-1", kind="search", name="h", facts=facts)
    create_experiment(store, experiment)

    def add(candidate, epochs, progress=None, **options):
        key = f"{candidate}/{len(read_candidates(store, 'search-1'))}/{epochs}/{id(options)}"
        given = {"key": key, "candidate": candidate, "parameters": {"epochs": epochs}}
        segment = Segment(**given, **options)
        begun = begin_trial(store, "search-1", key, {"segment": segment.to_dict(), "asked": 0})
        if progress is not None:
            record = TrialRecord(
                key=key,
                number=begun.number,
                status=progress.status.value,
                settings=begun.settings,
                outcome={**progress.to_dict(), "told": 1},
                run_id=progress.run_id,
            )
            end_trial(store, "search-1", record)
        return experiment

    return add


def fill(search):
    measured = {"provenance": "measured", "run_id": "r"}
    search(
        "a",
        1,
        Progress(
            status=Status.PAUSED,
            time_s=10.0,
            energy_j=100.0,
            uncertainty_j=3.0,
            epochs=1,
            quality=0.5,
            best=0.5,
            curve=(point(1, 0.5, 10.0, 100.0),),
            **measured,
        ),
    )
    search(
        "b",
        2,
        Progress(
            status=Status.REACHED,
            time_s=8.0,
            energy_j=60.0,
            epochs=2,
            quality=0.85,
            best=0.85,
            curve=(point(1, 0.4, 4.0, 30.0), point(2, 0.85, 8.0, 60.0)),
            cap=CapFound(cap_w=250.0),
            metrics={"loss": 0.2},
            **measured,
        ),
    )
    search(
        "a",
        1,
        Progress(
            status=Status.PAUSED,
            time_s=20.0,
            energy_j=200.0,
            uncertainty_j=4.0,
            epochs=3,
            quality=0.9,
            best=0.9,
            repeated_j=7.0,
            idle_j=11.0,
            message="slow",
            curve=(point(2, 0.82, 19.0, 190.0), point(3, 0.9, 30.0, 300.0)),
            provenance="estimated",
            run_id="r",
        ),
    )
    search("c", 3, Progress(status=Status.FAILED, time_s=1.0, message="no such layer"))
    return search("d", 4)


def test_segments_become_candidates(search, store):
    """Promise: costs add up, quality is the last, the way to the target is from the curve."""
    fill(search)
    a, b, c, d = read_candidates(store, "search-1", QUALITY)
    assert (a.segments, a.time_s, a.energy_j, a.epochs) == (2, 30.0, 300.0, 3)
    assert a.uncertainty_j == 5.0
    assert (a.quality, a.best, a.reached) == (0.9, 0.9, True)
    assert (a.to_target_s, a.to_target_j) == (19.0, 190.0)
    assert (a.repeated_j, a.idle_j) == (7.0, 11.0)
    assert a.provenance == "estimated"
    assert a.messages == ["slow"]
    assert b.levers == {"power_limit": 250.0}
    assert b.to_target_j == 60.0
    assert (c.status, c.energy_j, c.good) == ("failed", None, False)
    assert (d.status, d.segments, d.good) == ("running", 0, False)


def test_a_table_has_every_column_in_every_row(search, store):
    """Promise: a parameter that is called as a result keeps a column of its own."""
    fill(search)
    rows = search_table(store, "search-1")
    assert [row["parameter.epochs"] for row in rows] == [1, 2, 3, 4]
    assert [row["epochs"] for row in rows] == [3, 2, 0, 0]
    assert [row["loss"] for row in rows] == [None, 0.2, None, None]
    assert len({tuple(row) for row in rows}) == 1
    assert rows[0]["power_w"] == 10.0
    assert rows[2]["power_w"] is None


def test_a_summary_says_what_was_spent_and_saved(search, store):
    """Promise: repetitions and waiting devices are in; the saving is to the same quality."""
    summary = summarize_search(store, fill(search))
    assert summary.energy_j == 300.0 + 60.0 + 7.0 + 11.0
    assert (summary.repeated_j, summary.idle_j) == (7.0, 11.0)
    assert (summary.candidates, summary.segments, summary.failed) == (4, 4, 1)
    assert summary.best.candidate == "b"
    assert summary.default.candidate == "a"
    assert summary.saved_j == 190.0 - 60.0
    assert summary.provenance == "estimated, measured"


def trained(energy_j, epochs, provenance="measured", uncertainty_j=0.0, status=Status.REACHED):
    """A training that reaches the target in its last epoch, each of the same energy."""
    each_j = energy_j / epochs
    return Progress(
        status=status,
        time_s=float(epochs),
        energy_j=energy_j,
        uncertainty_j=uncertainty_j,
        epochs=epochs,
        quality=0.81,
        best=0.81,
        curve=tuple(
            point(n, 0.81 if n == epochs else 0.5, float(n), n * each_j)
            for n in range(1, epochs + 1)
        ),
        provenance=provenance,
    )


@pytest.mark.parametrize(
    ("other_j", "epochs", "uncertainty_j", "tied"),
    [
        (105.0, 10, 0.0, True),  # an epoch is 10%
        (120.0, 10, 0.0, False),
        (105.0, 100, 0.0, False),
        (105.0, 100, 6.0, True),  # the sensor has the same error
    ],
)
def test_a_winner_within_noise_is_a_tie(store, search, other_j, epochs, uncertainty_j, tied):
    """Promise: a difference below an epoch and the error of the sensor decides nothing."""
    search("a", 1, trained(other_j, epochs, uncertainty_j=uncertainty_j))
    experiment = search("b", 2, trained(100.0, epochs))
    summary = summarize_search(store, experiment)
    assert [c.candidate for c in summary.ties] == ["a"] * tied
    assert summary.tie.startswith("a tie with a: energy differs by 5.0%" if tied else "")
    assert bool(summary.tie) is tied
    assert summary.to_dict()["ties"] == ["a"] * tied


def test_a_winner_of_too_few_epochs_is_not_called_certain(store, search):
    """Promise: where noise is unknown, the distance to the next candidate says so."""
    short = {"status": Status.ENDED, "time_s": 1.0, "epochs": 1, "quality": 0.6, "best": 0.6}
    search("a", 1, Progress(**short, energy_j=105.0))
    experiment = search("b", 2, Progress(**short, energy_j=100.0))
    summary = summarize_search(store, experiment)
    assert summary.ties == ()
    assert summary.tie.startswith("energy differs by 5.0% from a; so few epochs")


def test_the_error_of_a_shared_estimate_makes_no_tie(store, search):
    """Promise: one estimate errs the same way in both, so that error cancels."""
    search("a", 1, trained(130.0, 50, "estimated", 90.0))
    experiment = search("b", 2, trained(100.0, 50, "estimated", 70.0))
    assert summarize_search(store, experiment).ties == ()


def test_what_waits_in_a_finished_search_was_stopped_early(store, search):
    """Promise: paused is what can be resumed; in a finished search that is none."""
    experiment = search("a", 1, trained(10.0, 5, status=Status.PAUSED))
    (found,) = read_candidates(store, "search-1", Quality(metric="accuracy", target=0.9))
    summary = summarize_search(store, experiment)
    assert summary.status_of(found) == "paused"
    assert replace(summary, status="finished").status_of(found) == "stopped early"
    assert replace(summary, status="finished", stopped="a limit").status_of(found) == "paused"


def test_a_winner_by_quotient_within_noise_is_a_tie(store, search):
    """Promise: a quality per joule that differs by less than both scatter does not win."""
    search("a", 1, scattered(101.0))
    search("b", 2, scattered(100.0))
    experiment = search("c", 3, scattered(300.0))
    facts = {"objective": {"names": ["quotient"]}, "best": {"candidate": "b"}}
    set_experiment_status(store, experiment.experiment_id, "finished", facts)
    summary = summarize_search(store, find_experiment(store, experiment.experiment_id, "search"))
    assert [c.candidate for c in summary.ties] == ["a"]
    assert summary.tie.startswith("a tie with a: quotient differs by 1.0%")


def scattered(energy_j):
    """Ten epochs whose energies and qualities scatter by a few per cent."""
    each = [energy_j / 10 * (1.1 if n % 2 else 0.9) for n in range(10)]
    points = [point(n + 1, 0.5 + 0.02 * (n % 2), n + 1.0, sum(each[: n + 1])) for n in range(10)]
    return Progress(status=Status.ENDED, time_s=10.0, energy_j=energy_j, epochs=10, quality=0.52,
                    best=0.52, curve=tuple(points), provenance="measured")  # fmt: skip


def test_epochs_have_their_own_time_energy_power_and_metrics(store, search):
    """Promise: differences between the ends of epochs, over all segments of a configuration."""
    first = EpochPoint(epoch=1, quality=0.5, time_s=4.0, energy_j=100.0, metrics={"loss": 2.0})
    later = EpochPoint(epoch=2, quality=0.6, time_s=6.0, energy_j=180.0, metrics={"loss": 1.0})
    dark = EpochPoint(epoch=3, quality=None, time_s=7.0, energy_j=None)
    search("a", 1, Progress(status=Status.PAUSED, epochs=1, curve=(first,)))
    experiment = search("a", 2, Progress(status=Status.ENDED, epochs=3, curve=(later, dark)))
    rows = epoch_rows(read_trials(store, experiment.experiment_id))
    assert rows[0] == {"candidate": "a", "epoch": 1, "time_s": 4.0, "energy_j": 100.0,
                       "power_w": 25.0, "quality": 0.5, "loss": 2.0}  # fmt: skip
    assert (rows[1]["time_s"], rows[1]["energy_j"], rows[1]["power_w"]) == (2.0, 80.0, 40.0)
    assert (rows[2]["time_s"], rows[2]["energy_j"], rows[2]["power_w"]) == (1.0, None, None)
