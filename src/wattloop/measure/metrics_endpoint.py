"""Live metrics of one process: an HTTP endpoint for Prometheus, or OTLP sent to a collector."""

import logging
import math
import os
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

from wattloop.core.errors import ConfigError
from wattloop.core.records import Provenance
from wattloop.core.results import non_overlapping
from wattloop.core.text import plain
from wattloop.measure.job import scheduler_facts
from wattloop.measure.run_journal import RunProgress, process_user
from wattloop.store.formats.prometheus import (
    OPENMETRICS_TYPE,
    TEXT_TYPE,
    MetricFamily,
    MetricSample,
    render_families,
)

if TYPE_CHECKING:
    from wattloop.measure.session import Session

Render = Callable[[bool], str]
"""Returns the metrics, as OpenMetrics when True."""
Families = Callable[[], Iterable[MetricFamily]]
OTLP_PATH = "/v1/metrics"
OTLP_EVERY_S, OTLP_TIMEOUT_S = 10.0, 5.0
OTLP_UNITS = {"joules": "J", "watts": "W", "seconds": "s", "bytes": "By", "ratio": "1"}
HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"
REQUEST_S = 2.0
"""Time for a whole request."""
MOST_WAITING = 32
"""Connections that have not sent their request; the oldest is closed for another one."""
_log = logging.getLogger("wattloop.metrics")


def parse_address(text: str) -> tuple[str, int]:
    """Parse `9464`, `:9464` or `127.0.0.1:9464`; a port alone listens on this machine only.

    Raises:
        ConfigError: it is none of them.
    """
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 <= int(port) <= 65_535:
        raise ConfigError(f"metrics address {text!r}: write a port or host:port, such as 9464")
    return (host.strip("[]") or ("0.0.0.0" if text.startswith(":") else "127.0.0.1")), int(port)


def check_address(text: str) -> None:
    """Raise ConfigError where `text` is neither an address to listen on nor a collector's URL."""
    if "://" in text:
        _collector_url(text)
    else:
        parse_address(text)


def open_metrics(address: str, families: Families) -> "MetricsEndpoint | OtlpExport":
    """Return what offers the metrics: an endpoint at `host:port`, or a sender to `http://...`.

    Raises:
        ConfigError: the address is wrong or taken, or the extra `otlp` is missing.
    """
    if "://" in address:
        return OtlpExport(address, families)
    return MetricsEndpoint(
        address, lambda openmetrics: render_families(families(), openmetrics=openmetrics)
    )


def _collector_url(text: str) -> str:
    """Return the URL that metrics are sent to; errors never repeat a password."""
    try:
        url = urllib.parse.urlsplit(text)
        known = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        known = False
    if not known:
        raise ConfigError("metrics: write a collector as http://host:4318 or https://host:4318")
    if url.username or url.password or url.query:
        raise ConfigError(f"metrics: no password or token in the URL; set {HEADERS_VARIABLE}")
    path = url.path.rstrip("/")
    return url._replace(path=path if path.endswith(OTLP_PATH) else path + OTLP_PATH).geturl()


class OtlpExport:
    """A thread that sends the metrics to an OTLP/HTTP collector every 10 s, and as it ends.

    A collector that does not answer costs one warning and no metrics of later times: each message
    has the totals so far. `OTEL_EXPORTER_OTLP_HEADERS` has headers such as a token, and
    `OTEL_METRIC_EXPORT_INTERVAL` the interval in milliseconds, as OpenTelemetry defines them.

    Args:
        url: of the collector; `/v1/metrics` is added unless it is there.
        families: called for each message in the sender's thread.
    """

    port = None

    def __init__(self, url: str, families: Families) -> None:
        self._url = _collector_url(url)
        self._families = families
        self._begun_ns = time.time_ns()
        self._headers = {"Content-Type": "application/x-protobuf", "User-Agent": "wattloop"}
        for pair in os.environ.get(HEADERS_VARIABLE, "").split(","):
            name, found, value = pair.partition("=")
            if found:
                self._headers[name.strip()] = urllib.parse.unquote(value.strip())
        try:
            self._every_s = float(os.environ["OTEL_METRIC_EXPORT_INTERVAL"]) / 1_000
        except (KeyError, ValueError):
            self._every_s = OTLP_EVERY_S
        self.sent = 0
        self.fault = ""
        otlp_message((), 0, 0)  # a missing package is found before the program starts
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="wattloop-otlp", daemon=True)

    def __enter__(self) -> "OtlpExport":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(2 * OTLP_TIMEOUT_S)

    def _work(self) -> None:
        while not self._ended.wait(max(0.1, self._every_s)):
            self._send()
        self._send()

    def _send(self) -> None:
        try:
            data = otlp_message(self._families(), self._begun_ns, time.time_ns())
            request = urllib.request.Request(self._url, data, self._headers)
            with urllib.request.urlopen(request, timeout=OTLP_TIMEOUT_S) as answer:
                answer.read(65_536)
            self.sent += 1
            self.fault = ""
        except Exception as error:  # noqa: BLE001 - a collector must not end what it watches
            if not self.fault:
                _log.warning("metrics were not sent: %s: %s", type(error).__name__, error)
            self.fault = f"{type(error).__name__}: {error}"


