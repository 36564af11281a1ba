"""The host: roots of its file trees, and its identity."""

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path


class Host:
    """Roots of the kernel's file trees. In a container the host's are mounted elsewhere."""

    def __init__(self, sysfs: Path = Path("/sys"), procfs: Path = Path("/proc")) -> None:
        self.sysfs = sysfs
        self.procfs = procfs

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Host":
        """Return roots named by `WATTLOOP_SYSFS_ROOT` and `WATTLOOP_PROCFS_ROOT`."""
        env = os.environ if environment is None else environment
        return cls(
            sysfs=Path(env.get("WATTLOOP_SYSFS_ROOT") or "/sys"),
            procfs=Path(env.get("WATTLOOP_PROCFS_ROOT") or "/proc"),
        )

    @cached_property
    def name(self) -> str:
        return os.uname().nodename or "localhost"

    @cached_property
    def boot_id(self) -> str:
        """Changes at every boot; monotonic times of different boots cannot be compared."""
        return self.read_text("proc", "sys/kernel/random/boot_id") or ""

    @cached_property
    def machine_id(self) -> str:
        """Stable identity of the machine, for idle lines stored per machine."""
        for candidate in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
            try:
                text = candidate.read_text().strip()
            except OSError:
                continue
            if text:
                return text
        return self.name

    def read_text(self, tree: str, relative: str) -> str | None:
        """Stripped content of a file below a root (`sys` or `proc`); None if unreadable."""
        root = self.sysfs if tree == "sys" else self.procfs
        try:
            return (root / relative).read_text(errors="replace").strip()
        except OSError:
            return None
