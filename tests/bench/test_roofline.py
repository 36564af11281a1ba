"""Promises of rooflines: they belong to one session, device and format."""

import pytest

from tests.support.synthetic_kernels import made
from wattloop.bench.roofline import peaks_of, roofline

GEMM = made("gemm", flops=10**11, bytes_moved=10**8, time_s=1.0)  # 100 GFLOPS, 1000 FLOP/B
TRIAD = made("triad", flops=10**9, bytes_moved=6 * 10**9, time_s=0.3)  # 20 GB/s
STENCIL = made("stencil", flops=4 * 10**9, bytes_moved=2 * 10**9, time_s=0.2)  # 20 of 40 GFLOPS
PI = made("montecarlo", flops=10**9, bytes_moved=0, time_s=0.1)  # 10 GFLOPS


def test_each_kernel_has_its_roof() -> None:
    """min(peak, intensity x bandwidth), by hand; without data to move only the flat part."""
    peaks, points = roofline([GEMM, TRIAD, STENCIL, PI])
    (own,) = peaks
    assert (own.gflops, own.gb_s) == (pytest.approx(100.0), pytest.approx(20.0))
    assert own.ridge_flop_per_b == pytest.approx(5.0)
    share = {p.result.kernel: p.share for p in points}
    assert share == {
        "gemm": pytest.approx(1.0),
        "triad": pytest.approx(1.0),
        "stencil": pytest.approx(0.5),
        "montecarlo": pytest.approx(0.1),
    }
    assert {p.result.kernel: p.bound for p in points} == {
        "gemm": "compute", "triad": "memory", "stencil": "memory", "montecarlo": "compute",
    }  # fmt: skip


def test_a_peak_that_was_not_run_leaves_the_roof_open() -> None:
    """Peaks come from gemm and triad only, never from a data sheet."""
    peaks, points = roofline([STENCIL, TRIAD])
    assert peaks[0].gflops is None
    assert points[0].share is None
    assert points[0].bound == ""


def test_formats_and_devices_do_not_mix() -> None:
    """A bf16 peak does not bound fp32, nor a GPU's peak the CPU; bandwidth bounds every format."""
    bf16 = made("gemm", dtype="bf16", flops=10**12, time_s=1.0)
    gpu = made("gemm", device="gpu:0", flops=10**13, time_s=1.0)
    assert peaks_of([GEMM, bf16, gpu, TRIAD], "cpu", "fp32").gflops == pytest.approx(100.0)
    assert peaks_of([GEMM, bf16, gpu, TRIAD], "cpu", "bf16").gb_s == pytest.approx(20.0)
    assert peaks_of([GEMM, bf16, gpu, TRIAD], "gpu:0", "fp32").gb_s is None


def test_failed_results_make_no_roof() -> None:
    """Wrong results have no rate."""
    wrong = made("gemm", status="wrong", time_s=None)
    assert roofline([wrong]) == ([], [])
