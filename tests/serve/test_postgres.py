"""Promise of a server over PostgreSQL: every page and its data, as over a file."""

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from fastapi.testclient import TestClient

from tests.serve.filled import LIVE, RUN, filled
from tests.store.places import empty_place, needs_postgres
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions

NUL = {
    "/api/v1/jobs?text=%00&host=a%00b": 200,
    "/api/v1/runs/a%00b": 404,
    "/api/v1/jobs/a%00b": 404,
    "/api/v1/compare?run=%00&run=b": 404,
    "/?text=%00": 200,
}
"""Address with what no database takes in a text -> the same as over a file."""


@needs_postgres
def test_every_page_opens_over_postgresql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs, a run, an unfinished one, comparisons, sweeps, searches, campaigns, studies, nodes."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with empty_place("postgresql", tmp_path) as place, filled(tmp_path, place) as found:
        app = create_app(ServeOptions(store=place))
        with TestClient(app) as client:
            for name, path in found.pages.items():
                status = client.get(path).status_code
                assert status in ((404,) if name == "missing" else (200, 202)), (name, status)
            assert client.get("/nodes").status_code == 200
            assert client.get(f"/api/v1/runs/{LIVE}").json()["status"] == "running"
            curves = client.get(f"/api/v1/runs/{RUN}/curves").json()["curves"]
            assert len(curves[0]["times_s"]) == 600
            jobs = client.get("/api/v1/jobs?label=low&sort=energy&host=").json()
            assert jobs["totals"]["runs"] >= 26
            for path, status in NUL.items():
                assert client.get(path).status_code == status, path
            job = {"name": "a\0b", "user": "\0", "comment": "\0", "gpus": 1}
            question = {"jobs": [job], "placements": [{"gpu": "h100"}], "wait_s": 0}
            assert client.post("/api/v1/predict", json=question).status_code == 200
            assert "wattloop_energy_joules" in client.get("/metrics").text
        app.state.wattloop.store.close()