def otlp_message(families: Iterable[MetricFamily], begun_ns: int, now_ns: int) -> bytes:
    """Encode families as an OTLP request: counters are cumulative sums since `begun_ns`.

    Raises:
        ConfigError: opentelemetry-proto is missing.
    """
    try:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
            ExportMetricsServiceRequest,
        )
    except ImportError:
        raise ConfigError("metrics over OTLP: run pip install 'wattloop[otlp]'") from None
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    name = resource.resource.attributes.add(key="service.name")
    name.value.string_value = "wattloop"
    scope = resource.scope_metrics.add()
    scope.scope.name = "wattloop"
    for family in families:
        found = [s for s in family.samples if s.value is not None and math.isfinite(s.value)]
        if not found:
            continue
        metric = scope.metrics.add(
            name=family.name.removesuffix("_total"),
            description=family.text,
            unit=OTLP_UNITS.get(family.unit, family.unit),
        )
        if family.is_counter:
            metric.sum.is_monotonic = True
            metric.sum.aggregation_temporality = 2  # cumulative
        points = metric.sum.data_points if family.is_counter else metric.gauge.data_points
        for sample in found:
            point = points.add(time_unix_nano=now_ns, as_double=sample.value)
            if family.is_counter:
                point.start_time_unix_nano = begun_ns
            for key, value in sample.labels.items():
                point.attributes.add(key=key).value.string_value = str(value)
    data: bytes = request.SerializeToString()
    return data


class MetricsEndpoint:
    """A thread that answers scrapes, one after the other, from what `render` returns.

    Requests are handled in turn, so that a flood of scrapes takes one thread and no memory.

    Args:
        address: `host:port`; port 0 takes a free one.
        render: called for each scrape in the endpoint's thread.
    """

    def __init__(self, address: str, render: Render) -> None:
        host, port = parse_address(address)
        handler = type("Handler", (_Handler,), {"render": staticmethod(render)})
        server = _Server6 if ":" in host else _Server
        try:
            self._server = server((host, port), handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"metrics address {address}: cannot listen there: {reason}; choose another port"
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.5,), name="wattloop-metrics", daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> "MetricsEndpoint":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(5.0)
        self._server.server_close()
        self._server.closed = True
        if self._server.rendering.acquire(timeout=5.0):  # a scrape is answered from an open run
            self._server.rendering.release()


class RunMetrics:
    """Live metrics of one run, while its program runs: a hook of `measure.command.run_command`.

    Args:
        address: where to listen, or the URL of a collector.
        progress: steps and phases so far.
    """

    def __init__(self, address: str, progress: Callable[[], RunProgress]) -> None:
        self.endpoint = open_metrics(address, self.families)
        self._progress = progress
        self._session: Session | None = None

    def begin(self, session: "Session", environment: dict[str, str]) -> dict[str, str]:
        """Answer scrapes until the run ends; the program's environment stays as it is."""
        self._session = session
        self.endpoint.__enter__()
        session.before_end.append(self.endpoint.__exit__)
        return environment

    def families(self) -> Iterable[MetricFamily]:
        """Return energy so far, present power and steps."""
        return () if self._session is None else self._families(self._session)

    def _families(self, session: "Session") -> Iterator[MetricFamily]:
        now_s = session.clock.now_s()
        result, watts = session.between(session.started_s, now_s), session.power_w()
        facts = scheduler_facts(os.environ)
        run = {
            "run": session.run_id,
            "name": plain(session.name),
            "user": plain(facts.get("user") or process_user()),
            "project": plain(facts.get("project", "")),
            "job_id": plain(facts.get("job", "")),
        }
        labels = [
            {
                **run,
                "domain": d.name,
                "scope": d.scope.value,
                "provenance": d.provenance.value,
                "in_total": str(d.in_total).lower(),
            }
            for d in result.domains
        ]
        of_domains = list(zip(labels, result.domains, strict=True))
        yield MetricFamily(
            "wattloop_run_energy_joules_total",
            "Energy of the run so far; add up only in_total.",
            [MetricSample(each, d.energy_j, session.run_id) for each, d in of_domains],
            "joules",
        )
        yield MetricFamily(
            "wattloop_run_energy_uncertainty_joules",
            "Uncertainty of the energy so far.",
            [MetricSample(each, d.uncertainty_j) for each, d in of_domains],
            "joules",
        )
        yield MetricFamily(
            "wattloop_run_power_watts",
            "Power of a domain now.",
            [MetricSample(each, watts.get(d.name)) for each, d in of_domains],
            "watts",
        )
        yield MetricFamily(
            "wattloop_run_elapsed_seconds",
            "Time since the run began.",
            [MetricSample(run, now_s - session.started_s)],
            "seconds",
        )
        domains = [channel.domain for channel in session.channels]
        counted = non_overlapping((d.name, d.inside) for d in domains)
        provenances = [d.provenance for d in domains if d.name in counted]
        provenance = Provenance.weakest(provenances).value if provenances else ""
        yield from progress_families(
            "wattloop_run", "the run", [(run, provenance, self._progress())], now_s
        )


