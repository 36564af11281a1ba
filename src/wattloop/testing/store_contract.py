"""Contract test of stores. Subclass `StoreContract` and give it a fixture `store`.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self, tmp_path): ...

The fixture yields an open, empty store; its journals lie in a folder of its own.
"""

import threading
from dataclasses import replace
from typing import Any

import pytest

from wattloop.core.errors import ExperimentNotFound, RunNotFound
from wattloop.core.results import RunStatus
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
from wattloop.store.journal_import import ImportStatus, import_journal, import_orphaned
from wattloop.store.run_record import read_events, read_steps, read_windows
from wattloop.store.runs import (
    RunFilter,
    RunRecord,
    delete_run,
    find_run,
    insert_run,
    list_runs,
)
from wattloop.store.sample_queries import read_curve, read_samples
from wattloop.store.samples import find_series
from wattloop.testing.journals import close_journal, ended, header, root_window, write_journal


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


class StoreContract(ExperimentContract):
    """Promises of a store, one test each; those of experiments are inherited."""

    def test_a_run_comes_back_as_it_was_kept(self, store: Store) -> None:
        """Every field of a record survives, text that is invalid in every encoding included."""
        record = _record(
            "20260101-000000-aaaaaa",
            command=["python", "caf\udce9.py", "two\nlines"],
            tags={"lr": "0.1"},
            job={"id": "77", "kind": "slurm"},
            accounting={"carbon_g": 1.5},
            exit_code=3,
            status=RunStatus.FAILED,
            notes=["a note"],
        )
        assert insert_run(store, record)
        assert find_run(store, record.run_id) == record

    def test_a_terminal_obeys_nothing_of_a_run(self, store: Store) -> None:
        """Control characters in names, tags and commands are replaced."""
        evil = "\x1b]0;owned\x07"
        record = _record("r1", name=evil, tags={evil: evil}, command=["nul\0", evil])
        assert insert_run(store, record)
        found = find_run(store, "r1")
        texts = (found.name, *(found.command or ()), *found.tags, *found.tags.values())
        assert all(character >= " " for text in texts for character in text)

    def test_odd_names_do_not_keep_a_run_out(self, store: Store) -> None:
        """NUL and broken characters in indexed text are replaced, not refused."""
        assert insert_run(store, _record("r1", name="a\0b\udce9", host="h\udce9", user="\0"))
        assert find_run(store, "r1").run_id == "r1"

    def test_the_same_run_is_kept_once(self, store: Store) -> None:
        """Inserting again changes nothing and says so."""
        assert insert_run(store, _record("r1", name="first"))
        assert not insert_run(store, _record("r1", name="second"))
        assert [record.name for record in list_runs(store)] == ["first"]

    def test_a_run_is_found_by_unique_prefix_and_as_last(self, store: Store) -> None:
        """An exact identifier wins; an ambiguous beginning names the candidates."""
        for number, run_id in enumerate(("ab", "abc1", "abd2")):
            insert_run(store, _record(run_id, started_wall_s=float(number)))
        assert find_run(store, "abc").run_id == "abc1"
        assert find_run(store, "ab").run_id == "ab"
        assert find_run(store, "last").run_id == "abd2"
        with pytest.raises(RunNotFound, match=r"abc1.*abd2|abd2.*abc1"):
            find_run(store, "a")
        with pytest.raises(RunNotFound, match="wattloop runs list"):
            find_run(store, "zz")
        with pytest.raises(RunNotFound):
            find_run(store, "%")

    def test_the_last_run_is_the_one_that_counted(self, store: Store) -> None:
        """A program that measures itself below `wattloop run` does not hide that run."""
        insert_run(store, _record("outer", started_wall_s=1.0))
        insert_run(store, _record("inner", started_wall_s=2.0, counted=False, counted_by="outer"))
        assert find_run(store, "last").run_id == "outer"
        assert find_run(store, "inner").run_id == "inner"
        insert_run(store, _record("rank", started_wall_s=3.0, counted=False, counted_by="gone"))
        assert find_run(store, "last").run_id == "rank"

    def test_an_empty_store_says_how_to_begin(self, store: Store) -> None:
        """Looking for the last run of an empty store is answered with the next step."""
        with pytest.raises(RunNotFound, match="wattloop run -- python"):
            find_run(store, "last")

    def test_runs_are_listed_newest_first_and_filtered(self, store: Store) -> None:
        """Each filter keeps what it names and nothing else."""
        insert_run(store, _record("r1", name="a_1", started_wall_s=1.0, host="x"))
        insert_run(store, _record("r2", name="ab1", started_wall_s=3.0, tags={"k": "v", "n": "1"}))
        died = _record("r3", name="c", started_wall_s=2.0, status=RunStatus.DIED)
        insert_run(store, replace(died, tags={"k": "w"}, job={"id": "9"}))
        assert _ids(store) == ["r2", "r3", "r1"]
        assert _ids(store, name="a_1") == ["r1"]
        assert _ids(store, name="a*") == ["r2", "r1"]
        assert _ids(store, status="died") == ["r3"]
        assert _ids(store, tags={"k": None}) == ["r2", "r3"]
        assert _ids(store, tags={"k": "v", "n": "1"}) == ["r2"]
        assert _ids(store, host="x") == ["r1"]
        assert _ids(store, job="9") == ["r3"]
        assert _ids(store, since_wall_s=2.0) == ["r2", "r3"]
        assert [r.run_id for r in list_runs(store, limit=1)] == ["r2"]

    def test_a_journal_is_folded_whole_and_removed(self, store: Store) -> None:
        """Header, end, samples, signals, windows, steps and events are all in the store."""
        window = root_window()._replace(name="epoch 1", window_id=5, parent_id=0)
        step = {
            "kind": "step",
            "index": 3,
            "begin_s": 1.0,
            "end_s": 2.0,
            "energy": {"gpu:0": [1, 2]},
        }
        gap = {"type": "gap", "time_s": 1.5, "domain": "gpu:0", "reason": "lost", "lost": True}
        happened: list[dict[str, Any]] = [
            {"type": "window", "window": window.to_dict()},
            {"type": "step"} | step,
            gap,
        ]
        path = write_journal(store.journals, "r1", events=happened, end=ended(), head=None)
        assert import_journal(store, path, close_journal).outcome is ImportStatus.IMPORTED
        assert not path.exists()
        record = find_run(store, "r1")
        assert (record.status, record.exit_code, record.energy_j) == ("finished", 0, 3_500.0)
        assert (record.user, record.missing[0]["name"]) == ("ada", "dram")
        assert read_windows(store, "r1") == [window]
        assert read_steps(store, "r1") == [step]
        assert read_events(store, "r1") == [gap]
        times_s, joules = read_samples(store, "r1", find_series(record.feeds, "cpu:0/package"))
        assert len(times_s) == 100
        assert joules[10] == 50.0
        utilisation = find_series(record.feeds, "gpu:0/utilisation")
        assert set(read_samples(store, "r1", utilisation)[1]) == {0.9}

    def test_a_run_that_died_is_marked_and_closed_by_the_caller(self, store: Store) -> None:
        """Without an end, energy comes from the samples and the status says `died`."""
        write_journal(store.journals, "r1")
        import_orphaned(store, close_journal)
        record = find_run(store, "r1")
        assert record.status is RunStatus.DIED
        assert record.energy_j == pytest.approx(350.0 * 9.9)

    def test_folding_again_changes_nothing(self, store: Store) -> None:
        """Killed between commit and removal: the journal is there again, the run only once."""
        path = write_journal(store.journals, "r1", end=ended())
        kept = path.read_bytes()
        import_journal(store, path, close_journal)
        path.write_bytes(kept)
        assert [f.outcome for f in import_orphaned(store, close_journal)] == [ImportStatus.ALREADY]
        assert not path.exists()
        assert len(read_samples(store, "r1", find_series(header("")["feeds"], "gpu:0"))[0]) == 100

    def test_folding_at_once_from_several_threads_keeps_each_run_once(self, store: Store) -> None:
        """Concurrent importers share the work; none fails."""
        for number in range(6):
            write_journal(store.journals, f"r{number}", seconds=1, end=ended())
        faults: list[BaseException] = []

        def work() -> None:
            try:
                import_orphaned(store, close_journal)
            except BaseException as error:  # noqa: BLE001 - shown by the assertion below
                faults.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
        assert sorted(_ids(store)) == [f"r{number}" for number in range(6)]

    def test_a_failed_transaction_leaves_nothing(self, store: Store) -> None:
        """What was inserted before an error is undone."""
        from wattloop.store.runs import insert_run_in

        with pytest.raises(ZeroDivisionError), store.writing() as connection:
            insert_run_in(connection, _record("r1"))
            raise ZeroDivisionError
        assert _ids(store) == []

    def test_a_curve_is_power_at_the_level_that_fits(self, store: Store) -> None:
        """A counter is drawn in watts, from single samples or from bins."""
        write_journal(store.journals, "r1", seconds=120, end=ended())
        import_orphaned(store, close_journal)
        series = find_series(find_run(store, "r1").feeds, "cpu:0/package")
        fine = read_curve(store, "r1", series, max_points=5_000)
        assert (fine.level_s, len(fine)) == (0.0, 1_200)
        coarse = read_curve(store, "r1", series, max_points=150)
        assert coarse.level_s == 1.0
        assert 119 <= len(coarse) <= 121
        assert coarse.mean[60] == pytest.approx(50.0, abs=0.01)
        assert len(read_curve(store, "r1", series, max_points=3)) <= 4
        part = read_curve(store, "r1", series, span=(1_010.0, 1_020.0))
        assert 100 <= len(part) <= 102

    def test_a_part_of_a_long_run_is_drawn_as_finely_as_fits(self, store: Store) -> None:
        """Zooming in shows only that part, and more of it, not a coarse curve of the whole run."""
        write_journal(store.journals, "r1", seconds=7_200, end=ended())
        import_orphaned(store, close_journal)
        series = find_series(find_run(store, "r1").feeds, "gpu:0")
        for length_s, level_s in ((100.0, 0.0), (1_000.0, 1.0), (6_000.0, 10.0)):
            span = (2_000.0, 2_000.0 + length_s)
            curve = read_curve(store, "r1", series, max_points=1_200, span=span)
            assert curve.level_s == level_s
            assert span[0] - level_s <= curve.times_s[0] <= span[0] + level_s
            assert span[1] - level_s <= curve.times_s[-1] <= span[1] + level_s

    def test_deleting_a_run_removes_everything_of_it(self, store: Store) -> None:
        """No sample, window or tag stays behind, but its joules in the totals of deleted runs."""
        from sqlalchemy import func, select

        from wattloop.store.schema import metadata

        write_journal(store.journals, "r1", end=ended(), head=header("r1", tags={"a": "b"}))
        import_orphaned(store, close_journal)
        assert delete_run(store, "r1")
        assert not delete_run(store, "r1")
        with store.reading() as connection:
            for table in metadata.tables.values():
                rows = connection.execute(select(func.count()).select_from(table)).scalar_one()
                assert rows == (table.name in ("meta", "deleted_totals")), table.name


def _record(run_id: str, **changes: Any) -> RunRecord:
    base = RunRecord(run_id=run_id, name="n", host="h", user="u", result=root_window())
    return replace(base, **changes)


def _ids(store: Store, **wanted: Any) -> list[str]:
    return [record.run_id for record in list_runs(store, RunFilter(**wanted))]


def _experiment(experiment_id: str, **changes: Any) -> Experiment:
    return replace(Experiment(experiment_id=experiment_id, kind="sweep"), **changes)
