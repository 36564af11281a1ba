"""HTTP endpoint with live metrics for Prometheus: `/metrics` and `/healthz` of one process."""

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

from wattloop.core.errors import ConfigError
from wattloop.store.formats.prometheus import OPENMETRICS_TYPE, TEXT_TYPE

Render = Callable[[bool], str]
"""Returns the metrics, as OpenMetrics when True."""
REQUEST_S = 2.0
"""Time for a whole request: one that sends its headers slowly must not block the others."""
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


class _Server(HTTPServer):
    allow_reuse_address = True
    request_queue_size = 16

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
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._answer(200, "ok\n", "text/plain")
            return
        if path != "/metrics":
            self._answer(404, "see /metrics\n", "text/plain")
            return
        openmetrics = "application/openmetrics-text" in self.headers.get("Accept", "")
        try:
            text = type(self).render(openmetrics)
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
