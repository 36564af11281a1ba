"""Promises of searches and campaigns on pages: pages show the chosen, and the store the true
data.
"""

import json
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from fastapi.testclient import TestClient

from tests.serve.filled import LIVE, RUN, Filled, filled
from tests.support.libraries import library
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.schedule.scenarios.scenario import stored_scenario
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions
from wattloop.store.database import open_store
from wattloop.store.experiments import find_experiment
from wattloop.store.journal import JournalWriter
from wattloop.store.journal_import import ImportStatus, import_journal

library("sklearn", reason="scikit-learn is not installed")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Iterator[Filled]:
    """One store for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared_cache))
        with filled(tmp_path_factory.mktemp("analyses")) as found:
            yield found


@pytest.fixture(scope="module")
def client(store: Filled) -> Iterator[TestClient]:
    """A client like a program on this machine."""
    with TestClient(create_app(ServeOptions(store=str(store.path)))) as found:
        yield found


def test_clusters_are_as_many_as_asked_for(client: TestClient, store: Filled) -> None:
    """They use the chosen features; an unknown column is named."""
    place = f"/api/v1/searches/{store.search}/clusters"
    found = client.get(place, params={"k": 3, "strategy": "results", "result": "energy_j"}).json()
    assert (found["clusters"], found["used"]) == (3, ["energy_j"])
    assert len(found["means"]) == len(set(found["labels"].values())) == 3
    wrong = client.get(place, params={"result": "nonsense"})
    assert (wrong.status_code, "nonsense" in wrong.json()["detail"]) == (404, True)


def test_a_campaign_simulated_again_is_the_same(client: TestClient, store: Filled) -> None:
    """The events are the same, one by one, from the stored data alone."""
    place = f"/api/v1/campaigns/{store.campaign}/over-time"
    found = client.get(place, params={"policy": "zeus", "seed": 1}).json()
    assert (found["policy"], found["seed"], found["same_as_stored"]) == ("zeus", 1, True)
    assert max(found["mean_w"]) > min(found["mean_w"]) > 0
    assert client.get(place, params={"policy": "none"}).status_code == 404


def test_a_scenario_is_kept_whole(store: Filled) -> None:
    """A campaign from the stored scenario is the same."""
    with open_store(store.path) as opened:
        kept = find_experiment(opened, store.campaign, "campaign").spec["scenario"]
    again = json.loads(json.dumps(stored_scenario(kept).to_dict()))
    proposals = ("policies", "seeds")
    assert {k: v for k, v in kept.items() if k not in proposals} == {
        k: v for k, v in again.items() if k not in proposals
    }


def test_signals_are_curves_of_their_own(client: TestClient) -> None:
    """They have their own unit, separate from power."""
    found = client.get(f"/api/v1/runs/{RUN}/curves", params={"signals": True}).json()["curves"]
    assert [(curve["name"], curve["unit"]) for curve in found] == [
        ("gpu:0/utilisation", "fraction")
    ]
    power = client.get(f"/api/v1/runs/{RUN}/curves").json()
    assert {curve["unit"] for curve in power["curves"]} == {"W"}
    assert [band["name"] for band in power["windows"]] == ["load", "train"]


def test_a_run_that_goes_on_is_listed_first(client: TestClient) -> None:
    """It has a page before it has a result."""
    page = client.get("/").text
    assert "Running now" in page
    assert f'data-run="{LIVE}"' in page
    assert client.get(f"/api/v1/runs/{LIVE}").json()["status"] == "running"


def test_what_goes_on_is_told_as_events(tmp_path: Path) -> None:
    """Power by domain as it is written, and an end; a finished run has no stream."""
    with filled(tmp_path) as store:
        store.live.end({"type": "end", "time_s": 5.0, "wall_s": 1e9 + 5, "status": "finished"})
        store.live.sync()
        with TestClient(create_app(ServeOptions(store=str(store.path)))) as client:
            answer = client.get(f"/api/v1/runs/{LIVE}/live")
            document = client.get("/api/v1/openapi.json").json()
            assert client.get(f"/api/v1/runs/{RUN}/live").status_code == 404
    assert answer.headers["content-type"].startswith("text/event-stream")
    samples, *between, end = answer.text.strip().split("\n\n")
    assert all(event.startswith(("event: totals\n", "event: signals\n")) for event in between)
    rows = json.loads(samples.removeprefix("event: samples\ndata: "))
    assert {row["domain"] for row in rows} == {"gpu:0", "gpu:1"}
    assert [row["time_s"] for row in rows] == sorted(row["time_s"] for row in rows)
    assert end == "event: end\ndata: {}"
    said = document["paths"]["/api/v1/runs/{run_id}/live"]["get"]["responses"]["200"]
    assert list(said["content"]) == ["text/event-stream"]


def test_rapl_is_drawn_where_the_estimate_is_known_too(tmp_path: Path) -> None:
    """The first CPU package has a curve although an unused meter offers it as well."""
    package = {"name": "cpu:0/package", "scope": "cpu", "source": "s", "inside": None}
    rapl = {**package, "kind": "counter", "provenance": "measured", "update_period_s": 0.001}
    estimate = {**package, "kind": "gauge", "provenance": "estimated", "update_period_s": 0.1}
    feeds = [
        {"meter": "rapl", "domains": [rapl], "signals": []},
        {"meter": "cpu_estimate", "domains": [estimate], "signals": []},
    ]
    with open_store(tmp_path / "runs.db") as store:
        header = {"run_id": RUN, "name": "x", "started_wall_s": 1.767e9, "started_s": 0.0}
        path = store.journals / f"{RUN}.journal"
        journal = JournalWriter(path, {**header, "feeds": feeds, "settings": {}})
        times_s = array("d", [n / 10 for n in range(50)])
        journal.samples(0, 1, times_s, array("d", [50.0 * t for t in times_s]))
        journal.close()
        assert import_journal(store, path, finalize_orphaned_run).outcome is ImportStatus.IMPORTED
    with TestClient(create_app(ServeOptions(store=str(tmp_path / "runs.db")))) as client:
        (curve,) = client.get(f"/api/v1/runs/{RUN}/curves").json()["curves"]
    assert (curve["name"], curve["kind"]) == ("cpu:0/package", "counter")
    assert [w for w in curve["mean"] if w is not None][-1] == pytest.approx(50.0)
