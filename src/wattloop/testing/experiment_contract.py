"""Contract test of experiments and trials in a store; part of `StoreContract`."""

from dataclasses import replace
from typing import Any

import pytest

from wattloop.core.errors import ExperimentNotFound
from wattloop.store.database import Store
from wattloop.store.experiments import (
    Experiment,
    TrialRecord,
    add_trials,
    begin_trial,
    create_experiment,
    delete_experiment,
    end_trial,
    find_experiment,
    list_experiments,
    namesakes,
    read_trials,
    same_experiments,
    set_experiment_status,
    trials_with_keys,
)
from wattloop.store.runs import RunRecord, insert_run, list_runs


class ExperimentContract:
    """Promises of experiments in a store, one test each."""

    def test_an_experiment_comes_back_as_it_was_kept(self, store: Store) -> None:
        """Specification and facts survive; its status can be changed and facts added."""
        kept = _experiment("sweep-a", name="caps", fingerprint="f", spec={"caps": [100, None]})
        create_experiment(store, kept)
        assert find_experiment(store, "caps") == kept
        set_experiment_status(store, "sweep-a", "finished", {"host": "h"})
        changed = replace(kept, status="finished", facts={"host": "h"})
        assert same_experiments(store, "f") == [changed]
        assert same_experiments(store, "g") == []

    def test_an_experiment_is_found_by_what_tells_it_apart(self, store: Store) -> None:
        """Beginning, end, name, `last`; what is not there or not unique is said."""
        with pytest.raises(ExperimentNotFound, match="no sweep yet"):
            find_experiment(store, "last", "sweep")
        create_experiment(store, _experiment("sweep-1-aa", created_wall_s=1.0))
        create_experiment(store, _experiment("sweep-1-ab", created_wall_s=2.0))
        create_experiment(store, _experiment("cap-1-ac", kind="cap", created_wall_s=3.0))
        assert find_experiment(store, "last", "sweep").experiment_id == "sweep-1-ab"
        assert find_experiment(store, "aa").experiment_id == "sweep-1-aa"
        assert find_experiment(store, "cap").experiment_id == "cap-1-ac"
        listed = [e.experiment_id for e in list_experiments(store, "sweep")]
        assert listed == ["sweep-1-ab", "sweep-1-aa"]
        with pytest.raises(ExperimentNotFound, match=r"any of sweep-1-ab, sweep-1-aa"):
            find_experiment(store, "sweep-1")
        with pytest.raises(ExperimentNotFound, match="the newest is sweep-1-ab"):
            find_experiment(store, "zz", "sweep")

    def test_of_one_name_the_newest_is_meant(self, store: Store) -> None:
        """Others of that name are found by their identifiers, and can be listed."""
        for number, name in enumerate(("caps", "caps", "other")):
            named = _experiment(f"sweep-1-a{number}", name=name, created_wall_s=float(number))
            create_experiment(store, named)
        assert find_experiment(store, "caps").experiment_id == "sweep-1-a1"
        assert find_experiment(store, "a0").experiment_id == "sweep-1-a0"
        found = [e.experiment_id for e in namesakes(store, "caps", "sweep")]
        assert found == ["sweep-1-a1", "sweep-1-a0"]
        assert namesakes(store, "caps", "search") == []
        assert namesakes(store, "last") == namesakes(store, "sweep-1-a0") == []
        with pytest.raises(ExperimentNotFound):
            find_experiment(store, "")

    def test_a_trial_that_ended_is_never_begun_again(self, store: Store) -> None:
        """Its outcome is returned; an unfinished one keeps its number and begins again."""
        create_experiment(store, _experiment("e"))
        first = begin_trial(store, "e", "cap=100#0", {"cap": 100})
        second = begin_trial(store, "e", "cap=200#0", {"cap": 200})
        assert [(t.number, t.status) for t in read_trials(store, "e")] == [
            (0, "running"),
            (1, "running"),
        ]
        ended_trial = replace(first, status="ok", outcome={"time_s": 1.5}, run_id="r1")
        end_trial(store, "e", ended_trial)
        assert begin_trial(store, "e", first.key, {"cap": 999}) == ended_trial
        assert begin_trial(store, "e", second.key, {"cap": 201}) == TrialRecord(
            key=second.key, number=1, settings={"cap": 201}
        )
        assert begin_trial(store, "e", "new", {}).number == 2
        assert [t.key for t in read_trials(store, "e")] == [first.key, second.key, "new"]

    def test_trials_are_found_by_key_whatever_experiment_has_them(self, store: Store) -> None:
        """Of the kind and status asked for only; adding one again replaces it."""
        for name, kind in (("a", "campaign"), ("b", "campaign"), ("c", "sweep")):
            create_experiment(store, _experiment(name, kind=kind))
        ended = TrialRecord(key="k1", number=3, status="finished", outcome={"x": 1.5})
        add_trials(store, "a", [ended, replace(ended, key="k2", status="failed")])
        add_trials(store, "c", [replace(ended, key="k3")])
        add_trials(store, "a", [ended])
        keys = ["k1", "k2", "k3", *(f"other{n}" for n in range(600))]
        assert trials_with_keys(store, "campaign", keys, "finished") == {"k1": ended}
        assert [t.key for t in read_trials(store, "a")] == ["k1", "k2"]

    def test_deleting_an_experiment_removes_its_trials_and_keeps_its_runs(
        self, store: Store
    ) -> None:
        """What was measured is a run like any other."""
        insert_run(store, RunRecord(run_id="r1"))
        create_experiment(store, _experiment("e"))
        record = begin_trial(store, "e", "k", {})
        end_trial(store, "e", replace(record, status="ok", run_id="r1"))
        assert delete_experiment(store, "e")
        assert not delete_experiment(store, "e")
        assert read_trials(store, "e") == []
        assert [run.run_id for run in list_runs(store)] == ["r1"]


def _experiment(experiment_id: str, **changes: Any) -> Experiment:
    return replace(Experiment(experiment_id=experiment_id, kind="sweep"), **changes)
