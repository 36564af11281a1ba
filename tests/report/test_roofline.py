"""Promises of the roofline as a figure."""

from pathlib import Path

import pytest

from tests.support.synthetic_kernels import energy, made
from wattloop.report.figures.chart import spec_of
from wattloop.report.figures.roofline import roofline_figures

pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")

GEMM = made("gemm", flops=10**11, bytes_moved=10**8, time_s=1.0)  # 100 GFLOPS
TRIAD = made("triad", flops=10**9, bytes_moved=6 * 10**9, time_s=0.3)  # 20 GB/s
PI = made("montecarlo", bytes_moved=0)


def test_roof_and_points_are_at_their_places() -> None:
    """The roof bends at the ridge (5 FLOP/B); a kernel without data to move is not on it."""
    charts = roofline_figures([GEMM, TRIAD, PI])
    assert set(charts) == {"roofline-cpu-fp32", "power-cpu-fp32"}
    roof, points = spec_of(charts["roofline-cpu-fp32"])["layer"]
    values = {tuple(sorted(p.items())) for p in roof["data"]["values"]}
    assert (("gflops", 100.0), ("intensity", 5.0), ("order", 1)) in {
        tuple((k, round(v, 6)) for k, v in row) for row in values
    }
    assert {p["kernel"] for p in points["data"]["values"]} == {"gemm", "triad"}


def test_without_peaks_there_is_no_roof() -> None:
    """Only measured peaks are drawn."""
    assert set(roofline_figures([made("stencil")])) == {"power-cpu-fp32"}
    assert roofline_figures([made("stencil", scopes={})]) == {}


def test_files_are_written(tmp_path: Path) -> None:
    """SVG, PNG and a page, one roofline per format and device."""
    pytest.importorskip("vl_convert", reason="pip install 'wattloop[figures]'")
    from wattloop.report.figures.render import save

    gpu = [
        made(k, device="gpu:0", dtype="bf16", device_name="A GPU", scopes={"gpu": energy(500.0)})
        for k in ("gemm", "triad")
    ]
    written = save(roofline_figures([GEMM, TRIAD, *gpu]), tmp_path, title="t")
    names = {path.name for path in written}
    assert {"roofline-cpu-fp32.svg", "roofline-gpu0-bf16.png", "index.html"} <= names
    assert "A GPU" in (tmp_path / "roofline-gpu0-bf16.svg").read_text()
