"""The control daemon: sockets, signals, and a thread per client connection."""

import os
import re
import select
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from wattloop.control.daemon.audit_log import AuditLog, Rate
from wattloop.control.daemon.leases import ClientLease, LeaseTable
from wattloop.control.daemon.protocol import (
    REQUEST_MOST_B,
    VERSION,
    Peer,
    PermissionDenied,
    ProtocolError,
    decode,
    encode,
    encode_error,
    peer_process,
    peer_uid,
    trusted_path,
)
from wattloop.control.daemon.request_handler import RequestHandler
from wattloop.control.daemon.rules import Rules, read_rules
from wattloop.control.daemon.trusted_file import check_folder
from wattloop.control.journal import state_directory
from wattloop.control.lock import close_private, keep_private
from wattloop.control.registry import find_levers
from wattloop.control.restore import RestoreStatus, restore
from wattloop.control.watchdog import RestoreWatchdog
from wattloop.core.errors import ConfigError, WattloopError
from wattloop.core.files import try_lock


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


LONGEST_PATH_B = 100
"""Length of a socket's path: the kernel accepts 107 bytes, and the new socket has a longer name at
first."""

BACKLOG = 256


class Listener:
    """Listening Unix sockets: one of the given mode and group, and one per trusted user and group.

    Many clients can fill the kernel's queue of a socket, and then no other client can connect. So
    each user and group that the rules trust has a socket of its own (`protocol.trusted_path`),
    which no others can open.

    A socket is created under another name, with its mode, and then renamed: no client
    connects to an incomplete one, and a stale one is replaced. Any other file there, or a link,
    is left alone and is an error.

    Raises:
        ConfigError: another daemon listens, or the place cannot be used.
    """

    def __init__(
        self,
        path: Path,
        mode: int,
        gid: int | None,
        trusted_uids: Iterable[int] = (),
        trusted_gids: Iterable[int] = (),
    ) -> None:
        self.path = path
        self.trusted: list[socket.socket] = []
        self._trusted_paths: list[Path] = []
        self._wanted: list[tuple[int, int, int]] = []
        if len(os.fsencode(path)) > LONGEST_PATH_B:
            raise ConfigError(f"{path}: too long for a socket; at most {LONGEST_PATH_B} bytes")
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            check_folder(path.parent)
            _check_free(path)
            self._lock = self._locked()
        except OSError as error:
            raise ConfigError(f"{path}: cannot listen there: {error.strerror}") from None
        try:
            self.socket, self._identity = _bound(path, mode, gid)
        except OSError as error:
            close_private(self._lock)
            raise ConfigError(f"{path}: cannot listen there: {error.strerror}") from None
        self.trust(trusted_uids, trusted_gids)

    def trust(self, uids: Iterable[int], gids: Iterable[int]) -> None:
        """Open a socket for each of these users and groups, and for the daemon's own user."""
        wanted = [(uid, -1, 0o600) for uid in sorted({os.geteuid(), *uids})]
        wanted += [(-1, gid, 0o660) for gid in sorted(set(gids))]
        if wanted == self._wanted:
            return
        self._wanted = wanted
        self._close_trusted()
        for stale in trusted_sockets(self.path):  # of a daemon that was killed
            with suppress(OSError):
                stale.unlink()
        for uid, gid, mode in wanted:
            path = trusted_path(self.path, uid=uid, gid=gid)
            # only root can change owners, and a name can be too long: those use the common socket
            with suppress(OSError):
                self.trusted.append(_bound(path, mode, gid, uid)[0])
                self._trusted_paths.append(path)

    def _close_trusted(self) -> None:
        for path in self._trusted_paths:
            with suppress(OSError):
                path.unlink()
        for line in self.trusted:
            line.close()
        self.trusted, self._trusted_paths = [], []

    def close(self) -> None:
        """Stop listening, and remove the socket unless it already belongs to another daemon."""
        with suppress(OSError):
            if _identity(self.path) == self._identity:
                self.path.unlink()
                self._close_trusted()
        for line in (self.socket, *self.trusted):
            line.close()
        close_private(self._lock)

    def _locked(self) -> int:
        path = self.path.with_name(self.path.name + ".lock")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = keep_private(os.open(path, flags, 0o600))
        if not try_lock(descriptor):
            close_private(descriptor)
            raise ConfigError(f"{self.path}: another control daemon listens there; stop it first")
        return descriptor


def _check_free(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"{path}: is there already and no socket; move it away")


