"""Promises of benchmarks/save_kills.py: it kills its targets, and finds levers left set."""

import json
from pathlib import Path

import pytest
from tests.benchmarks.running import run_benchmark
from tests.support.nvml_stub import NoCompiler, build


def test_a_kill_of_everything_is_restored(tmp_path: Path) -> None:
    """Two runs are killed, and every setting of the machine is compared."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    try:
        build(tmp_path / "nvml")
    except NoCompiler as reason:
        pytest.skip(str(reason))
    result = tmp_path / "kills.json"
    done = run_benchmark(
        "save_kills", "--quick", "--kills", "2", "--at-once", "1", "--json", str(result)
    )
    assert done.returncode == 0, done.stderr
    bars = {bar["name"]: bar["value"] for bar in json.loads(result.read_text())["bars"]}
    assert (bars["kills"], bars["restored"], bars["tracebacks"]) == (2, 2, 0), done.stderr
