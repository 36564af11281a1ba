"""Promises of a server: it runs no code and opens no file that a stored text names."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from fastapi.testclient import TestClient
from sqlalchemy import select, update

from tests.schedule.campaigns.worlds import campaign, tiny
from tests.serve.test_ingest import RUN, header, post, samples
from wattloop.core.errors import ConfigError
from wattloop.schedule.campaigns.runner import run_campaign
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions
from wattloop.serve.worker import Worker
from wattloop.store.database import Store, open_store
from wattloop.store.journal import HEADER, frames_in, json_frame
from wattloop.store.schema import experiments

MAKER = """
from pathlib import Path

Path({marker!r}).write_text("executed")


def make():
    raise SystemExit
"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A store with one small campaign."""
    folder = tmp_path_factory.mktemp("campaign")
    with open_store(folder / "runs.db") as store:
        found, _ = run_campaign(campaign(tiny(folder)), store)
    yield folder / "runs.db", found.experiment_id


def _body(store: Store) -> dict[str, Any]:
    with store.reading() as connection:
        body: dict[str, Any] = json.loads(
            connection.execute(select(experiments.c.body)).scalar_one()
        )
    return body


def _keep(store: Store, body: dict[str, Any]) -> None:
    """Change the campaign as any other writer of the store can."""
    with store.writing() as connection:
        connection.execute(update(experiments).values(body=json.dumps(body)))


def _model(name: str) -> Any:
    def change(scenario: dict[str, Any]) -> None:
        scenario["jobs"]["models"][0]["model"] = name

    return change


def _job_table(path: Path) -> Any:
    def change(scenario: dict[str, Any]) -> None:
        scenario["jobs"]["generate"] = None
        scenario["jobs"]["trace"] = {"file": str(path)}

    return change


def test_the_model_of_a_stored_scenario_is_never_run(
    stored: tuple[Path, str], tmp_path: Path
) -> None:
    """Neither a file, nor an installed module, nor a configuration from a path."""
    path, campaign_id = stored
    marker = tmp_path / "marker"
    (tmp_path / "own.py").write_text(MAKER.format(marker=str(marker)))
    (tmp_path / "config.json").write_text('{"model_type": "albert", "hidden_size": 768}')
    secret = tmp_path / "secret.csv"
    secret.write_text("password,hunter2\n")
    changes = [
        _model(f"{tmp_path / 'own.py'}:make"),
        _model("torch:os:abort"),
        _model(f"hf:{tmp_path}"),
        _model(str(secret.with_suffix(".json"))),
        _job_table(secret),
    ]
    with open_store(path) as store:
        before = _body(store)
        for change in changes:
            body = _body(store)
            change(body["spec"]["scenario"])
            _keep(store, body)
            with TestClient(create_app(ServeOptions(store=str(path)))) as client:
                answer = client.get(f"/api/v1/campaigns/{campaign_id}/over-time?seed=0&policy=zeus")
                assert answer.status_code == 409, answer.text
                assert "hunter2" not in answer.text
                assert client.get(f"/simulate/{campaign_id}").status_code in (200, 202)
                assert client.get("/").status_code == 200
            _keep(store, before)
    assert not marker.exists()


def test_a_scenario_has_limits_of_time_and_memory(stored: tuple[Path, str]) -> None:
    """A hundred million jobs end the simulating process, and the next task has a new one."""
    path, _ = stored
    with open_store(path) as store:
        spec = _body(store)["spec"]
    asked = {"outcome": {}, "given": "zeus", "policy": "zeus", "seed": 0}
    huge = json.loads(json.dumps(spec))
    huge["scenario"]["jobs"]["generate"] = {"rate_per_s": 1e6, "count": 100_000_000}
    impatient, small = Worker(limit_s=2.0), Worker(memory_b=700 * 2**20)
    try:
        with pytest.raises(ConfigError, match="took longer"):
            impatient.call("over_time", spec=huge, **asked)
        with pytest.raises(ConfigError, match=r"ended by itself|cannot be computed"):
            small.call("over_time", spec=huge, **asked)
        assert small.call("over_time", spec=spec, **asked)["mean_w"]
    finally:
        impatient.close()
        small.close()


def test_files_in_the_settings_of_another_machines_run_are_not_opened(tmp_path: Path) -> None:
    """A journal without an end is closed here; its carbon series is not a file of this machine."""
    series = tmp_path / "carbon.csv"
    series.write_text("time,g_per_kwh\n2001-01-01T00:00:00Z,123\n2002-01-01T00:00:00Z,123\n")
    _, payload, _ = next(frames_in(header()))
    said = json.loads(payload)
    said["settings"] = {"carbon_file": str(series), "carbon_url": "http://127.0.0.1:9/x"}
    options = ServeOptions(store=str(tmp_path / "runs.db"), token="secret")
    with TestClient(create_app(options)) as client:
        data = json_frame(HEADER, said) + samples(0, 50)
        assert post(client, 0, data).status_code == 200
        answer = client.post(
            f"/api/v1/ingest/{RUN}?offset={len(data)}&final=1",
            content=b"",
            headers={"Authorization": "Bearer secret"},
        )
        assert answer.json()["ended"], answer.text
        run = client.get(f"/api/v1/runs/{RUN}").json()
    assert str(series) not in json.dumps(run)
    assert "127.0.0.1:9" not in json.dumps(run)
