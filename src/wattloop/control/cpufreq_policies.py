"""cpufreq's policies: groups of cores that share a clock, and levers that set all of them.

Each policy gets its own previous value back, even where they differed.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from wattloop.control.file_lever import writable_or_why, write_file
from wattloop.control.lever import Lever, Setting, shown
from wattloop.core.errors import LeverError
from wattloop.hardware.host import Host

__all__ = ["PolicyLever", "policies"]

DEVICE = "cpu"


class PolicyLever(Lever):
    """A file of the same name in every policy."""

    device = DEVICE
    leaf: str

    def __init__(self, policies: Sequence[Path], host: Host) -> None:
        self._policies = {policy_name(path): path for path in policies}
        self._host = host

    def read(self) -> Setting:
        """The value all policies share; where they differ, all of them as text."""
        values = list(dict.fromkeys(self.parts().values()))
        if len(values) == 1:
            return values[0]
        return ", ".join(sorted(shown(value) for value in values))

    def parts(self) -> Mapping[str, Setting]:
        """Policy -> value."""
        return {part: self.read_part(part) for part in self._policies}

    def read_part(self, part: str) -> Setting:
        """One policy's file."""
        return self._read(part, self._file(part))

    def write(self, value: Setting) -> None:
        """To every policy."""
        for part, own in self.parts_of(value).items():
            self.write_part(part, own)

    def write_part(self, part: str, value: Setting) -> None:
        """To one policy."""
        write_file(f"{self.name} of {part}", self._file(part), self._text(value))

    def write_part_text(self, part: str, value: Setting) -> str:
        """One file."""
        return f"write {self._text(value)} to {self._file(part)}"

    def write_text(self, value: Setting) -> str:
        """One line per policy."""
        return "\n".join(self.write_part_text(p, own) for p, own in self.parts_of(value).items())

    def where(self) -> dict[str, str]:
        """The sysfs."""
        return {"WATTLOOP_SYSFS_ROOT": str(self._host.sysfs.absolute())}

    @abstractmethod
    def _read(self, part: str, path: Path) -> Setting: ...

    @abstractmethod
    def _text(self, value: Setting) -> str: ...

    def _file(self, part: str) -> Path:
        policy = self._policies.get(part)
        if policy is None:
            raise LeverError(f"{self.name}: {part} is gone: its cores have been taken offline")
        return policy / self.leaf

    def _permission(self) -> tuple[bool, str, str]:
        """Of the first policy that may not be written; the remedy is for all of them."""
        for policy in self._policies.values():
            writable, reason, remedy = writable_or_why(policy / self.leaf)
            if not writable:
                every = str(policy.parent / "*" / self.leaf)
                return False, reason, remedy.replace(str(policy / self.leaf), every)
        return True, "", ""

    def _cores(self) -> str:
        count = len(self._policies)
        return f"{count} policies" if count > 1 else "1 policy"


def policy_name(directory: Path) -> str:
    """`policy0`, or `cpu0` on kernels without policies."""
    return directory.parent.name if directory.name == "cpufreq" else directory.name


def policies(host: Host) -> list[Path]:
    """Directories of all policies, in numeric order."""
    root = host.sysfs / "devices/system/cpu"
    found = list(root.glob("cpufreq/policy*")) or list(root.glob("cpu[0-9]*/cpufreq"))
    return sorted(found, key=lambda path: int("".join(re.findall(r"\d", policy_name(path)))))
