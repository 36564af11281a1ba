"""Promises of `benchmarks/kernels.py`."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.benchmarks.running import run_benchmark
from tests.support.synthetic_kernels import energy, made

from wattloop.bench.record import BenchRecord


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return run_benchmark("kernels", *words)


def gpu_findings(path: Path) -> Path:
    """Return possible results of an H200: 1.1e12 FLOP in 1.4 ms at first, in 1.6 ms later."""
    facts = {
        "device": "gpu:0", "device_name": "A GPU", "backend": "torch", "style": "eager",
        "scopes": {"gpu": energy(700.0, 600.0), "cpu": energy(80.0)}, "version": "2.0",
    }  # fmt: skip
    gemm = made(
        "gemm", dtype="bf16", flops=11 * 10**11, time_s=1.6e-3, burst_time_s=1.4e-3, **facts
    )
    triad = made("triad", bytes_moved=6 * 10**9, time_s=1.5e-3, **facts)
    plain = {"gemm_bf16_tflops": 800.0, "gemm_bf16_sustained_tflops": 680.0, "triad_tb_s": 5.0}
    data = {
        "machine": "a machine", "made": "2026-01-31", "plain_torch": [plain, plain],
        "records": [BenchRecord(results=[gemm, triad]).to_dict()],
    }  # fmt: skip
    path.write_text(json.dumps(data))
    return path


def test_bars_and_page_come_from_another_machines_results(tmp_path: Path) -> None:
    """Burst, sustained rate and bandwidth, each against plain torch; table 3.17; the machine."""
    found = gpu_findings(tmp_path / "gpu.json")
    out = tmp_path / "bars.json"
    done = run("--from-json", str(found), "--json", str(out), "--docs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    bars = {bar["name"]: bar for bar in json.loads(out.read_text())["bars"]}
    assert bars["gemm_bf16_tflops"]["value"] == pytest.approx(785.7, abs=0.1)
    assert bars["gemm_bf16_tflops"]["bar"] == 700
    assert bars["gemm_bf16_sustained_tflops"]["value"] == pytest.approx(687.5)
    assert bars["triad_tb_s"]["value"] == pytest.approx(4.0)
    assert bars["gemm_bf16_to_plain_torch"]["value"] == pytest.approx(0.982, abs=0.001)
    assert bars["triad_to_plain_torch"]["value"] == pytest.approx(0.8)
    page = (tmp_path / "kernels.md").read_text()
    assert "Machine: a machine, A GPU" in page
    assert "on 2026-01-31" in page
    assert "table 3.17" in page


def test_without_a_gpu_the_bars_are_not_claimed(tmp_path: Path) -> None:
    """The CPU's table is made, and the page says that the bars were not measured."""
    out = tmp_path / "cpu.json"
    done = run("--quick", "--json", str(out))
    assert done.returncode == 0, done.stderr
    if "no GPU here" not in done.stderr:
        pytest.skip("this machine has a GPU")
    assert all(bar["value"] is None for bar in json.loads(out.read_text())["bars"])
    both = run("--from-json", str(gpu_findings(tmp_path / "gpu.json")), str(out),
               "--docs", str(tmp_path))  # fmt: skip
    assert both.returncode == 0, both.stderr
    page = (tmp_path / "kernels.md").read_text()
    assert "Per run, bf16 on gpu:0" in page
    assert "Per run, fp32 on cpu" in page
    alone = run("--from-json", str(out), "--docs", str(tmp_path))
    assert alone.returncode == 0, alone.stderr
    assert "not run: no GPU on this machine" in (tmp_path / "kernels.md").read_text()
