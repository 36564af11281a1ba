import json
import threading
import time
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from wattloop.core.clock import RealClock
from wattloop.core.errors import ConfigError
from wattloop.core.records import Gap
from wattloop.meters.redfish import Endpoint, Redfish
from wattloop.testing.meter_contract import check_meter

SECRET = "hunter2"


class Controller:
    """A real HTTP server that answers like a baseboard controller."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.resources: dict[str, object] = {
            "/redfish/v1/Chassis": {"Members": [{"@odata.id": "/redfish/v1/Chassis/1"}]},
            "/redfish/v1/Chassis/1": {
                "Id": "1",
                "Power": {"@odata.id": "/redfish/v1/Chassis/1/Power"},
            },
            "/redfish/v1/Chassis/1/Power": {
                "PowerControl": [{"MemberId": "0", "PowerConsumedWatts": 344}]
            },
        }
        controller = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                time.sleep(controller.delay_s)
                expected = "Basic " + b64encode(f"admin:{SECRET}".encode()).decode()
                if self.headers.get("Authorization") != expected:
                    self.send_error(401)
                    return
                body = controller.resources.get(self.path)
                if body is None:
                    self.send_error(404)
                    return
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # A client that stopped waiting is part of the test, not an error to print.
        self.server.handle_error = lambda *_: None
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.address = f"127.0.0.1:{self.server.server_port}"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def controller():
    controller = Controller()
    yield controller
    controller.stop()


def reading(controller: Controller, password: str = SECRET, **options):
    meter = Redfish(f"http://admin:{password}@{controller.address}", RealClock(), **options)
    try:
        assert meter.wait(120)
        return meter.read()[0]
    finally:
        meter.close()


def test_power_of_an_older_controller(controller) -> None:
    """Promise: Chassis -> Power -> PowerConsumedWatts is found."""
    assert reading(controller) == 344.0


def test_contract(controller) -> None:
    """Promise: it keeps the contract of every meter."""

    def make() -> Redfish:
        meter = Redfish(f"http://admin:{SECRET}@{controller.address}", RealClock())
        assert meter.wait(120)
        return meter

    check_meter(make)


def test_power_of_a_newer_controller(controller) -> None:
    """Promise: EnvironmentMetrics is used where it exists."""
    controller.resources["/redfish/v1/Chassis/1"] = {
        "EnvironmentMetrics": {"@odata.id": "/redfish/v1/Chassis/1/EnvironmentMetrics"}
    }
    controller.resources["/redfish/v1/Chassis/1/EnvironmentMetrics"] = {
        "PowerWatts": {"Reading": 512.5}
    }
    assert reading(controller) == 512.5


def test_a_refusal_is_a_gap_that_does_not_show_the_password(controller) -> None:
    """Promise: HTTP 401 says what to check and shows no password."""
    gap = reading(controller, password="wrong-secret")
    assert isinstance(gap, Gap)
    assert "401" in gap.reason
    assert "wrong-secret" not in gap.reason


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"[]", {"PowerControl": []}, {"PowerControl": [{"PowerConsumedWatts": None}]}],
)
def test_malformed_answers_are_gaps(controller, body) -> None:
    """Promise: a controller with invalid answers yields no number."""
    controller.resources["/redfish/v1/Chassis/1/Power"] = body
    assert isinstance(reading(controller), Gap)


def test_a_slow_controller_is_a_gap(controller) -> None:
    """Promise: no reading waits for a slow controller."""
    controller.delay_s = 1.0
    gap = reading(controller, timeout_s=0.1)
    assert isinstance(gap, Gap)
    assert "answer within" in gap.reason or "timed out" in gap.reason


def test_a_controller_that_vanishes_turns_readings_into_gaps(controller) -> None:
    """Promise: the last value is not repeated."""
    meter = Redfish(
        f"http://admin:{SECRET}@{controller.address}", RealClock(), period_s=0.02, timeout_s=0.5
    )
    try:
        assert meter.wait(120)
        assert meter.read() == [344.0]
        controller.server.shutdown()
        controller.server.server_close()
        deadline = time.monotonic() + 120
        while not isinstance(meter.read()[0], Gap) and time.monotonic() < deadline:
            time.sleep(0.02)
        gap = meter.read()[0]
        assert isinstance(gap, Gap)
        assert "last good answer" in gap.reason
    finally:
        meter.close()


def test_credentials_come_from_the_environment_and_never_show() -> None:
    """Promise: no source, repr or message contains a password."""
    env = {"WATTLOOP_REDFISH_USER": "u", "WATTLOOP_REDFISH_PASSWORD": SECRET}
    endpoint = Endpoint.parse("https://bmc.example:8443/?verify=no", env)
    assert endpoint.origin == "https://bmc.example:8443"
    assert endpoint.authorization == "Basic " + b64encode(f"u:{SECRET}".encode()).decode()
    assert not endpoint.verify
    assert Endpoint.parse("https://bmc", {}).verify
    assert "Basic" not in repr(endpoint)
    meter = Redfish(f"https://admin:{SECRET}@bmc", RealClock())
    assert SECRET not in str(meter.domains)
    with pytest.raises(ConfigError) as error:
        Endpoint.parse(f"ftp://admin:{SECRET}@bmc", {})
    assert SECRET not in str(error.value)
