"""Connection of one client: lines of bounded length at a bounded rate; its lease ends with it."""

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from wattloop.control.daemon.audit_log import AuditLog, Rate
from wattloop.control.daemon.leases import ClientLease, LeaseTable
from wattloop.control.daemon.protocol import (
    REQUEST_MOST_B,
    VERSION,
    Peer,
    ProtocolError,
    decode,
    encode,
    encode_error,
)
from wattloop.control.daemon.request_handler import RequestHandler
from wattloop.core.errors import WattloopError


class Connection(threading.Thread):
    """Thread of one client: a slow device or silent client delays no other client."""

    def __init__(
        self,
        line: socket.socket,
        peer: Peer,
        handler: RequestHandler,
        leases: LeaseTable,
        log: AuditLog,
        rate: Rate,
        on_end: Callable[["Connection"], None],
    ) -> None:
        super().__init__(name=f"client {peer.pid}", daemon=True)
        self.peer = peer
        self._line = line
        self._handler = handler
        self._leases = leases
        self._log = log
        self._rate = rate
        self._on_end = on_end
        self._lease = ClientLease(peer)
        self._rest = b""
        self._why = "the client closed the connection"

    def run(self) -> None:
        process: int | None = None
        try:
            process = _process(self.peer.pid)
            self._line.setblocking(False)
            while (line := self._next_line(process)) is not None:
                if not self._rate.allow():
                    per_s = self._handler.rules.limits.requests_per_s
                    raise ProtocolError(f"more requests than {per_s:g} a second")
                self._send(encode(self._handler.answer(self._lease, decode(line))))
        except ProtocolError as error:
            self._why = f"cut off: {error}"
            self._log.write("cut_off", self.peer, why=str(error))
            with suppress(OSError):
                hang_up(self._line, error)
        except ProcessLookupError:  # a child may hold the connection: the lease was not given to it
            self._why = "the client ended"
        except OSError as error:
            self._why = f"the connection failed: {error.strerror or error}"
        finally:
            if process is not None:
                os.close(process)
            # restore before closing: a client that waits for the end finds its levers restored
            self._leases.end(self._lease, self._why)
            self._line.close()
            self._on_end(self)

    def stop(self) -> None:
        """End as if the client had disconnected."""
        self._why = "the daemon ends"
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RD)

    def _next_line(self, process: int | None) -> bytes | None:
        """Return the next request; None when the client disconnected or was silent too long."""
        limits = self._handler.rules.limits
        begun_s = time.monotonic()
        while b"\n" not in self._rest:
            if len(self._rest) > REQUEST_MOST_B:
                raise ProtocolError(f"a line of more than {REQUEST_MOST_B} bytes")
            patience_s = self._patience_s(limits.line_s, limits.idle_s)
            left_s = None if patience_s is None else patience_s - (time.monotonic() - begun_s)
            if left_s is not None and left_s <= 0:
                if self._rest:
                    raise ProtocolError(f"a line that was not ended in {limits.line_s:g} s")
                self._why = "idle"
                return None
            if not self._ready(process, left_s):
                continue
            more = self._line.recv(1 << 16)
            if not more:
                return None
            if not self._rest:
                begun_s = time.monotonic()
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        if len(line) > REQUEST_MOST_B:
            raise ProtocolError(f"a line of more than {REQUEST_MOST_B} bytes")
        return line

    def _patience_s(self, line_s: float, idle_s: float) -> float | None:
        """Return the idle timeout; a client with a lease has none."""
        if self._rest:
            return line_s
        return None if self._lease.jobs else idle_s

    def _ready(self, process: int | None, timeout_s: float | None) -> bool:
        """Return True if data can be read; the process that connected may have ended.

        A forked child of it keeps the connection open, but the lease was not given to it.
        """
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        if process is not None:
            poll.register(process, select.POLLIN)
        happened = dict(poll.poll(None if timeout_s is None else timeout_s * 1_000))
        if self._line.fileno() in happened:
            return True
        if process in happened:
            self._why = "the client ended"
            self._line.shutdown(socket.SHUT_RD)
        return False

    def _send(self, data: bytes) -> None:
        line_s = self._handler.rules.limits.line_s
        give_up_s = time.monotonic() + line_s
        poll = select.poll()
        poll.register(self._line, select.POLLOUT)
        while data:
            if not poll.poll(max(0.0, give_up_s - time.monotonic()) * 1_000):
                raise ProtocolError(f"replies that were not read for {line_s:g} s")
            with suppress(BlockingIOError):
                data = data[self._line.send(data) :]


def hang_up(line: socket.socket, error: WattloopError) -> None:
    """Send the reason of the disconnect; the caller closes the connection."""
    line.setblocking(False)
    line.send(encode({"v": VERSION, "id": None, "ok": False, "error": encode_error(error)}))


def _process(pid: int) -> int | None:
    """Return a pidfd, None in another container. Raises ProcessLookupError after its end."""
    try:
        return os.pidfd_open(pid) if pid > 0 else None
    except ProcessLookupError:
        raise
    except OSError:
        return None
