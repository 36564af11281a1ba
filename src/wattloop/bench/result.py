"""Result of one measured kernel: time, energy and scope."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wattloop.accounting.energy_delay import Point, edp
from wattloop.core.records import from_plain, to_plain
from wattloop.meters.perf import LINE_B


@dataclass(frozen=True, kw_only=True)
class KernelEnergy:
    """Joules of one part of the machine over the measured stretch.

    Attributes:
        application_j: without what idling would have used (eq. 3.2); None without an idle line.
    """

    energy_j: float
    uncertainty_j: float
    provenance: str
    domains: tuple[str, ...]
    application_j: float | None = None
    application_uncertainty_j: float = 0.0


@dataclass(frozen=True, kw_only=True)
class KernelResult:
    """A kernel on a framework, in one style, on one device.

    `status` is `ok`, `skipped` (cannot be run so), `refused` (too large), `failed`, `wrong` (the
    result is not right: no time is given) or `timeout`; of all but `ok`, `reason` says why.
    Energies are of the whole stretch (`runs` runs in `duration_s`); the properties are per run.
    `burst_time_s` is a GPU's time before its power limit takes hold; `time_s` is what lasts.
    `clock_mhz` is that of a GPU at the end of the stretch.
    `counts` are hardware events of the stretch, `not_counted` says why others are missing.
    """

    kernel: str
    backend: str
    style: str
    threads: int
    device: str
    dtype: str
    size: int
    status: str = "ok"
    reason: str = ""
    flops: int = 0
    bytes_moved: int = 0
    runs: int = 0
    batches: int = 0
    duration_s: float = 0.0
    time_s: float | None = None
    time_low_s: float | None = None
    time_high_s: float | None = None
    burst_time_s: float | None = None
    clock_mhz: float | None = None
    counts: Mapping[str, float] = field(default_factory=dict)
    not_counted: Mapping[str, str] = field(default_factory=dict)
    scopes: Mapping[str, KernelEnergy] = field(default_factory=dict)
    check: str = ""
    check_error: float | None = None
    peak_memory_b: int | None = None
    method: str = ""
    version: str = ""
    device_name: str = ""
    run_id: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def scope(self) -> str:
        return "gpu" if self.device.startswith("gpu") else "cpu"

    @property
    def intensity(self) -> float | None:
        """FLOP per byte; None where no data has to be moved."""
        return self.flops / self.bytes_moved if self.bytes_moved else None

    @property
    def gflops(self) -> float | None:
        return self._giga_per_s(self.flops, self.time_s)

    @property
    def gb_s(self) -> float | None:
        return self._giga_per_s(self.bytes_moved, self.time_s) if self.bytes_moved else None

    @property
    def burst_gflops(self) -> float | None:
        return self._giga_per_s(self.flops, self.burst_time_s)

    @property
    def burst_gb_s(self) -> float | None:
        return self._giga_per_s(self.bytes_moved, self.burst_time_s) if self.bytes_moved else None

    @property
    def ipc(self) -> float | None:
        """Instructions per cycle of the worker's own code."""
        cycles = self.counts.get("cycles")
        instructions = self.counts.get("instructions")
        return instructions / cycles if cycles and instructions is not None else None

    @property
    def memory_b(self) -> float | None:
        """Bytes between memory and caches per run.

        By the memory controllers, which serve the whole machine; else misses of the last cache,
        which prefetchers and writing back are not part of.
        """
        moved = self.counts.get("memory_b")
        misses = self.counts.get("cache_misses")
        found = moved if moved is not None else None if misses is None else misses * LINE_B
        return found / self.runs if found is not None and self.runs else None

    def power_w(self, scope: str | None = None) -> float | None:
        """Mean power over the stretch, of the scope at work unless another is named."""
        return self._energy_over(self.duration_s, "energy_j", scope)

    def energy_j(self, scope: str | None = None) -> float | None:
        return self._energy_over(self.runs, "energy_j", scope)

    def application_j(self, scope: str | None = None) -> float | None:
        return self._energy_over(self.runs, "application_j", scope)

    def uncertainty_j(self, scope: str | None = None) -> float | None:
        return self._energy_over(self.runs, "uncertainty_j", scope)

    def edp_js(self, scope: str | None = None) -> float | None:
        energy_j = self.energy_j(scope)
        if energy_j is None or self.time_s is None:
            return None
        return edp(Point(self.time_s, energy_j))

    def gflops_per_w(self, scope: str | None = None) -> float | None:
        power_w = self.power_w(scope)
        return self.gflops / power_w if self.gflops and power_w else None

    def _giga_per_s(self, count: int, time_s: float | None) -> float | None:
        return count / time_s / 1e9 if time_s else None

    def _energy_over(self, count: float, name: str, scope: str | None) -> float | None:
        found = self.scopes.get(scope or self.scope)
        value: float | None = None if found is None else getattr(found, name)
        return None if value is None or not count else value / count

    @property
    def key(self) -> str:
        where = f"{self.device} {self.threads}"
        return f"{self.kernel} {self.size} {self.dtype} {self.backend} {self.style} {where}"

    def to_dict(self) -> dict[str, Any]:
        return to_plain(self) | {
            "scopes": {
                name: {
                    **to_plain(part),
                    "per_run_j": self.energy_j(name),
                    "application_per_run_j": self.application_j(name),
                    "power_w": self.power_w(name),
                    "edp_js": self.edp_js(name),
                    "gflops_per_w": self.gflops_per_w(name),
                }
                for name, part in self.scopes.items()
            },
            "gflops": self.gflops,
            "gb_s": self.gb_s,
            "burst_gflops": self.burst_gflops,
            "burst_gb_s": self.burst_gb_s,
            "ipc": self.ipc,
            "memory_b": self.memory_b,
            "intensity_flop_per_b": self.intensity,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "KernelResult":
        return from_plain(cls, data)
