"""Promises of `optuna_export`: a search becomes a study that Optuna opens."""

from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.store.database import open_store
from wattloop.testing.strategy_contract import played
from wattloop.testing.synthetic_trainings import SyntheticExecutor
from wattloop.tune.optuna_export import export_study
from wattloop.tune.search_store import SearchRecord, open_search
from wattloop.tune.spec import spec_from
from wattloop.tune.strategies import strategy_for

optuna = pytest.importorskip("optuna", reason="the study is Optuna's: pip install wattloop[tune]")

WRITTEN = {
    "name": "small",
    "metric": {"name": "accuracy", "goal": "maximize", "target": 0.8},
    "parameters": {
        "batch_size": {"values": [16, 64, 256]},
        "lr": {"min": 1e-4, "max": 1.0, "log": True},
        "optimizer": {"values": ["sgd", "adam"]},
        "momentum": {"min": 0.0, "max": 0.99, "when": {"optimizer": "sgd"}},
    },
    "hardware": {"power_limit": "auto"},
    "strategy": "asha",
    "limits": {"trials": 9, "epochs": 40},
    "default": {"batch_size": 16, "lr": 0.001, "optimizer": "adam"},
}


def stored(tmp_path: Path, **more: object) -> tuple[str, str]:
    """A search that was run on formulas, in a store; where it is and what it is called."""
    spec = spec_from({**WRITTEN, **more})
    problem = spec.problem()
    place = str(tmp_path / "runs.db")
    with open_store(place) as store:
        experiment, _ = open_search(store, spec.to_dict(), "test", name=spec.name)
        record = SearchRecord(store, experiment)
        events = played(strategy_for(spec, problem), SyntheticExecutor(problem))
        for event in events:
            if event.progress is None:
                record.begin(event.segment)
            else:
                record.end(event.segment, event.progress, {})
        return place, experiment.experiment_id


def exported(tmp_path: Path, **more: object) -> "optuna.Study":
    place, search_id = stored(tmp_path, **more)
    file = str(tmp_path / "study.db")
    with open_store(place) as store:
        name = export_study(store, search_id, file, settings=Settings(tariff_per_kwh=0.3))
    return optuna.load_study(study_name=name, storage=f"sqlite:///{file}")


def test_a_study_has_parameters_values_curves_and_energy(tmp_path: Path) -> None:
    """Distributions, the objective, quality by epoch, and whose number each is."""
    study = exported(tmp_path)
    assert study.direction.name == "MINIMIZE" and study.metric_names == ["energy (J)"]
    assert study.user_attrs["wattloop:metric"] == "accuracy"
    complete = [t for t in study.trials if t.state.name == "COMPLETE"]
    pruned = [t for t in study.trials if t.state.name == "PRUNED"]
    assert len(study.trials) == 9 and complete and pruned
    for trial in complete:
        assert trial.value == trial.user_attrs["to_target_j"] > 0
        assert trial.user_attrs["provenance"] == "simulated"
        assert trial.user_attrs["power_limit"] == 125.0  # found, not a parameter of the space
        assert max(trial.intermediate_values.values()) >= 0.8
        assert trial.distributions["lr"] == optuna.distributions.FloatDistribution(
            1e-4, 1.0, log=True
        )
        assert ("momentum" in trial.params) == (trial.params["optimizer"] == "sgd")
    seconds = pruned[0].user_attrs["time_s"]
    assert pruned[0].duration.total_seconds() == pytest.approx(seconds, abs=1e-3)
    assert study.best_trial.user_attrs["candidate"]


