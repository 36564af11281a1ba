"""Promises of constants files: they read back as written, and errors are named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.predict.models.kernels.made import H200, transformer_step
from wattloop.core.errors import ConfigError
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.models.kernels.constants import (
    DEFAULTS,
    SHIPPED,
    KernelConstants,
    ResidualGroup,
    Residuals,
    Values,
    constants_for,
    reference_constants,
    user_constants_path,
)
from wattloop.predict.models.kernels.step import host_counts, host_seconds
from wattloop.predict.prediction import Placement

GROUP = ResidualGroup(
    np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0.1, -0.2]), np.array([1.0, 2.0])
)
CONSTANTS = KernelConstants("h200", Values(DEFAULTS), Residuals({"gemm.bf16": GROUP}))


@pytest.mark.parametrize("name", ["c.json", "c.json.gz"])
def test_a_saved_file_reads_back_the_same(tmp_path: Path, name: str) -> None:
    """Values and residuals survive, packed or not."""
    CONSTANTS.save(tmp_path / name)
    back = KernelConstants.load(tmp_path / name)
    assert back.to_plain() == CONSTANTS.to_plain()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"format": "something"}, "format"),
        ({"version": 99}, "version"),
        ({"gpu": ""}, "gpu"),
        ({"values": None}, "values"),
        ({"values": {"host.step_s": "fast"}}, "values.host.step_s"),
        ({"values": {"host.step_s": float("nan")}}, "values.host.step_s"),
        ({"residuals": {"gemm.bf16": {"places": [[1]], "weights": [1, 2], "reach": [1]}}},
         "residuals.gemm.bf16"),
        ({"residuals": {"gemm.bf16": {"places": [[1]], "weights": [1]}}}, "residuals.gemm.bf16"),
        ({"intervals": 3}, "intervals"),
    ],
)  # fmt: skip
def test_a_broken_file_names_file_field_and_remedy(
    tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    """Each kind of damage is reported with its field."""
    path = tmp_path / "h200.json"
    path.write_text(json.dumps({**CONSTANTS.to_plain(), **change}))
    with pytest.raises(ConfigError, match=f"h200.json: field '{field}'.*calibrate fit"):
        KernelConstants.load(path)


def test_an_older_files_fixed_time_of_a_step_is_not_lost() -> None:
    """It was one number for the whole step; the host's cost is the same, by phases."""
    older = CONSTANTS.to_plain()
    older["values"] = {
        name: value for name, value in older["values"].items() if not name.startswith("host.step_s")
    } | {"host.step_s": 9e-4}
    older["before"] = {"host.step_s": 3e-4}
    found = KernelConstants.from_plain(older, "h200.json")
    counts = host_counts(transformer_step())
    default_s = sum(host_seconds(counts, CONSTANTS.values))
    assert sum(host_seconds(counts, found.values)) == pytest.approx(default_s - 3e-4 + 9e-4)
    assert sum(host_seconds(counts, found.unfitted().values)) == pytest.approx(default_s)


def test_a_number_that_no_equation_uses_does_not_matter() -> None:
    """Files of another version may have the number `power.waiting`: they load and predict alike."""
    plain = KernelConstants("h200").to_plain()
    other = {**plain, "values": {**plain["values"], "power.waiting": 0.3}}
    step, placement = transformer_step(), Placement(H200, host_speed=0.1)
    expected, found = (
        KernelModel(KernelConstants.from_plain(each, "h200.json")).predict(step, placement)
        for each in (plain, other)
    )
    assert found == expected
    assert found.host_s > found.gpu_s  # the number was about such steps


@pytest.mark.parametrize("content", [b"", b"{", b"\x1f\x8bnot really packed", b"\xff\xfe"])
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    """Torn and foreign files are a ConfigError, not a traceback."""
    path = tmp_path / "h200.json.gz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not a readable constants file"):
        KernelConstants.load(path)


def test_the_users_calibration_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the user's folder precedes the package's, and must be for the GPU of its name."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    changed = CONSTANTS.with_values({"host.module_s": 0.5})
    changed.save(user_constants_path("h200"))
    found, source = constants_for(H200)
    assert (found.values["host.module_s"], source) == (0.5, "calibrated")
    KernelConstants("a100").save(user_constants_path("h200"))
    with pytest.raises(ConfigError, match="field 'gpu' is 'a100'"):
        constants_for(H200)


def test_the_finest_constant_wins() -> None:
    """A constant for a class overrides one for its family, and that one the general one."""
    values = Values({"e": 1.0, "e.norm": 2.0, "e.norm.batch.bf16": 3.0})
    assert values.find("e", "norm.batch.bf16") == 3.0
    assert values.find("e", "norm.layer.bf16") == 2.0
    assert values.find("e", "pool.max") == 1.0
    with pytest.raises(KeyError):
        values.find("f", "pool")


def test_the_h200_ships_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own constants are small, name their origin, and give intervals."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found, source = constants_for(H200)
    assert source == "shipped"
    assert (SHIPPED / "h200.json.gz").stat().st_size < 1_000_000
    assert found.made["microbenchmarks"] > 10_000
    assert {"torch", "cudnn", "driver", "steps", "models"} <= set(found.made)
    step = KernelModel.for_gpu(H200).predict(transformer_step(), Placement(H200))
    assert step.step_interval is not None
    assert step.step_interval.low < step.step_s < step.step_interval.high
    assert step.warnings == ()
    unfitted = found.unfitted().values.numbers
    assert not any(name.startswith("scale.") for name in unfitted)


def test_shipped_constants_are_read_once_and_remember_no_tables():
    """A server predicts for months: one model's requests are not stored for all."""
    first, second = reference_constants()[0], reference_constants()[0]
    assert first.values is second.values
    assert first.residuals is not second.residuals
    assert first.residuals.groups == second.residuals.groups
