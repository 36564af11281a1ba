"""Promises of `calibrate fit` about what a collection lacks."""

import json

import pytest

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.calibrate.fit import cap_in_force, fit_files
from wattloop.predict.calibrate.fit_steps import points_of
from wattloop.predict.calibrate.grid.gemm import gemm_row
from wattloop.predict.models.kernels.find import constants_for

MACHINE = {"record": "machine", "gpu": "Tesla T4"}


def _file(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_collection_without_kernels_is_refused(tmp_path):
    """What was fitted to nothing would pass for a calibration, and be of another GPU."""
    path = _file(tmp_path / "a.jsonl", [MACHINE])
    with pytest.raises(ConfigError, match=r"a\.jsonl: no kernel was measured.*--resume"):
        fit_files([path])


def test_without_power_readings_watts_are_the_data_sheets(tmp_path):
    """A fit starts from a GPU of 700 W: a T4 of 70 W must not draw what that one does."""
    rows = [
        {
            "record": "kernel",
            "case": f"{size}",
            "family": "gemm",
            "params": gemm_row("fp32", (1, size, size, size), "nt", bias=False),
            "seconds": 2.0 * size**3 / 5e12,
            "error": None,
        }
        for size in (512, 1024, 2048, 4096)
    ]
    fitted = fit_files([_file(tmp_path / "a.jsonl", [MACHINE, *rows])], steps=False).constants
    specified, source = constants_for(gpu_named("t4"))
    assert source == "spec-only"
    assert fitted.made["power"] == "data sheet"
    power = {k: v for k, v in fitted.values.numbers.items() if k.startswith("power.")}
    assert power == {k: specified.values[k] for k in power}


def test_steps_count_under_the_limit_that_was_in_force(tmp_path):
    """A card that its owner holds at 50 W is slow for that, and not for its kernels."""
    pytest.importorskip("torch", reason="steps are traced")
    step = {"record": "step", "model": "gru@10", "batch": 2, "precision": "fp32",
            "step_s": 0.01, "avg_power_w": 49.0}  # fmt: skip
    held = [{**MACHINE, "power_limit_w": 70.0}, {**MACHINE, "power_limit_w": 50.0}]
    gpu = gpu_named("t4")
    assert cap_in_force(held, gpu) == 50.0
    assert cap_in_force([{**MACHINE, "power_limit_w": 70.0}, MACHINE], gpu) is None
    (point,) = points_of([step], gpu, cap_w=50.0)
    assert point.placement.cap_w == 50.0
