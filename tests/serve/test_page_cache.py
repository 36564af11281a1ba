"""Promises of pages on disk: the same after a restart, new when any shown data has changed."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from tests.support.synthetic_sweep import made_sweep
from wattloop.serve.page_cache import MOST_PAGES, PageCache, ReportPage
from wattloop.store.database import Store, open_store
from wattloop.store.experiments import Experiment, begin_trial, create_experiment, end_trial

PAGE = ReportPage("title", "in short", [("Heading", "<p>text &amp; more</p>")])
OTHER = ReportPage("other", "", [])


def kept(tmp_path: Path, store: Store, experiment: Experiment, made: ReportPage) -> ReportPage:
    """Answer like a server that has just started."""
    return PageCache(tmp_path / "pages").get(store, experiment, lambda: made)


def test_a_restart_finds_the_page_and_a_further_trial_makes_a_new_one(tmp_path: Path) -> None:
    """The page is identical while the experiment and its trials are unchanged."""
    experiment, (trial, *_) = made_sweep()
    experiment = replace(experiment, status="finished")
    with open_store(tmp_path / "runs.db") as store:
        create_experiment(store, experiment)
        assert kept(tmp_path, store, experiment, PAGE) == PAGE
        assert kept(tmp_path, store, experiment, OTHER) == PAGE
        begin_trial(store, experiment.experiment_id, trial.key, trial.settings)
        end_trial(store, experiment.experiment_id, trial)
        assert kept(tmp_path, store, experiment, OTHER) == OTHER
        renamed = replace(experiment, name="another")
        assert kept(tmp_path, store, renamed, PAGE) == PAGE


def test_what_goes_on_is_not_kept_and_what_is_broken_is_made_again(tmp_path: Path) -> None:
    """A folder that cannot be written is not an error, and old pages make room."""
    experiment = replace(made_sweep()[0], status="running")
    folder = tmp_path / "pages"
    with open_store(tmp_path / "runs.db") as store:
        assert kept(tmp_path, store, experiment, PAGE) == PAGE
        assert not folder.exists()
        ended = replace(experiment, status="finished")
        kept(tmp_path, store, ended, PAGE)
        (path,) = folder.glob("*.json")
        path.write_text("{")
        assert kept(tmp_path, store, ended, OTHER) == OTHER
        for number in range(MOST_PAGES + 3):
            kept(tmp_path, store, replace(ended, name=f"{number}"), PAGE)
        assert len(list(folder.iterdir())) == MOST_PAGES
        nowhere = PageCache(tmp_path / "runs.db" / "pages")
        assert nowhere.get(store, ended, lambda: PAGE) == PAGE
