"""State file of the driver with its released jobs, which survives `kill -9`; its status file."""

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from wattloop.core.errors import ConfigError
from wattloop.core.files import FileLock, atomic_write, atomic_write_json, state_folder
from wattloop.schedule.driver.inventory import ReleasedJob
from wattloop.schedule.slurm.reservation_gate import PREFIX

VERSION = 1
_RELEASED = TypeAdapter(list[ReleasedJob])


def default_state_path() -> Path:
    """Return `/var/lib/wattloop/slurm/state.json` for root, else a path in the state folder."""
    if os.geteuid() == 0:
        return Path("/var/lib/wattloop/slurm/state.json")
    return state_folder() / "slurm" / "state.json"


class DriverState:
    """State of a driver: released jobs that have not started, and the usage of users.

    Attributes:
        gate_name: name of this driver's reservation, the same after a restart.
        released: released jobs, by key. Written before Slurm is called.
        use_gpu_s: GPU seconds of each user's finished jobs.
        preempting: preempted jobs whose start delay has not been cleared yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.gate_name = f"{PREFIX}{secrets.token_hex(4)}"
        self.released: dict[str, ReleasedJob] = {}
        self.use_gpu_s: dict[str, float] = {}
        self.preempting: dict[str, float] = {}
        self._lock = FileLock(path.with_suffix(".lock"))
        self._saved = ""

    @classmethod
    def load(cls, path: Path) -> "DriverState":
        """Load the state; a new one without a file.

        Raises:
            ConfigError: the file is not a state file; it is not overwritten.
        """
        state = cls(path)
        try:
            data = json.loads(path.read_text("utf-8"))
            state._fill(data)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path}: not a state file of a Slurm driver ({type(error).__name__}: {error}); "
                "move it away and delete a left-over reservation wattloop_* ('scontrol show "
                "reservation')"
            ) from None
        return state

    def lock(self) -> None:
        """Lock the file against other drivers until the process ends.

        Raises:
            ConfigError: another driver has locked it, or the folder is not writable.
        """
        try:
            acquired = self._lock.acquire()
        except OSError as error:
            raise ConfigError(
                f"{self.path.parent}: {error.strerror}; name another file with --state"
            ) from None
        if not acquired:
            raise ConfigError(
                f"{self.path}: another 'wattloop slurm run' uses it; stop that one, or give this "
                "one its own file with --state"
            )

    def unlock(self) -> None:
        self._lock.release()

    def save(self) -> None:
        """Write the state atomically, unless it is unchanged."""
        text = json.dumps(self._to_dict())
        if text != self._saved:
            atomic_write(self.path, text, durable=True)
            self._saved = text

    def _to_dict(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "gate_name": self.gate_name,
            "opened": [asdict(each) for each in self.released.values()],
            "preempting": self.preempting,
            "use_gpu_s": self.use_gpu_s,
        }

    def _fill(self, data: Mapping[str, Any]) -> None:
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']}, known is {VERSION}")
        name = str(data["gate_name"])
        if not name.startswith(PREFIX):
            raise ValueError(f"gate_name {name!r}")
        self.gate_name = name
        self.released = {each.key: each for each in _RELEASED.validate_python(data["opened"])}
        self.preempting = {str(k): float(v) for k, v in data["preempting"].items()}
        self.use_gpu_s = {str(k): float(v) for k, v in data["use_gpu_s"].items()}


def status_path(state: Path) -> Path:
    return state.with_suffix(".status.json")


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    """Write the status file atomically; a full disk must not stop jobs."""
    with suppress(OSError):
        atomic_write_json(path, status, default=str)


def read_status(path: Path) -> dict[str, Any]:
    """Read the status file and check whether its process is alive."""
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
        raise ConfigError(f"{path}: not a status file of a driver")
    return {**found, "alive": _is_alive(found.get("pid"))}


def _is_alive(pid: Any) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # the process belongs to another user
    return True
