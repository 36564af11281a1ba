"""Client of the control daemon, and the levers that are set through the daemon."""

import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.control.daemon.protocol import (
    LOW_POWER,
    REPLY_MOST_B,
    SOCKET_VARIABLE,
    VERSION,
    DaemonDisconnected,
    ProtocolError,
    decode,
    decode_error,
    encode,
    socket_path,
    trusted_path,
)
from wattloop.control.lever import Lever, LeverState, Setting, format_setting
from wattloop.control.lock import close_private, keep_private
from wattloop.core.errors import ConfigError, LeverError, WattloopError
from wattloop.core.files import user_id
from wattloop.core.records import from_plain

__all__ = ["LOW_POWER", "Change", "Client", "RemoteLever", "connect"]


#     with connect() as client:
#         client.set("gpu:0/power_limit", 250.0)
#
# The lease is the connection: levers are restored when it ends, also after `kill -9`.

PATIENCE_S = 30.0
"""Another process may be restoring the device, or the disk may be busy."""


class Change(NamedTuple):
    """Value of a lever when the lease on it began, and its present value."""

    before: Setting
    after: Setting


def connect(path: str | Path | None = None, *, patience_s: float = PATIENCE_S) -> "Client":
    """Connect to a daemon: at `path`, `WATTLOOP_CONTROL_SOCKET`, or the default socket."""
    client = Client(socket_path(path), patience_s)
    client.hello()
    return client


class Client:
    """One lease. Thread-safe; not for forked children, which connect on their own.

    A lost connection without a lease is made again. With a lease its loss is reported, since the
    daemon restores the levers then.
    """

    def __init__(self, path: Path, patience_s: float = PATIENCE_S) -> None:
        self.path = path
        self.held: set[str] = set()
        """Levers that this client has set and not released."""
        self._patience_s = patience_s
        self._line: socket.socket | None = None
        self._rest = b""
        self._number = 0
        self._pid = os.getpid()
        self._busy = threading.Lock()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):  # partly initialised, or the interpreter ends
            self.close()

    def hello(self) -> dict[str, Any]:
        """Return `user`, `uid`, `trusted` as the daemon sees them, and its `wattloop` version."""
        return self._request("hello")

    def levers(self) -> list[dict[str, Any]]:
        """Return every lever of the daemon with this user's rights; see `RemoteLever`."""
        return list(self._request("levers")["levers"])

    def read(self, lever: str) -> Setting:
        """Return the present value of a lever. Raises LeverError if it is unknown or unreadable."""
        return _setting(self._request("read", lever=lever)["value"])

    def check(
        self, lever: str, value: Setting, *, job: str = "", uid: int | None = None
    ) -> Setting:
        """Return `value` as the device would accept it; sets nothing. Raises as `set` does."""
        return _setting(
            self._request("check", lever=lever, value=value, **_whose(job, uid))["value"]
        )

    def set(self, lever: str, value: Setting, *, job: str = "", uid: int | None = None) -> Change:
        """Set a lever until `release`, or until this connection ends for any reason.

        Args:
            lever: `gpu:0/power_limit`.
            value: watts or MHz, a share (`"70%"`), `"default"`, the name of a choice, or
                `LOW_POWER`.
            job: the job whose GPU it is; only for clients that the rules trust.
            uid: the user of that job.

        Raises:
            NotAllowed: the rules do not let this user do that.
            DeviceBusy: another process holds the device; the message names it.
            ConfigError: not a value of this lever, or outside the device's own limits.
            DaemonGone: the connection is lost, and the daemon restores the levers.
            LeverError: the device refuses.
        """
        reply = self._request("set", lever=lever, value=value, **_whose(job, uid))
        self.held.add(lever)
        return Change(_setting(reply["before"]), _setting(reply["after"]))

    def release(self, lever: str | None = None) -> None:
        """Restore a lever, or all of this connection. Raises LeverError if one stays journaled."""
        if lever is None:
            self.held.clear()
            self._request("release")
            return
        self.held.discard(lever)
        self._request("release", lever=lever)

    def close(self) -> None:
        """End the lease; the daemon restores everything."""
        line, self._line, self._rest = self._line, None, b""
        self.held.clear()
        if line is not None:
            # in a forked child the descriptor is closed, and its number may belong to another file
            close_private(line.detach())

    def _request(self, do: str, **fields: Any) -> dict[str, Any]:
        if os.getpid() != self._pid:
            raise LeverError(
                f"the connection to the control daemon is that of process {self._pid}, not of its "
                "children; connect again"
            )
        with self._busy:
            self._number += 1
            message = {"v": VERSION, "id": self._number, "do": do, **fields}
            # without a lease a new connection loses nothing, so retrying is safe
            for attempt in (1, 2):
                fresh = self._line is None
                try:
                    reply = self._exchange(message)
                    break
                except OSError as error:
                    held = sorted(self.held)
                    self.close()
                    if held or fresh or attempt == 2:
                        raise DaemonDisconnected(self._gone(error, held)) from None
                except WattloopError:  # the reason for the disconnect
                    self.close()
                    raise
        if reply.get("ok") is True:
            return reply
        raise decode_error(reply.get("error"))

    def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._line is None:
            self._line = self._connected()
        # the daemon has already sent the reason of its disconnect
        with suppress(BrokenPipeError, ConnectionResetError):
            self._line.sendall(encode(message))
        while True:
            try:
                reply = decode(self._next_line(self._line))
            except ProtocolError as error:
                raise OSError(f"it sent {error}") from None
            if reply.get("id") == message["id"]:
                return reply
            if reply.get("id") is None:  # sent before the disconnect
                raise decode_error(reply.get("error"))

    def _connected(self) -> socket.socket:
        """Connect through this user's own socket if there is one, else through the common one."""
        give_up_s = time.monotonic() + self._patience_s
        own = [trusted_path(self.path, uid=user_id())]
        own += [trusted_path(self.path, gid=gid) for gid in sorted({os.getegid(), *os.getgroups()})]
        for path in own:
            with suppress(OSError):
                return self._connected_to(path)
        while True:
            try:
                return self._connected_to(self.path)
            except BlockingIOError:  # its queue is full
                if time.monotonic() >= give_up_s:
                    raise
                time.sleep(0.005)

    def _connected_to(self, path: Path) -> socket.socket:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        keep_private(line.fileno())
        try:
            line.settimeout(self._patience_s)
            line.connect(str(path))
        except BaseException:
            close_private(line.detach())
            raise
        return line

    def _next_line(self, line: socket.socket) -> bytes:
        while b"\n" not in self._rest:
            more = line.recv(1 << 16)
            if not more:
                raise OSError("it hung up")
            self._rest += more
            if len(self._rest) > REPLY_MOST_B:
                raise OSError("it sent a line without an end")
        found, _, self._rest = self._rest.partition(b"\n")
        return found

    def _gone(self, error: OSError, held: list[str]) -> str:
        reason = error.strerror or str(error) or type(error).__name__
        if held:
            return (
                f"the control daemon at {self.path} is gone ({reason}): {', '.join(held)} goes "
                "back to what it was; set it again when the daemon runs"
            )
        return (
            f"no control daemon answers at {self.path} ({reason}); ask the operator to start "
            f"'wattloop control-daemon', or name its socket with {SOCKET_VARIABLE}"
        )


