"""Promises of `benchmarks/cap_overhead.py`: it names its bars and measures its threads."""

from pathlib import Path

import pytest
from tests.benchmarks.running import quick_bars
from tests.support.nvml_stub import NoCompiler, build


def test_quick_run_writes_the_promised_bars(tmp_path: Path) -> None:
    """Other programs look for these names; threads and the reader process are included."""
    try:
        build(tmp_path / "nvml")
    except NoCompiler as reason:
        pytest.skip(str(reason))
    bars = quick_bars("cap_overhead", tmp_path)
    assert list(bars) == ["step_call", "outside_probes", "with_reader"]
    assert bars["step_call"]["bar"] == bars["outside_probes"]["bar"] == 0.5
    assert 0 < bars["step_call"]["value"] < bars["outside_probes"]["value"]
    assert bars["outside_probes"]["value"] < bars["with_reader"]["value"]
