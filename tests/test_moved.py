"""Promises about names that moved: documented import paths of earlier releases keep working."""

import importlib
import subprocess
import sys

import pytest

from wattloop.moved import MOVED

# The list is part of the promise: a path may be added, none may be dropped within a major version.
PROMISED = {
    ("wattloop.control.hold", "hold"),
    ("wattloop.control.hold", "applied"),
    ("wattloop.characterize.cap_callback", "CapTuner"),
    ("wattloop.measure.meter", "Meter"),
    ("wattloop.measure.meter", "Context"),
    ("wattloop.tune.torch.bench", "TorchBench"),
    ("wattloop.tune.engines.ray_bench", "RayBench"),
    ("wattloop.tune.engines.optuna_measured", "EnergyCallback"),
    ("wattloop.schedule.oracle.analytic", "AnalyticOracle"),
    ("wattloop.schedule.policies.policy", "Policy"),
    ("wattloop.tune.problem", "Problem"),
}


def test_the_list_holds_what_was_promised() -> None:
    assert {(module, name) for module, names in MOVED.items() for name in names} >= PROMISED


@pytest.mark.parametrize(
    ("module", "name", "target"),
    [(module, name, target) for module, names in MOVED.items() for name, target in names.items()],
)
def test_an_earlier_path_gives_the_same_object_and_warns(
    module: str, name: str, target: str
) -> None:
    new_module, _, new_name = target.rpartition(".")
    with pytest.warns(DeprecationWarning, match=target.replace(".", r"\.")):
        found = getattr(importlib.import_module(module), name)
    assert found is getattr(importlib.import_module(new_module), new_name)


def test_a_name_that_never_was_is_refused_as_python_does() -> None:
    with pytest.raises(ImportError):
        exec("from wattloop.control.hold import nonsense")  # the statement a program would have


def test_an_unknown_module_is_unknown() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import wattloop.nowhere"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'wattloop.nowhere'" in done.stderr
