"""What a client and the daemon say to each other: one JSON object per line, in both directions.

-> {"v": 1, "id": 7, "do": "set", "lever": "gpu:0/power_limit", "value": 250}
<- {"v": 1, "id": 7, "ok": true, "before": 400.0, "after": 250.0}
<- {"v": 1, "id": 7, "ok": false, "error": {"kind": "refused", "message": "..."}}

`do` is one of `hello`, `levers`, `read`, `check`, `set`, `release`. A lease is the connection: what
was set over it is put back when it ends.
"""

import json
import os
from pathlib import Path
from typing import Any

from wattloop.control.lever import WaitsForAnother
from wattloop.core.errors import ConfigError, DeviceBusy, LeverError, WattloopError

__all__ = [
    "DEFAULT_SOCKET",
    "LOW_POWER",
    "REPLY_MOST_B",
    "REQUEST_MOST_B",
    "SOCKET_VARIABLE",
    "VERSION",
    "DaemonGone",
    "NotAllowed",
    "Rubbish",
    "decoded",
    "encoded",
    "error_from",
    "error_of",
    "socket_path",
    "trusted_path",
]

VERSION = 1
SOCKET_VARIABLE = "WATTLOOP_CONTROL_SOCKET"
DEFAULT_SOCKET = Path("/run/wattloop/control.sock")
REQUEST_MOST_B = 4_096
REPLY_MOST_B = 1 << 20
"""A machine of 16 GPUs describes its 50 levers in 40 kB."""
LOW_POWER = "low_power"
"""In place of a value: what the operator's rules say low power is."""


class NotAllowed(LeverError):
    """The daemon's rules do not let this user do that."""


class DaemonGone(LeverError):
    """The daemon ended, or cut the connection: what was set over it is put back."""


class Rubbish(WattloopError):
    """What arrived is none of our protocol; whoever sent it is cut off."""


KINDS: dict[str, type[WattloopError]] = {
    "refused": NotAllowed,
    "busy": DeviceBusy,
    "waits": WaitsForAnother,
    "value": ConfigError,
    "protocol": Rubbish,
    "lever": LeverError,
}
"""Kind of an error on the wire -> exception on both sides; the first that fits is said."""


def socket_path(named: str | Path | None = None) -> Path:
    """The socket named, the one `WATTLOOP_CONTROL_SOCKET` names, or the machine's."""
    return Path(named or os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET)


def trusted_path(path: Path, *, uid: int = -1, gid: int = -1) -> Path:
    """The socket of a trusted user or group next to the common one."""
    return path.with_name(f"{path.name}.u{uid}" if uid >= 0 else f"{path.name}.g{gid}")


def encoded(message: dict[str, Any]) -> bytes:
    """One line."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decoded(line: bytes) -> dict[str, Any]:
    """One line as an object.

    Raises:
        Rubbish: not JSON, not an object, or of another version.
    """
    try:
        message = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Rubbish("a line that is not JSON") from None
    if not isinstance(message, dict):
        raise Rubbish("a line that is not a JSON object")
    version = message.get("v")
    if version != VERSION or isinstance(version, bool):
        raise Rubbish(f"version {str(version)[:20]!r} of the protocol; here is version {VERSION}")
    return message


def error_of(error: WattloopError) -> dict[str, str]:
    """An exception for the wire."""
    kind = next((kind for kind, known in KINDS.items() if isinstance(error, known)), "lever")
    return {"kind": kind, "message": str(error)}


def error_from(data: Any) -> WattloopError:
    """An exception from the wire."""
    known = data if isinstance(data, dict) else {}
    message = "".join(c for c in str(known.get("message", "")) if c.isprintable())
    kind = KINDS.get(str(known.get("kind")), LeverError)
    return kind(message or "the control daemon refuses without a reason")


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number")