def progress_families(
    prefix: str,
    whose: str,
    rows: Sequence[tuple[Mapping[str, str], str, RunProgress]],
    now_s: float,
) -> Iterator[MetricFamily]:
    """Return steps and phases of runs, or of jobs, by labels and the provenance of their joules."""
    for name in ("steps", "samples", "tokens"):
        samples = [MetricSample(labels, getattr(p, name)) for labels, _, p in rows]
        yield MetricFamily(f"{prefix}_{name}_total", f"Training {name} of {whose} so far.", samples)
    ago = [(labels, p.last_step_s) for labels, _, p in rows]
    yield MetricFamily(
        f"{prefix}_seconds_since_step",
        "Time since the last training step: large in evaluations, checkpoints and stalls.",
        [MetricSample(labels, None if s is None else max(0.0, now_s - s)) for labels, s in ago],
        "seconds",
    )
    phases = [(row, phase, *found) for row in rows for phase, found in row[2].phases.items()]
    yield MetricFamily(
        f"{prefix}_phase_seconds_total",
        f"Time of a phase of {whose}; what a present phase is, its end tells.",
        [MetricSample({**row[0], "phase": phase}, time_s) for row, phase, time_s, _ in phases],
        "seconds",
    )
    yield MetricFamily(
        f"{prefix}_phase_energy_joules_total",
        f"Energy of a phase of {whose}, of the domains in_total.",
        [
            MetricSample({**row[0], "phase": phase, "provenance": row[1]}, energy_j)
            for row, phase, _, energy_j in phases
        ],
        "joules",
    )


class _Server(ThreadingHTTPServer):
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, *args: Any) -> None:
        self.rendering = threading.Lock()
        self.closed = False
        self._waiting: dict[Any, None] = {}  # connections without a request, oldest first
        self._lock = threading.Lock()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; silent clients must not keep others from being answered."""
        with self._lock:
            self._waiting[request] = None
            oldest = next(iter(self._waiting)) if len(self._waiting) > MOST_WAITING else None
        if oldest is not None:
            _log.warning("metrics: more than %d silent connections; one is closed", MOST_WAITING)
            self.has_asked(oldest)
            with suppress(OSError):  # it has ended
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def has_asked(self, request: Any) -> None:
        """Forget a connection whose request has arrived, or that ends."""
        with self._lock:
            self._waiting.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        self.has_asked(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away, or sends nonsense, is not worth a traceback."""
        _log.debug("a scrape failed", exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    render: ClassVar[Render]
    timeout = REQUEST_S
    server_version = "wattloop"
    sys_version = ""

    def handle(self) -> None:
        # The timeout of a socket bounds one read; this one bounds all of them.
        timer = threading.Timer(REQUEST_S, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            super().handle()
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        with suppress(OSError):  # it has ended
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        self.server.has_asked(self.connection)
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._answer(200, "ok\n", "text/plain")
            return
        if path != "/metrics":
            self._answer(404, "see /metrics\n", "text/plain")
            return
        openmetrics = "application/openmetrics-text" in self.headers.get("Accept", "")
        try:
            with self.server.rendering:
                text = "" if self.server.closed else type(self).render(openmetrics)
        except Exception as error:  # noqa: BLE001 - a scrape must not end the process it watches
            _log.warning("metrics: %s: %s", type(error).__name__, error)
            self._answer(500, "the metrics cannot be made; see the log\n", "text/plain")
            return
        self._answer(200, text, OPENMETRICS_TYPE if openmetrics else TEXT_TYPE)

    def _answer(self, status: int, text: str, kind: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: a scrape per second would fill the log."""
