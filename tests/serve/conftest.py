"""A dashboard over a small store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from fastapi.testclient import TestClient

from tests.store.test_job_queries import record
from wattloop.serve import maintenance
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions
from wattloop.store.database import open_store
from wattloop.store.runs import insert_run

NASTY = "<script>alert(1)</script>'; drop table runs; --"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report a run's result to senders at once, on a busy machine too."""
    monkeypatch.setattr(maintenance, "PATIENCE_S", 60.0)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with three runs, one of them with a hostile name."""
    path = tmp_path / "runs.db"
    with open_store(path) as store:
        insert_run(store, record(1))
        insert_run(store, record(2, name=NASTY, tags={"project": NASTY}, command=[NASTY]))
        insert_run(store, record(3, result=None, accounting=None))
    return path


@pytest.fixture
def client(place: Path) -> Iterator[TestClient]:
    """A client like a browser on this machine."""
    with TestClient(create_app(ServeOptions(store=str(place)))) as found:
        yield found
