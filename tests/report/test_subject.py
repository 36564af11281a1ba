"""Promises of a report's subject: identifiers first, then names, and no guess."""

from pathlib import Path

import pytest

from tests.store.test_job_queries import record
from wattloop.core.errors import RunNotFound
from wattloop.store.database import open_store
from wattloop.store.runs import insert_run

pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")

from wattloop.report.subject import report_of


def test_a_run_is_found_by_identifier_and_by_name(tmp_path: Path) -> None:
    """Among several runs of one name the newest is chosen."""
    with open_store(tmp_path / "runs.db") as store:
        insert_run(store, record(1, name="train"))
        insert_run(store, record(2, name="train"))
        assert report_of(store, "2026-001").about["id"] == "2026-001"
        assert report_of(store, "train").about["id"] == "2026-002"
        assert report_of(store, "last").about["id"] == "2026-002"


def test_an_unknown_name_is_not_found(tmp_path: Path) -> None:
    """The message says how to list the existing ones."""
    with open_store(tmp_path / "runs.db") as store:
        insert_run(store, record(1))
        with pytest.raises(RunNotFound, match="wattloop runs list; nor is a sweep, search"):
            report_of(store, "nothing")
