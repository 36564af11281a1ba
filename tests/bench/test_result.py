"""Promises of the figures of one measured kernel, checked by hand."""

import json

import pytest

from tests.support.synthetic_kernels import energy, made
from wattloop.bench.idle import IdleByThreads
from wattloop.bench.record import BenchRecord
from wattloop.bench.result import KernelResult
from wattloop.core.errors import ConfigError


def test_rates_and_energies_are_per_run() -> None:
    """10 runs of 0.1 s with 80 J:

    20 GFLOPS, 5 GB/s, 80 W, 8 J a run of which 3 J are the kernel's own.
    """
    result = made()
    assert result.gflops == pytest.approx(20.0)
    assert result.gb_s == pytest.approx(5.0)
    assert result.intensity == pytest.approx(4.0)
    assert result.power_w() == pytest.approx(80.0)
    assert result.energy_j() == pytest.approx(8.0)
    assert result.application_j() == pytest.approx(3.0)
    assert result.edp_js() == pytest.approx(0.8)
    assert result.gflops_per_w() == pytest.approx(0.25)


def test_missing_is_not_zero() -> None:
    """A scope without readings, and bytes that need not move, are None."""
    result = made(bytes_moved=0)
    assert result.energy_j("gpu") is None
    assert result.power_w("dram") is None
    assert result.edp_js("node") is None
    assert result.gb_s is None
    assert result.intensity is None
    assert made(scopes={"cpu": energy(80.0)}).application_j() is None


def test_scope_follows_the_device() -> None:
    """A GPU's kernel is judged by the GPU's joules."""
    result = made(device="gpu:1", scopes={"gpu": energy(500.0), "cpu": energy(80.0)})
    assert result.power_w() == pytest.approx(500.0)
    assert result.power_w("cpu") == pytest.approx(80.0)


def test_records_survive_json() -> None:
    """A record written on one machine is read on another, and derived figures are computed
    again.
    """
    record = BenchRecord(
        results=[made(), made("triad", status="failed", reason="x", time_s=None, scopes={})],
        left_out=[{"what": "cupy", "reason": "not installed"}],
        idle={"note": "n"},
        idle_by_threads=[IdleByThreads(2, 1.0, "cpu:0/package", 50.0, 50.0, "measured")],
        warnings=["w"],
        experiment_id="bench-1",
    )
    written = json.loads(json.dumps(record.to_dict()))
    again = BenchRecord.from_dict(written)
    assert again.to_dict() == record.to_dict()
    assert isinstance(again.results[0], KernelResult)
    assert written["results"][0]["scopes"]["cpu"]["per_run_j"] == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "not what 'wattloop bench --json' writes"),
        ({"version": 99, "results": []}, "newer wattloop"),
        ({"version": 1, "results": [{"kernel": "gemm"}]}, "damaged"),
    ],
)
def test_foreign_files_are_refused(data: dict[str, object], message: str) -> None:
    """The error is one sentence."""
    with pytest.raises(ConfigError, match=message):
        BenchRecord.from_dict(data)