def _whose(job: str, uid: int | None) -> dict[str, Any]:
    return {"for": {"job": job, "uid": uid}} if job or uid is not None else {}


def _setting(value: Any) -> Setting:
    if value is None or isinstance(value, str):
        return value
    return float(value)


class RemoteLever(Lever):
    """A lever of the daemon, for use with `control.lever_session`.

    The daemon locks, journals and restores, also when this process is killed. This process needs no
    lock and no journal. Restoring it means releasing it, so that it returns to the operator's
    default even where that is outside this user's range.

        name: the name here, where cards have other numbers than in the daemon's list.
    """

    kept_elsewhere = True

    def __init__(self, client: Client, offer: Mapping[str, Any], name: str = "") -> None:
        self._client = client
        self._theirs = str(offer["name"])
        self._offer = dict(offer)
        self.name = name or self._theirs
        self.device = f"daemon:{client.path}:{offer['device']}"
        self.reads_back = bool(offer["reads_back"])
        self.tolerance = float(offer["tolerance"])

    @property
    def managed(self) -> bool:
        return bool(self._offer["managed"])

    def state(self) -> LeverState:
        """Return the daemon's state with the present value; limits are this user's range."""
        offer = self._offer
        held_by = str(offer["held_by"])
        available, reason = bool(offer["available"]), str(offer["reason"])
        value: Setting = offer["value"]
        try:
            if self.reads_back:
                value = self.read()
        except WattloopError as error:
            available, reason = False, str(error)
        note = f"through the control daemon; {offer['note']}".rstrip("; ")
        told = {
            **{"name": self.name, "available": available, "reason": reason, "value": value},
            "source": f"control daemon at {self._client.path}",
            "note": f"{note}; held by {held_by}" if held_by else note,
        }
        return from_plain(LeverState, offer | told)

    def read(self) -> Setting:
        return self._client.read(self._theirs)

    def accepted(self, value: Setting) -> Setting:
        try:
            return self._client.check(self._theirs, value)
        except (ConfigError, LeverError) as error:
            text = str(error)
            named = text if self.name in text else f"{self.name}: {text}"
            raise ConfigError(named) from None

    def check_part(self, part: str, value: Setting) -> None:
        """Accept any value: the daemon restores the previous one, whatever this user may set."""

    def write(self, value: Setting) -> None:
        self._client.set(self._theirs, value)

    def write_part(self, part: str, value: Setting) -> None:
        self._client.release(self._theirs)

    def write_text(self, value: Setting) -> str:
        unit = str(self._offer["unit"])
        return (
            f"control daemon at {self._client.path}: {self._theirs} = {format_setting(value, unit)}"
        )

    def write_part_text(self, part: str, value: Setting) -> str:
        return f"control daemon at {self._client.path}: release {self._theirs}"
