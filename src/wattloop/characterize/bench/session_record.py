"""Everything one session of `bench` found, as plain data that can be kept, sent and read back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattloop.characterize.bench.idle_power import IdleByThreads
from wattloop.characterize.bench.result import KernelResult
from wattloop.characterize.bench.roofline import roofline, to_dict
from wattloop.characterize.bench.speedups import speedups, threads_stop_paying
from wattloop.core.errors import ConfigError

__all__ = ["BenchRecord"]

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class BenchRecord:
    """Results with what is needed to understand them."""

    results: Sequence[KernelResult]
    left_out: Sequence[Mapping[str, str]] = ()
    idle: Mapping[str, Any] = field(default_factory=dict)
    idle_by_threads: Sequence[IdleByThreads] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    missing: Sequence[Mapping[str, str]] = ()
    warnings: Sequence[str] = ()
    experiment_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """What `--json` writes."""
        peaks, points = roofline(self.results)
        shares = {id(p.result): p for p in points}
        return {
            "version": VERSION,
            "experiment_id": self.experiment_id,
            "machine": dict(self.machine),
            "results": [
                {
                    **r.to_dict(),
                    "attainable_gflops": shares[id(r)].attainable_gflops if r.ok else None,
                    "roofline_share": shares[id(r)].share if r.ok else None,
                    "bound": shares[id(r)].bound if r.ok else "",
                }
                for r in self.results
            ],
            "peaks": [to_dict(p) for p in peaks],
            "speedups": [
                {
                    "key": s.result.key,
                    "reference": s.reference.key,
                    "time": s.time,
                    "energy": s.energy,
                    "application_energy": s.application,
                    "dram_energy": s.dram,
                }
                for s in speedups(self.results)
            ],
            "threads_stop_paying": [
                {**s._asdict(), "text": s.text} for s in threads_stop_paying(self.results)
            ],
            "idle": dict(self.idle),
            "idle_by_threads": [row._asdict() for row in self.idle_by_threads],
            "left_out": [dict(item) for item in self.left_out],
            "missing": [dict(item) for item in self.missing],
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "BenchRecord":
        """Inverse of `to_dict`; what can be derived is derived anew.

        Raises:
            ConfigError: not a file of ours, or of a newer version.
        """
        version = data.get("version")
        if not isinstance(version, int) or "results" not in data:
            raise ConfigError("this is not what 'wattloop bench --json' writes")
        if version > VERSION:
            raise ConfigError(f"written by a newer wattloop (format {version}); upgrade")
        try:
            return cls(
                results=[KernelResult.from_dict(r) for r in data["results"]],
                left_out=data.get("left_out", ()),
                idle=data.get("idle", {}),
                idle_by_threads=[IdleByThreads(**r) for r in data.get("idle_by_threads", ())],
                machine=data.get("machine", {}),
                missing=data.get("missing", ()),
                warnings=data.get("warnings", ()),
                experiment_id=data.get("experiment_id"),
            )
        except (KeyError, TypeError) as error:
            raise ConfigError(f"this bench file is damaged ({error}); run it again") from None
