"""The baseline file: figures per name and kind of machine."""

import hashlib
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.check.figures import FigureKind, FigureSeries
from wattloop.core.errors import ConfigError
from wattloop.hardware.host import Host


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
        return self.cpu, self.cpus, self.architecture

    @property
    def words(self) -> str:
        return f"{self.cpu or 'unknown CPU'}, {self.cpus} CPUs, {self.architecture}"

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


def _model(host: Host) -> str:
    for line in (host.read_text("proc", "cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "cpu model", "Model"):
            return " ".join(value.split())
    return ""


FORMAT, VERSION = "wattloop-baselines", 1


class NotComparable(ConfigError):
    """These figures have no comparable baseline; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What was found for one name on one kind of machine."""

    machine: Machine
    judged: FigureKind
    series: dict[FigureKind, FigureSeries]
    taken_wall_s: float = 0.0
    version: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "machine": self.machine.to_dict(),
            "judged": self.judged.value,
            "figures": {kind.value: series.to_dict() for kind, series in self.series.items()},
            "taken_wall_s": self.taken_wall_s,
            "wattloop": self.version,
        }

    @classmethod
    def from_dict(cls, data: Any) -> "Baseline":
        """Inverse of `to_dict`. Raises TypeError, KeyError or ValueError."""
        return cls(
            machine=Machine.from_dict(data["machine"]),
            judged=FigureKind(data["judged"]),
            series={
                FigureKind(kind): _series(FigureKind(kind), one)
                for kind, one in data["figures"].items()
            },
            taken_wall_s=float(data.get("taken_wall_s", 0.0)),
            version=str(data.get("wattloop", "")),
        )


@dataclass(slots=True)
class Baselines:
    """All baselines of one file."""

    entries: dict[str, list[Baseline]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Baselines":
        """Read a file. Raises ConfigError: missing, foreign, damaged, or of a newer version."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such baseline yet; take it with --update") from None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError(
                f"{path}: not JSON ({error}); restore it, or remove it and use --update"
            ) from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ConfigError(f"{path}: not a baselines file; name another, or take a new one")
        if data.get("version") != VERSION:
            raise ConfigError(
                f"{path}: written in version {data.get('version')} of the format, and this "
                f"wattloop reads version {VERSION}; upgrade wattloop"
            )
        try:
            entries = {
                str(name): [Baseline.from_dict(one) for one in found]
                for name, found in data["entries"].items()
            }
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{path}: damaged ({type(error).__name__}: {error}); restore it, or remove it "
                "and use --update"
            ) from None
        return cls(entries)

    @classmethod
    def read_if_any(cls, path: Path) -> "Baselines":
        return cls.read(path) if path.exists() else cls()

    def put(self, name: str, baseline: Baseline) -> None:
        """Add one; it replaces that of the same kind of machine."""
        others = [
            one for one in self.entries.get(name, []) if one.machine.kind != baseline.machine.kind
        ]
        self.entries[name] = [*others, baseline]

    def to_text(self) -> str:
        """The file's content: sorted, so that changes of one test are changes of its lines."""
        entries = {
            name: [one.to_dict() for one in sorted(found, key=lambda b: b.machine.kind)]
            for name, found in sorted(self.entries.items())
        }
        data = {"format": FORMAT, "version": VERSION, "entries": entries}
        return json.dumps(data, indent=1, allow_nan=False) + "\n"

    def find(self, name: str, machine: Machine, *, other_machine: bool = False) -> Baseline:
        """Return the baseline to compare with. Raises NotComparable without one."""
        found = self.entries.get(name)
        if not found:
            there = ", ".join(repr(one) for one in sorted(self.entries)[:5]) or "none at all"
            raise NotComparable(
                f"no baseline is called {name!r} (there is {there}); take it with --update"
            )
        for one in found:
            if one.machine.kind == machine.kind:
                return one
        if other_machine:
            return found[-1]
        raise NotComparable(
            f"the baseline of {name!r} was taken on another machine "
            f"({'; '.join(one.machine.words for one in found)}; here: {machine.words}): take one "
            "here with --update"
        )


def _series(kind: FigureKind, data: Any) -> FigureSeries:
    values = tuple(float(value) for value in data["values"])
    if not values or not all(math.isfinite(value) and value >= 0 for value in values):
        raise ValueError(f"{kind.value} has no values, or impossible ones")
    return FigureSeries(
        kind=kind,
        values=values,
        uncertainty=float(data.get("uncertainty", 0.0)),
        provenance=str(data.get("provenance", "counted")),
        parts=tuple(str(part) for part in data.get("parts", ())),
    )
