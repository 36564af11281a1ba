"""Results with known numbers."""

from typing import Any

from wattloop.bench.result import KernelEnergy, KernelResult

__all__ = ["energy", "made"]


def energy(energy_j: float, application_j: float | None = None, **facts: Any) -> KernelEnergy:
    defaults: dict[str, Any] = {
        "uncertainty_j": 0.01 * energy_j, "provenance": "measured", "domains": ("cpu:0/package",),
        "application_uncertainty_j": 0.01 * energy_j,
    }  # fmt: skip
    return KernelEnergy(energy_j=energy_j, application_j=application_j, **{**defaults, **facts})


def made(kernel: str = "gemm", **facts: Any) -> KernelResult:
    """Return ten runs of 0.1 s, 2 GFLOP and 0.5 GB each by default."""
    defaults: dict[str, Any] = {
        "backend": "numba", "style": "parallel", "threads": 1, "device": "cpu", "dtype": "fp32",
        "size": 512, "flops": 2 * 10**9, "bytes_moved": 5 * 10**8, "runs": 10, "batches": 10,
        "duration_s": 1.0, "time_s": 0.1, "time_low_s": 0.099, "time_high_s": 0.102,
        "scopes": {"cpu": energy(80.0, 30.0)},
    }  # fmt: skip
    return KernelResult(kernel=kernel, **{**defaults, **facts})
