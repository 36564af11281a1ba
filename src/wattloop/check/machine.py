"""Which kind of machine a figure belongs to."""

import hashlib
import os
from typing import Any, NamedTuple

from wattloop.hardware.host import Host

__all__ = ["Machine"]


class Machine(NamedTuple):
    """What must be the same for two figures to be compared, and which specimen it was.

    Hosted runners have another identity at every start, so the kind is what counts. The specimen
    is a digest: a baselines file is published with its code, and names no host.
    """

    cpu: str
    cpus: int
    architecture: str
    specimen: str = ""

    @classmethod
    def here(cls, host: Host | None = None) -> "Machine":
        """This machine."""
        host = host or Host.from_environment()
        identity = host.machine_id.encode()
        return cls(
            cpu=_model(host),
            cpus=os.cpu_count() or 1,
            architecture=os.uname().machine,
            specimen=hashlib.sha256(identity).hexdigest()[:12],
        )

    @classmethod
    def from_dict(cls, data: Any) -> "Machine":
        """Inverse of `to_dict`. Raises TypeError, KeyError or ValueError."""
        return cls(
            str(data["cpu"]),
            int(data["cpus"]),
            str(data["architecture"]),
            str(data.get("specimen", "")),
        )

    @property
    def kind(self) -> tuple[str, int, str]:
        """What has to agree."""
        return self.cpu, self.cpus, self.architecture

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.cpu or 'unknown CPU'}, {self.cpus} CPUs, {self.architecture}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return self._asdict()


def _model(host: Host) -> str:
    for line in (host.read_text("proc", "cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "cpu model", "Model"):
            return " ".join(value.split())
    return ""
