"""Searches in one call."""

import time
from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError, StoreError
from wattloop.store.database import open_store
from wattloop.trials.experiment_lock import program_variables
from wattloop.tune import Choice, search
from wattloop.tune.search_setup import resume_search
from wattloop.tune.search_store import open_search
from wattloop.tune.segment import Progress, Status


def train(trial):
    for epoch in trial.epochs(6):
        trial.report(accuracy=1 - 1 / (1 + (epoch + 1) * trial["lr"] * 10))


def searched(settings, function=train, **options):
    given = {
        "space": {"lr": [0.01, 0.1, 0.3]},
        "metric": "accuracy",
        "goal": "maximize",
        "target": 0.8,
        "strategy": "grid",
        "settings": settings,
    }
    return search(function, **{**given, **options})


def test_one_call_finds_the_best_and_its_table(settings):
    """Promise: best, table and summary; a parameter may be an object or a list."""
    result = searched(settings, space={"lr": Choice(values=(0.01, 0.1, 0.3))}, default={"lr": 0.1})
    assert result.stopped == ""
    assert result.best.parameters in ({"lr": 0.3}, {"lr": 0.1})
    rows = result.table()
    assert [row["lr"] for row in rows] == [0.1, 0.01, 0.3]
    assert [row["reached"] for row in rows] == [True, False, True]
    assert result.summary.default.parameters == {"lr": 0.1}
    assert result.summary.provenance == "measured"
    assert result.summary.energy_j == pytest.approx(sum(row["energy_j"] for row in rows))


def test_a_mistake_in_the_function_is_told(settings):
    """Promise: where nothing was found because everything failed, the summary says what it was."""

    def broken(trial):
        raise ValueError(f"no such file for {trial['lr']}")

    result = searched(settings, broken)
    assert result.best is None
    assert "3 of 3 configurations failed, c" in result.summary.why
    assert "ValueError: no such file for 0." in result.summary.why


def test_without_a_target_the_metric_decides_and_that_is_said_first(settings, caplog):
    """Promise: a search with a metric alone is for the best of it, said before it is paid for."""
    began = []

    def counted(trial):
        began.append([record.message for record in caplog.records])
        train(trial)

    found = searched(settings, counted, target=None)
    assert found.best.parameters == {"lr": 0.3}
    assert found.summary.why.startswith("best by quality of 3: accuracy 0.9")
    assert found.summary.why.count("accuracy") == 1
    assert any("no target for accuracy: the best accuracy wins" in said for said in began[0])


def test_without_target_and_strategy_all_configurations_are_compared_by_the_metric(settings):
    """Promise: the winner has the best metric, and is not the default because that came first."""
    reached = {0.1: 0.6, 0.2: 0.9}

    def short(trial):
        for _ in trial.epochs(8):
            trial.report(accuracy=reached[trial["lr"]])

    options = {"metric": "accuracy", "goal": "maximize", "default": {"lr": 0.1}}
    found = search(short, space={"lr": [0.1, 0.2]}, settings=settings, **options)
    assert found.spec.strategy.name == "asha"
    assert found.best.parameters == {"lr": 0.2}
    assert len(found.table()) == 2


def test_asha_continues_a_training_until_it_reports_the_metric(settings):
    """Promise: a metric that is reported every third epoch is compared as one of every epoch."""

    def late(trial):
        for epoch in trial.epochs(6):
            trial.report(loss=1.0, **({"accuracy": trial["lr"]} if epoch % 3 == 2 else {}))

    found = searched(settings, late, strategy="asha", target=None)
    assert found.best.parameters == {"lr": 0.3}
    assert [row["best"] is not None for row in found.table()] == [True] * 3


def test_asha_ends_where_the_metric_is_never_reported(settings):
    """Promise: the first training is continued to its end, and the search says what is missing."""
    trained = []

    def silent(trial):
        for _ in trial.epochs(5):
            trained.append(trial["lr"])
            trial.report(loss=1.0)

    with pytest.raises(ConfigError, match="ended without reporting 'accuracy'"):
        searched(settings, silent, strategy="asha", target=None)
    assert len(trained) == 5