def test_two_objectives_make_a_front(tmp_path: Path) -> None:
    """Energy and quality, which is to be maximized as people know it."""
    study = exported(tmp_path, objective=["energy", "quality"], strategy="random")
    assert [d.name for d in study.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert study.metric_names == ["energy (J)", "accuracy"]
    assert study.best_trials and all(t.values[1] > 0.5 for t in study.best_trials)


def test_the_score_of_sm2_is_its_f(tmp_path: Path) -> None:
    """It compares trainings with each other: a share of 1, larger is better, no joules."""
    study = exported(
        tmp_path, objective="sm2", rate="lr", metric={"name": "accuracy", "goal": "maximize"},
        strategy="random",
    )  # fmt: skip
    assert (study.direction.name, study.metric_names) == ("MAXIMIZE", ["sm2"])
    complete = [t for t in study.trials if t.state.name == "COMPLETE"]
    assert complete and all(0 <= t.value <= 1 for t in complete)
    qualities = [t.user_attrs["best"] for t in complete]
    low, high = min(qualities), max(qualities)
    weighed = {t.number: 0.75 * (t.user_attrs["best"] - low) / (high - low) for t in complete}
    assert all(weighed[t.number] <= t.value <= weighed[t.number] + 0.25 + 1e-9 for t in complete)


def test_a_quotient_is_of_the_epochs_its_energy_is_of(tmp_path: Path) -> None:
    """With a target, too: training continues after it, and both energy and epochs count."""
    study = exported(tmp_path, objective="quotient", strategy="random")
    assert study.direction.name == "MAXIMIZE"
    complete = [t for t in study.trials if t.state.name == "COMPLETE"]
    assert any(t.user_attrs["to_target_j"] < t.user_attrs["energy_j"] for t in complete)
    for trial in complete:
        own = trial.user_attrs
        expected = own["best"] * own["epochs"] / own["energy_j"]
        assert trial.value == pytest.approx(expected)


def test_failures_are_failures(tmp_path: Path) -> None:
    """A rate that diverges is a failed trial with its message, not a bad value."""
    study = exported(
        tmp_path,
        parameters={"batch_size": [64], "lr": [0.003, 0.9], "optimizer": ["adam"]},
        default={"batch_size": 64, "lr": 0.9, "optimizer": "adam"},
        strategy="grid",
    )
    assert [t.state.name for t in study.trials] == ["FAIL", "COMPLETE"]
    assert study.trials[0].user_attrs["status"] == "diverged"


def test_a_journal_has_the_same(tmp_path: Path) -> None:
    """Optuna's journal, for large searches, has the trials that the database has."""
    place, search_id = stored(tmp_path)
    studies = []
    with open_store(place) as store:
        for file in (tmp_path / "study.db", tmp_path / "study.log"):
            name = export_study(store, search_id, str(file))
            backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.log"))
            storage = f"sqlite:///{file}"
            if file.suffix == ".log":
                storage = optuna.storages.JournalStorage(backend)
            studies.append(optuna.load_study(study_name=name, storage=storage))
        notes = tmp_path / "notes.log"
        notes.write_text("someone's own log")
        with pytest.raises(ConfigError, match="no journal of Optuna"):
            export_study(store, search_id, str(notes))
    one, other = ([(t.params, t.user_attrs, t.values) for t in s.trials] for s in studies)
    assert one == other and len(one) == 9


def test_a_study_is_not_written_over(tmp_path: Path) -> None:
    """The same name again, or a file that is something else, is refused with what to do."""
    place, search_id = stored(tmp_path)
    file = tmp_path / "study.db"
    with open_store(place) as store:
        export_study(store, search_id, str(file))
        with pytest.raises(ConfigError, match="has a study 'small' already; give another file"):
            export_study(store, search_id, str(file))
        other = tmp_path / "notes.txt"
        other.write_text("not a database, but someone's notes\n" * 50)
        with pytest.raises(ConfigError, match=r"no SQLite file .* give another name"):
            export_study(store, search_id, str(other))
        assert other.read_text().startswith("not a database")
        with pytest.raises(ConfigError, match=r"the folder .* does not exist"):
            export_study(store, search_id, str(tmp_path / "no" / "study.db"))
