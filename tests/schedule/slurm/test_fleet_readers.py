"""Promises of power and energy from a real server of the fleet, over HTTP."""

import json
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from tests.fleet.delivery.served import Served, served, whole
from wattloop.core.errors import ConfigError
from wattloop.fleet.delivery import deliver
from wattloop.fleet.tokens import Role, add_token
from wattloop.schedule.driver import power_readings
from wattloop.schedule.driver.event_log import DriverLog
from wattloop.schedule.driver.power_readings import FleetPower, fetch_json
from wattloop.schedule.slurm.energy_annotator import energy_from_fleet, energy_from_store

from .slurm_world import site


def say(place: Served, **power_w: float) -> None:
    """Report the power of node n1."""
    body = json.dumps({"power_w": {name.replace("_", ":"): w for name, w in power_w.items()}})
    request = urllib.request.Request(
        f"{place.url}/api/v1/nodes/n1/status",
        data=body.encode(),
        headers={"Authorization": f"Bearer {place.secret}", "Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=300).close()


def test_power_and_energy_come_from_the_fleets_server(tmp_path: Path) -> None:
    """They use a token for reading; errors are logged, and the driver continues."""
    with served(tmp_path) as place:
        token = add_token(place.tokens, "driver", Role.SCHEDULER)
        say(place, gpu_0=123.0, gpu_1=77.0)
        log = DriverLog(tmp_path / "log")
        known = site().known
        with FleetPower(place.url, token, known, log) as power:
            wait = threading.Event()
            for _ in range(100):
                if power.readings(known):
                    break
                wait.wait(0.1)
            assert {node: each.watts for node, each in power.readings(known).items()} == {0: 200.0}
            assert power.readings(site().known) == {}  # other nodes have other numbers
        whole(place.outbox, "20260101-000000-aaaaaa")
        deliver(place.options(), once=True)
        found = energy_from_fleet(place.url, token, "lab", "77")
        assert found is not None
        assert (found.energy_j, found.gpu_j, found.nodes) == (1000.0, 1000.0, 1)
        assert found.provenance == "measured"
        stored = energy_from_store(place.state.store, "lab", "77")
        assert stored is not None
        assert (stored.energy_j, stored.gpu_j) == (1000.0, 1000.0)
        assert energy_from_store(place.state.store, "lab", "78") is None
        assert energy_from_fleet(place.url, token, "lab", "78") is None
    assert energy_from_fleet(place.url, token, "lab", "77") is None  # it is unreachable


def test_a_server_that_is_away_leaves_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported once, not every time."""
    asked = threading.Semaphore(0)

    def fetch(*words: Any) -> Any:
        asked.release()
        return fetch_json(*words)

    monkeypatch.setattr(power_readings, "fetch_json", fetch)
    monkeypatch.setattr(power_readings, "EVERY_S", 0.01)
    log = DriverLog(tmp_path / "log")
    known = site().known
    with FleetPower("http://127.0.0.1:9", "", known, log) as power:
        assert all(asked.acquire(timeout=120) for _ in range(3))
        assert power.readings(known) == {}
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    with pytest.raises(ConfigError, match="write a URL"):
        FleetPower("file:///etc/passwd", "", site().known, log)
