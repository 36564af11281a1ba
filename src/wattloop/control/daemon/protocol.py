"""The daemon's wire protocol: one JSON object per line, and the identity of the peer."""

import json
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattloop.control.lever import WriteOrderError
from wattloop.control.lock import process_command
from wattloop.core.errors import ConfigError, DeviceBusy, LeverError, WattloopError
from wattloop.core.files import user_name

SO_PEERGROUPS = 59
"""Since Linux 4.13 on x86 and ARM; Python has no name for it."""

MOST_B = 1_024
"""Limit of Python: 256 groups."""

CREDENTIALS = struct.Struct("iII")
"""Process, user, group; numbers of users and groups need all 32 bits."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A process that has connected, as it was at that time."""

    pid: int
    uid: int
    gids: frozenset[int]
    user: str
    command: str

    def __str__(self) -> str:
        # others see the program, not its arguments
        program = self.command.partition(" ")[0] or "unknown"
        return f"{self.user} (process {self.pid}, {program})"


def peer_uid(line: socket.socket) -> int:
    """Return the user at the other end, without further lookups."""
    data = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(data)[1])


def peer_process(line: socket.socket) -> Peer:
    """Return the process at the other end, from the kernel and not from its own claims."""
    data = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, gid = CREDENTIALS.unpack(data)
    user = user_name(uid)
    return Peer(pid, uid, frozenset({gid, *_groups(line, user, gid)}), user, process_command(pid))


def _groups(line: socket.socket, user: str, gid: int) -> tuple[int, ...]:
    """Return its supplementary groups, from the group database where the kernel has none."""
    with suppress(OSError, struct.error):
        data = line.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, MOST_B)
        return struct.unpack(f"{len(data) // 4}I", data)
    with suppress(OSError, KeyError):
        return tuple(os.getgrouplist(user, gid))
    return ()


# Messages between client and daemon: one JSON object per line, in both directions.
#
#     -> {"v": 1, "id": 7, "do": "set", "lever": "gpu:0/power_limit", "value": 250}
#     <- {"v": 1, "id": 7, "ok": true, "before": 400.0, "after": 250.0}
#     <- {"v": 1, "id": 7, "ok": false, "error": {"kind": "refused", "message": "..."}}
#
# `do` is one of `hello`, `levers`, `read`, `check`, `set`, `release`. A lease is the connection:
# the daemon restores its levers when it ends.

VERSION = 1
SOCKET_VARIABLE = "WATTLOOP_CONTROL_SOCKET"
DEFAULT_SOCKET = Path("/run/wattloop/control.sock")
REQUEST_MOST_B = 4_096
REPLY_MOST_B = 1 << 20
"""A machine of 16 GPUs describes its 50 levers in 40 kB."""

LOW_POWER = "low_power"
"""In place of a value: the low-power mode of the operator's rules."""


class PermissionDenied(LeverError):
    """The daemon's rules do not let this user do that."""


class DaemonDisconnected(LeverError):
    """The daemon ended, or closed the connection, and restores what was set over it."""


class ProtocolError(WattloopError):
    """Received data does not follow the protocol; the sender is disconnected."""


KINDS: dict[str, type[WattloopError]] = {
    "refused": PermissionDenied,
    "busy": DeviceBusy,
    "waits": WriteOrderError,
    "value": ConfigError,
    "protocol": ProtocolError,
    "lever": LeverError,
}
"""Kind of an error on the wire -> exception on both sides; the first match is used."""


def socket_path(named: str | Path | None = None) -> Path:
    """Return `path`, the socket of `WATTLOOP_CONTROL_SOCKET`, or the machine's."""
    return Path(named or os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET)


def trusted_path(path: Path, *, uid: int = -1, gid: int = -1) -> Path:
    """Return the socket of a trusted user or group next to the common one."""
    return path.with_name(f"{path.name}.u{uid}" if uid >= 0 else f"{path.name}.g{gid}")


def encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Decode one line. Raises ProtocolError: not JSON, not an object, or of another version."""
    try:
        message = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise ProtocolError("a line that is not JSON") from None
    if not isinstance(message, dict):
        raise ProtocolError("a line that is not a JSON object")
    version = message.get("v")
    if version != VERSION or isinstance(version, bool):
        raise ProtocolError(
            f"version {str(version)[:20]!r} of the protocol; here is version {VERSION}"
        )
    return message


def encode_error(error: WattloopError) -> dict[str, str]:
    kind = next((kind for kind, known in KINDS.items() if isinstance(error, known)), "lever")
    return {"kind": kind, "message": str(error)}


def decode_error(data: Any) -> WattloopError:
    known = data if isinstance(data, dict) else {}
    message = "".join(c for c in str(known.get("message", "")) if c.isprintable())
    kind = KINDS.get(str(known.get("kind")), LeverError)
    return kind(message or "the control daemon refuses without a reason")


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number")
