"""Roofline: rate of a kernel relative to its device's peaks (Williams et al., 2009).

attainable = min(peak, intensity x bandwidth)

Peaks are not those of a data sheet but the best of the same session: GEMM's GFLOPS in the same
number format, TRIAD's GB/s in any. A kernel that does better than its roof found reuse in caches
that its byte count ("each datum once") does not know, or the peak kernel was run too small.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from wattloop.bench.result import KernelResult


class Peaks(NamedTuple):
    """Best rates of one device in one number format; None where its kernel was not run."""

    device: str
    dtype: str
    gflops: float | None
    gb_s: float | None
    gflops_from: str = ""
    gb_s_from: str = ""

    @property
    def ridge_flop_per_b(self) -> float | None:
        """The intensity from which on computing is the limit."""
        return self.gflops / self.gb_s if self.gflops and self.gb_s else None

    def attainable_gflops(self, intensity: float | None) -> float | None:
        """The roof above this intensity; None for no data means the flat part."""
        if intensity is None:
            return self.gflops
        if self.gflops is None or self.gb_s is None:
            return None
        return min(self.gflops, intensity * self.gb_s)


class RooflinePoint(NamedTuple):
    """A kernel under its roof."""

    result: KernelResult
    attainable_gflops: float | None
    bound: str
    """`compute` or `memory`; empty where a peak is missing."""

    @property
    def share(self) -> float | None:
        reached = self.result.gflops
        if reached is None or not self.attainable_gflops:
            return None
        return reached / self.attainable_gflops


def peaks_of(results: Iterable[KernelResult], device: str, dtype: str) -> Peaks:
    here = [r for r in results if r.ok and r.device == device]
    gemms = [r for r in here if r.kernel == "gemm" and r.dtype == dtype]
    triads = [r for r in here if r.kernel == "triad"]
    fastest = max(gemms, key=lambda r: r.gflops or 0.0, default=None)
    widest = max(triads, key=lambda r: r.gb_s or 0.0, default=None)
    return Peaks(
        device=device,
        dtype=dtype,
        gflops=None if fastest is None else fastest.gflops,
        gb_s=None if widest is None else widest.gb_s,
        gflops_from="" if fastest is None else _name(fastest),
        gb_s_from="" if widest is None else _name(widest),
    )


def roofline(results: Sequence[KernelResult]) -> tuple[list[Peaks], list[RooflinePoint]]:
    """Peaks for each device and format, and every result under them."""
    pairs = dict.fromkeys((r.device, r.dtype) for r in results if r.ok)
    peaks = {pair: peaks_of(results, *pair) for pair in pairs}
    points = []
    for result in results:
        if result.ok:
            own = peaks[result.device, result.dtype]
            attainable = own.attainable_gflops(result.intensity)
            points.append(RooflinePoint(result, attainable, _bound(result, own)))
    return list(peaks.values()), points


def to_dict(peaks: Peaks) -> dict[str, Any]:
    return {**peaks._asdict(), "ridge_flop_per_b": peaks.ridge_flop_per_b}


def _bound(result: KernelResult, peaks: Peaks) -> str:
    if result.intensity is None:
        return "compute"
    ridge = peaks.ridge_flop_per_b
    if ridge is None:
        return ""
    return "compute" if result.intensity >= ridge else "memory"


def _name(result: KernelResult) -> str:
    return f"{result.backend} {result.style}"
