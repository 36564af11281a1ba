"""Limits of connections: number and time, before any token is read.

uvicorn waits for the rest of a request's headers for ever, and keeps as many connections as the
process may have files. Here a request's headers come within `HEADER_S`, a reader takes what is sent
within `SEND_S`, and when all places are taken the connection that has waited longest without a
request makes room, from the address that holds the most of them.
"""

import asyncio
import time
from collections import Counter
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from wattloop.serve.worker import RETRY_S

HEADER_S = 10.0
SEND_S = 60.0
KEEP_ALIVE_S = 65
"""Longer than a node waits between two deliveries: a connection is not closed under one."""
MOST = 1_000
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n"
    b"Retry-After: %d\r\n\r\n" % RETRY_S
)


def server_config(app: Any, **options: Any) -> uvicorn.Config:
    """Return uvicorn's settings for the server."""
    return uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        **{"log_level": "warning", **options},
    )


def most_connections() -> int:
    """Return the limit of connections: half of the process's open files, at most `MOST`."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(8, min(MOST, soft // 2))


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 with limits of time and number."""

    _header_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None
    waits_since_s: float = 0.0
    """Since when it has no whole request."""

    @property
    def is_waiting(self) -> bool:
        """Return True while no request of the connection is being answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Accept the connection; when full, close a waiting one or this one."""
        super().connection_made(transport)
        self.waits_since_s = time.monotonic()
        self._header_timer = self.loop.call_later(HEADER_S, self._end)
        if len(self.connections) > most_connections():
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Receive bytes of a request; incomplete headers close the connection in time."""
        super().data_received(data)
        self._time_headers()

    def on_response_complete(self) -> None:
        """Wait for the next request, half of which may be here already."""
        self.waits_since_s = time.monotonic()
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._time_headers()

    def pause_writing(self) -> None:
        """Start the timeout of a reader that does not take the response."""
        super().pause_writing()
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(SEND_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_send_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection and its timers."""
        self._cancel_header_timer()
        self._cancel_send_timer()
        super().connection_lost(exc)

    def _time_headers(self) -> None:
        if not self.is_waiting:
            self._cancel_header_timer()
        elif self._header_timer is None and not self.transport.is_closing():
            self._header_timer = self.loop.call_later(HEADER_S, self._end)

    def _end(self) -> None:
        if not self.transport.is_closing():
            self.transport.abort()

    def _make_room(self) -> None:
        others = [
            one
            for one in self.connections
            if isinstance(one, LimitedProtocol)
            and one is not self
            and one.is_waiting
            and not one.transport.is_closing()
        ]
        if not others:
            self.transport.write(FULL)
            self.transport.close()
            return
        held = Counter(one.address for one in others)
        max(others, key=lambda one: (held[one.address], -one.waits_since_s))._end()

    def _cancel_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _cancel_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