def test_asha_compares_by_time_where_no_energy_is_read(settings):
    """Promise: the search by a metric alone has a winner also on a machine without a meter."""

    def flat(trial):
        for _ in trial.epochs(6):
            trial.report(accuracy=trial["lr"])

    found = searched(settings, flat, strategy="asha", target=None, scope="gpu")
    assert [row["energy_j"] for row in found.table()] == [None] * 3
    assert found.best.parameters == {"lr": 0.3}


def test_where_nothing_has_ended_the_best_so_far_is_said(settings):
    """Promise: a search cut by a limit reports more than the absence of a winner."""
    slow = {"space": {"lr": [0.1, 0.2]}, "strategy": "grid", "target": None, "energy": 0.5}

    def endless(trial):
        for _ in trial.epochs():
            time.sleep(0.01)
            trial.report(accuracy=0.25)

    why = searched(settings, endless, **slow).summary.why
    assert why == "none has been trained to its end, c0 was best with accuracy 0.25"


def test_a_race_without_a_target_says_that_it_needs_one(settings, caplog):
    """Promise: a user of `race` without a target is told that it may end with the first."""
    searched(settings, target=None, strategy="race")
    assert "race looks for the least energy to the same accuracy" in caplog.records[0].message
    assert "may end with the first configuration" in caplog.records[0].message


def test_a_stored_search_that_names_no_strategy_is_resumed_as_a_race(settings):
    """Promise: another strategy does not continue a search of an earlier version."""
    spec = {"name": "old", "command": ["true"], "parameters": {"lr": {"values": [0.1, 0.2]}}}
    spec["metric"] = {"name": "accuracy", "goal": "maximize"}
    with open_store(settings.store_location) as store:
        open_search(store, spec, "mark", name="old", facts={})
        assert resume_search("old", store, settings).spec.strategy.name == "race"


def test_an_objective_that_leaves_the_metric_out_is_said_first(settings, caplog):
    """Promise: a user who asks for least energy without a target learns that quality will not
    count.
    """
    why = searched(settings, target=None, objective="energy").summary.why
    assert why.startswith("best by energy of 3: energy ")
    assert why.endswith("; no target is stated, so that accuracy did not count")
    assert "only energy decides, and accuracy does not count" in caplog.records[0].message
    assert "did not count" not in searched(settings, target=None, objective="quotient").summary.why
    assert "of 2 that are good enough: " in searched(settings).summary.why


def test_a_finished_grid_has_ended_trials(settings):
    """Promise: a training that had all the epochs it may have has ended, and none waits."""
    found = searched(settings, target=None, epochs=4)
    assert [row["status"] for row in found.table()] == ["ended"] * 3
    assert found.summary.status_of(found.best.found) == "ended"


def test_one_epoch_is_one_epoch(settings):
    """Promise: a training that reports once has had one epoch."""
    result = searched(settings, lambda trial: {"accuracy": 0.9}, strategy="race")
    assert result.summary.why.startswith("good enough after 1 epoch of ")
    aimless = searched(settings, lambda trial: {"accuracy": 0.9}, strategy="race", target=None)
    assert aimless.summary.why.startswith("ended without a target after 1 epoch of ")


def test_a_search_that_stopped_goes_on_with_other_limits(settings):
    """Promise: no finished training is repeated."""
    trained = []

    def counted(trial):
        trained.append(trial["lr"])
        train(trial)

    result = searched(settings, counted, trials=2)
    assert result.stopped == "2 configurations were allowed"
    more = result.resume(trials=3)
    assert more.search_id == result.search_id
    assert trained == [0.01, 0.1, 0.3]
    assert len(more.table()) == 3


