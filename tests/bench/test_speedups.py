"""Promises of speed-ups: the thesis's tables 3.15 and 3.16, and the useful number of threads."""

import pytest

from tests.support.synthetic_kernels import energy, made
from wattloop.bench.result import KernelResult
from wattloop.bench.speedups import speedups, threads_stop_paying


def threads(count: int, time_s: float, energy_j: float, **facts: object) -> KernelResult:
    """Return a result of 10 runs that took `energy_j` in all."""
    scopes = {"cpu": energy(energy_j, energy_j / 2), "dram": energy(energy_j / 10)}
    return made(threads=count, time_s=time_s, scopes=scopes, **facts)


def test_simd_is_compared_with_scalar() -> None:
    """The thesis's GEMM on AMD: 124.83 s and 2201 J scalar, 29.02 s and 519 J with AVX."""
    scalar = threads(1, 124.83, 9160.88, style="scalar")
    simd = threads(1, 29.02, 2151.76, style="simd")
    found = {s.result.style: s for s in speedups([scalar, simd])}
    assert found["scalar"].time == 1.0
    assert found["simd"].time == pytest.approx(4.30, abs=0.005)
    assert found["simd"].energy == pytest.approx(4.26, abs=0.005)
    assert found["simd"].dram == pytest.approx(4.26, abs=0.005)


def test_threads_are_compared_with_one() -> None:
    """`parallel` on one thread where it was run, else the same loop as `simd`."""
    one, simd = threads(1, 1.0, 100.0), threads(1, 0.9, 90.0, style="simd")
    four = threads(4, 0.25, 50.0)
    assert speedups([one, simd, four])[-1].time == pytest.approx(4.0)
    assert speedups([simd, four])[-1].time == pytest.approx(3.6)
    assert speedups([four]) == []


def test_application_energy_below_its_uncertainty_is_not_compared() -> None:
    """A ratio of two noisy values is not a speed-up."""
    one = made(scopes={"cpu": energy(100.0, 0.5)})
    two = made(threads=2, scopes={"cpu": energy(60.0, 30.0)})
    assert speedups([one, two])[-1].application is None
    assert speedups([one, two])[-1].energy == pytest.approx(100 / 60)


def test_other_kernels_sizes_and_formats_are_no_reference() -> None:
    """Only the same work is compared, and GPUs are left out."""
    four = threads(4, 0.25, 50.0)
    others = [
        threads(1, 1.0, 1.0, kernel="triad"), threads(1, 1.0, 1.0, size=9),
        threads(1, 1.0, 1.0, dtype="fp64"), threads(1, 1.0, 1.0, backend="torch"),
        threads(1, 1.0, 1.0, device="gpu:0"),
    ]  # fmt: skip
    assert [s for s in speedups([*others, four]) if s.result is four] == []


def test_energy_may_stop_falling_before_time() -> None:
    """The thesis's DIST on AMD: energy is best at 16 threads and so is time; SPMV: 16 and 32."""
    dist = [(1, 3.44, 289.16), (2, 2.03, 177.53), (4, 1.33, 142.91), (8, 1.15, 136.36),
            (16, 0.90, 118.28), (32, 0.98, 132.67)]  # fmt: skip
    (found,) = threads_stop_paying([threads(*row) for row in dist])
    assert (found.energy_threads, found.time_threads) == (16, 16)
    spmv = [(1, 14.26, 1108.5), (8, 3.07, 327.58), (16, 1.87, 227.27), (32, 1.63, 229.85)]
    (found,) = threads_stop_paying([threads(*row) for row in spmv])
    assert (found.energy_threads, found.time_threads) == (16, 32)
    assert found.text == "energy stops falling at 16 threads, time at 32 threads"


def test_noise_is_not_a_gain() -> None:
    """One percent less energy does not justify twice the threads."""
    (found,) = threads_stop_paying([threads(1, 1.0, 100.0), threads(2, 0.99, 99.0)])
    assert (found.energy_threads, found.time_threads) == (1, 1)


def test_without_energy_only_time_is_reported() -> None:
    """Missing is not zero."""
    rows = [made(threads=1, scopes={}), made(threads=2, time_s=0.05, scopes={})]
    (found,) = threads_stop_paying(rows)
    assert found.energy_threads is None
    assert "energy is not known" in found.text
