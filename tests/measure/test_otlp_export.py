"""Promises of live metrics over OTLP/HTTP, received and decoded as a collector does."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from wattloop.core.errors import ConfigError
from wattloop.measure.metrics_endpoint import (
    MetricsEndpoint,
    OtlpExport,
    check_address,
    open_metrics,
)
from wattloop.store.formats.prometheus import MetricFamily, MetricSample

service = pytest.importorskip(
    "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
    reason="opentelemetry-proto is not installed",
)
HOSTILE = 'x" } evil 1\n\x00' + "y" * 5_000
FAMILIES = [
    MetricFamily(
        "wattloop_run_energy_joules_total",
        "Energy so far.",
        [
            MetricSample({"run": "r1", "domain": "gpu:0"}, 12.5),
            MetricSample({"run": "r1", "domain": "cpu:0"}, None),
            MetricSample({"run": "r1", "domain": "dram"}, float("nan")),
        ],
        "joules",
    ),
    MetricFamily("wattloop_run_power_watts", "Power now.", [MetricSample({"name": HOSTILE}, 80.0)]),
    MetricFamily("wattloop_run_nothing", "Unknown.", [MetricSample({}, None)]),
]


class Collector(HTTPServer):
    """A receiver of OTLP/HTTP that answers with `status`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        message = service.ExportMetricsServiceRequest.FromString(data)
        self.server.requests.append((self.path, dict(self.headers), message))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_collector_gets_the_metrics_of_the_page(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: sums and gauges with unit, labels and times; unknown values are absent, not zero."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20abc")
    with OtlpExport(collector.url, lambda: FAMILIES) as export:
        pass  # the last values are sent at its end
    assert (export.sent, export.fault) == (1, "")
    ((path, headers, message),) = collector.requests
    assert path == "/v1/metrics"
    assert headers["Content-Type"] == "application/x-protobuf"
    assert headers["Authorization"] == "Bearer abc"
    (resource,) = message.resource_metrics
    energy, power = resource.scope_metrics[0].metrics
    assert (energy.name, energy.unit) == ("wattloop_run_energy_joules", "J")
    assert energy.sum.is_monotonic
    assert energy.sum.aggregation_temporality == 2
    (point,) = energy.sum.data_points
    assert point.as_double == 12.5
    assert {a.key: a.value.string_value for a in point.attributes} == {
        "run": "r1",
        "domain": "gpu:0",
    }
    assert 0 < point.start_time_unix_nano <= point.time_unix_nano
    assert power.gauge.data_points[0].attributes[0].value.string_value == HOSTILE


def test_it_sends_at_its_interval(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    came = threading.Event()

    def families() -> list[MetricFamily]:
        if len(collector.requests) >= 2:
            came.set()
        return FAMILIES

    with OtlpExport(collector.url, families):
        assert came.wait(60)


def test_a_collector_that_refuses_costs_one_warning(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: errors of a collector neither end the run nor fill its log."""
    collector.status = 500
    export = OtlpExport(collector.url, lambda: FAMILIES)
    for _ in range(3):
        export._send()
    assert export.sent == 0
    assert "500" in export.fault
    assert len([r for r in caplog.records if "were not sent" in r.message]) == 1
    collector.status = 200
    export._send()
    assert (export.sent, export.fault) == (1, "")


@pytest.mark.parametrize(
    "address, words",
    [
        ("ftp://host", "http://host:4318"),
        ("http://", "http://host:4318"),
        ("http://[::1", "http://host:4318"),
        ("http://host:99999", "http://host:4318"),
        ("http://me:hunter2@host:4318", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://host:4318/?token=hunter2", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("nonsense", "host:port"),
    ],
)
def test_wrong_addresses_are_refused_without_their_secret(address: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refusal:
        check_address(address)
    assert "hunter2" not in str(refusal.value)


def test_the_address_chooses_between_pulling_and_pushing() -> None:
    assert isinstance(open_metrics("https://collector:4318/v1/metrics", list), OtlpExport)
    endpoint = open_metrics("0", list)
    assert isinstance(endpoint, MetricsEndpoint)
    endpoint._server.server_close()