def trusted_sockets(path: Path) -> list[Path]:
    pattern = re.compile(re.escape(path.name) + r"\.[ug]\d+(\.new)?")
    try:
        return [found for found in path.parent.iterdir() if pattern.fullmatch(found.name)]
    except OSError:
        return []


def _bound(
    path: Path, mode: int, gid: int | None, uid: int = -1
) -> tuple[socket.socket, tuple[int, int]]:
    fresh = path.with_name(f"{path.name}.new")
    with suppress(FileNotFoundError):
        fresh.unlink()
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)  # no client can connect before the socket has its mode and group
        try:
            line.bind(str(fresh))
        finally:
            os.umask(before)
        if gid is not None:
            os.chown(fresh, uid, gid, follow_symlinks=False)
        os.chmod(fresh, mode)  # noqa: PTH101 - like chown, which pathlib lacks
        line.listen(BACKLOG)
        line.setblocking(False)
        identity = _identity(fresh)
        fresh.rename(path)
    except OSError:
        line.close()
        with suppress(OSError):
            fresh.unlink()
        raise
    return line, identity


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


TICK_S = 5.0
"""Interval of retries."""

END_S = 20.0
"""Time that the daemon waits for devices that are slow to be restored."""

AT_ONCE = 32
"""Number of clients of one socket that are accepted before the other sockets are polled."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))


class Server:
    """The daemon. `run` returns after a stop signal, when everything is restored."""

    def __init__(self, rules: Rules, path: Path | None = None) -> None:
        self._rules = rules
        self.path = path or rules.socket
        self._place = state_directory()
        self._listener = Listener(
            self.path, rules.socket_mode, rules.socket_gid, rules.trusted_uids, rules.trusted_gids
        )
        try:
            self._log = AuditLog(rules.log, trusts=rules.trusts)
        except ConfigError:
            self._listener.close()
            raise
        self._connections: set[Connection] = set()
        self._turned_away: dict[int, int] = {}
        self._rates: dict[tuple[int, bool], Rate] = {}
        self._busy = threading.Lock()
        self._signals: set[int] = set()
        self._watchdog = RestoreWatchdog(self._place, all_journals=True)
        self._restore_leftovers()
        self._leases = LeaseTable(find_levers(remote=False), self._log, self._place)
        self._handler = RequestHandler(rules, self._leases, self._log)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; SIGHUP reads the rules again."""
        wake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        old_waker = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        try:
            self._log.write("started", why=f"rules of {self._rules.path}", pid=os.getpid())
            self._leases.apply_defaults(self._rules)
            _tell_systemd("READY=1")
            self._serve(wake)
        finally:
            self._end()
            signal.set_wakeup_fd(old_waker)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(wake)
            os.close(waker)

    def _serve(self, wake: int) -> None:
        next_tick_s = time.monotonic() + TICK_S
        while True:
            poll = select.poll()
            sockets = [*self._listener.trusted, self._listener.socket]
            for descriptor in (wake, *(line.fileno() for line in sockets)):
                poll.register(descriptor, select.POLLIN)
            happened = dict(poll.poll(max(0.0, next_tick_s - time.monotonic()) * 1_000))
            if wake in happened:
                with suppress(BlockingIOError):
                    os.read(wake, 512)
            if self._signals & {signal.SIGTERM, signal.SIGINT}:
                return
            if signal.SIGHUP in self._signals:
                self._signals.discard(signal.SIGHUP)
                self._reload()
                continue
            # trusted clients first, and a bounded number of others before the next poll
            for line in sockets:
                if line.fileno() in happened:
                    self._accept(line)
            if time.monotonic() >= next_tick_s:
                next_tick_s = time.monotonic() + TICK_S
                self._tick()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                line, _ = listening.accept()
            except BlockingIOError:
                return
            except OSError:  # the client has disconnected, or no descriptors are left
                time.sleep(0.01)
                return
            self._connect(line, trusted=listening is not self._listener.socket)

    def _connect(self, line: socket.socket, *, trusted: bool) -> None:
        try:
            uid = peer_uid(line)
            rate = self._rate(uid, trusted=trusted)
            # before any lookup: a user who connects many times costs little
            if not trusted and not rate.allow():
                per_s = self._rules.limits.requests_per_s
                self._reject(line, uid, f"more requests than {per_s:g} a second")
                return
            peer = peer_process(line)
        except OSError:  # the client has disconnected
            line.close()
            return
        refusal = self._refusal(peer)
        if refusal:
            self._reject(line, uid, refusal, peer)
            return
        connection = Connection(
            line, peer, self._handler, self._leases, self._log, rate, self._ended
        )
        with self._busy:
            self._connections.add(connection)
        try:
            connection.start()
        except RuntimeError as error:  # no more threads: this client waits, the others do not
            self._ended(connection)
            self._reject(line, uid, str(error), peer)

    def _refusal(self, peer: Peer) -> str:
        limits = self._rules.limits
        with self._busy:
            everyone = len(self._connections)
            own = sum(connection.peer.uid == peer.uid for connection in self._connections)
        # caps of a node agent must not wait for many users
        if everyone >= limits.connections and not self._rules.trusts(peer):
            return f"more than {limits.connections} connections"
        if own >= limits.connections_per_user and peer.uid != os.geteuid():
            return f"more than {limits.connections_per_user} connections of {peer.user}"
        return ""

    def _reject(self, line: socket.socket, uid: int, why: str, peer: Peer | None = None) -> None:
        """Refuse a client with the reason; logged once until the next tick, with the number."""
        count = self._turned_away[uid] = self._turned_away.get(uid, 0) + 1
        if count == 1:
            with suppress(OSError):
                self._log.write("turned_away", peer or peer_process(line), why=why)
        with suppress(OSError):
            hang_up(line, PermissionDenied(f"the control daemon takes no {why}; try again later"))
        line.close()

    def _rate(self, uid: int, *, trusted: bool) -> Rate:
        """Return the rate of a user; the socket of a trusted user has its own."""
        limits = self._rules.limits
        key = (uid, trusted)
        return self._rates.setdefault(key, Rate(limits.requests_per_s, limits.burst))

    def _ended(self, connection: Connection) -> None:
        with self._busy:
            self._connections.discard(connection)

    def _tick(self) -> None:
        try:
            self._leases.retry_restores()
            self._leases.apply_defaults(self._rules, again=True)
        except Exception as error:  # noqa: BLE001 - an internal error must not end all leases
            self._log.write("fault", why=f"{type(error).__name__}: {error}")
        for uid, count in self._turned_away.items():
            if count > 1:
                self._log.write("turned_away", uid=uid, why=f"{count - 1} more connections")
        self._turned_away.clear()
        self._log.sum_up()
        self._rates = {key: rate for key, rate in self._rates.items() if not rate.full}
        if not self._watchdog.alive:
            self._log.write("note", why="the watcher was killed; it is started again")
            with suppress(OSError):
                self._watchdog = RestoreWatchdog(self._place, all_journals=True)

    def _reload(self) -> None:
        try:
            rules = read_rules(self._rules.path)
            levers = find_levers(remote=False)
        except (WattloopError, OSError, RecursionError) as error:
            self._log.write("rules_refused", why=f"{error}; the old ones stay")
            return
        if rules.socket != self._rules.socket or rules.log != self._rules.log:
            self._log.write("note", why="another socket or log is used after a restart")
        self._rules = self._handler.rules = rules
        self._log.trusts = rules.trusts
        self._listener.trust(rules.trusted_uids, rules.trusted_gids)
        self._rates.clear()
        self._leases.found(levers)
        self._leases.revoke(rules)
        self._leases.apply_defaults(rules)
        self._log.write("rules_read", why=str(rules.path))

    def _restore_leftovers(self) -> None:
        for result in restore(self._place):
            if result.fate is not RestoreStatus.IN_USE:
                fields: dict[str, Any] = {
                    "lever": result.lever,
                    "before": result.found,
                    "after": result.previous,
                }
                why = f"{result.fate.value}: left by {result.owner}. {result.message}".strip()
                self._log.write("leftover", **fields, why=why)

    def _end(self) -> None:
        _tell_systemd("STOPPING=1")
        self._listener.close()
        with self._busy:
            connections = list(self._connections)
        for connection in connections:
            connection.stop()
        give_up_s = time.monotonic() + END_S
        for connection in connections:
            connection.join(max(0.0, give_up_s - time.monotonic()))
        self._leases.close()
        self._log.write("ended", pid=os.getpid())
        self._watchdog.dismiss()
        self._log.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.add(number)


def _tell_systemd(state: str) -> None:
    """Notify systemd (`Type=notify`): the unit is started when clients can connect."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if not name:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.sendto(state.encode(), "\0" + name[1:] if name.startswith("@") else name)