def test_the_winner_is_proven(settings):
    """Promise: it is trained in full next to the default, with the saving and when it has paid."""

    def slow(trial):
        import time

        for epoch in trial.epochs(12):
            (trial.checkpoint / "model").write_text(str(epoch))
            time.sleep(0.02)
            trial.report(accuracy=1 - 1 / (1 + (epoch + 1) * trial["lr"] * 10))

    result = searched(settings, slow, space={"lr": [0.05, 0.4]}, default={"lr": 0.05})
    final = result.final()
    assert final.winner.parameters == {"lr": 0.4}
    assert final.default.from_search
    assert final.saved_j > 0
    assert final.break_even_runs == pytest.approx(result.summary.energy_j / final.saved_j)
    assert final.winner.run_id is not None
    assert (Path(final.winner.files) / "model").exists()
    folders = Path(f"{settings.store_location}.journals", result.search_id).glob("*/checkpoint/*")
    assert list(folders) == []  # of trainings that no search continues


def test_the_error_of_the_estimate_cancels_in_what_is_saved(settings, tmp_path, monkeypatch):
    """Promise: one model on one machine errs alike in both runs; a saving of half is certain."""
    (tmp_path / "cpuinfo").write_text(
        "processor : 0\nmodel name : Mystery CPU\nphysical id : 0\ncore id : 0\nflags : fpu\n"
    )
    # the counters stand still, so that the power is that of the mean since boot: 10% busy
    (tmp_path / "stat").write_text("cpu0 1000 0 0 9000 0 0 0 0 0 0\nintr 5\n")
    monkeypatch.setenv("WATTLOOP_PROCFS_ROOT", str(tmp_path))

    def slow(trial):
        import time

        for epoch in trial.epochs(12):
            time.sleep(0.2)  # a multiple of what a busy machine adds
            trial.report(accuracy=1 - 1 / (1 + (epoch + 1) * trial["lr"] * 10))

    estimated = settings._replace(meters=("estimate",))
    result = searched(estimated, slow, space={"lr": [0.04, 0.4]}, default={"lr": 0.04})
    final = result.final()
    assert final.winner.provenance == "estimated"
    assert final.winner.uncertainty_j > 0.4 * final.winner.energy_j
    assert final.certain
    assert final.saved_uncertainty_j < 0.3 * final.saved_j
    assert "error" not in final.to_dict()["winner"]


def test_a_default_that_is_best_saves_nothing(settings):
    """Promise: it says so."""
    final = searched(settings, space={"lr": [0.3, 0.001]}, default={"lr": 0.3}).final()
    assert final.saved_j == 0
    assert final.why == "the default is the best"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"space": {}}, "parameter"),
        ({"default": {"momentum": 1}}, "momentum"),
        ({"strategy": "gird"}, "grid"),
        ({"goal": None}, "goal"),
        ({"energy": "lots"}, "energy"),
    ],
)
def test_wrong_options_are_refused(settings, options, said):
    """Promise: before anything is trained, with the name of what is wrong."""
    with pytest.raises(ConfigError, match=said):
        searched(settings, pytest.fail, **options)


def test_a_store_that_cannot_be_used_is_refused(settings, tmp_path):
    """Promise: a damaged file is left alone and named."""
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"SQLite format 3\0" + b"garbage" * 500)
    before = broken.read_bytes()
    with pytest.raises(StoreError, match=r"broken\.db"):
        searched(settings, store=str(broken))
    assert broken.read_bytes() == before


def test_a_bench_of_ones_own(settings):
    """Promise: whatever keeps the contract of a bench can be searched, stored and resumed."""
    seen = []

    class Halfway:
        def __init__(self, parts):
            self.parts = parts

        def run(self, segment):
            seen.append(segment.parameters["lr"])
            quality = segment.parameters["lr"] * 3
            return Progress(
                status=Status.ENDED, time_s=1.0, energy_j=9.0, quality=quality, best=quality
            )

        def release(self, candidate): ...

        def close(self):
            seen.append(self.parts.search_id)
            seen.append(self.parts.variables)

    result = searched(settings, None, bench=Halfway)
    assert seen[:3] == [0.01, 0.1, 0.3]
    assert seen[3] == result.search_id
    with open_store(settings.store_location) as store:
        assert seen[4] == program_variables(store, result.search_id) != {}
    assert result.best.parameters == {"lr": 0.3}
