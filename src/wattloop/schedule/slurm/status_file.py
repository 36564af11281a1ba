"""What a driver is doing, for `wattloop slurm status` and for monitoring."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError

__all__ = ["read_status", "status_path", "write_status"]


def status_path(state: Path) -> Path:
    """Beside the state."""
    return state.with_suffix(".status.json")


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    """Whole or not at all; a full disk stops no job."""
    beside = path.with_suffix(".new")
    with suppress(OSError):
        beside.write_text(json.dumps(status, default=str), "utf-8")
        beside.replace(path)


def read_status(path: Path) -> dict[str, Any]:
    """As it was last written, with whether its process is alive.

    Raises:
        ConfigError: there is none.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no driver has run with this state; start one with 'wattloop slurm run', or "
            "name its file with --state"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not readable ({error})") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: is no status of a driver")
    return {**found, "alive": _is_alive(found.get("pid"))}


def _is_alive(pid: Any) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is somebody else's
    return True
