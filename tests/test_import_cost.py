"""Promises about imports: measuring loads nothing heavy into the user's program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = [
    "numpy",
    "torch",
    "pydantic",
    "sqlalchemy",
    "yaml",
    "rich",
    "typer",
    "pynvml",
    "importlib.metadata",
    "asyncio",
    "ssl",
    "email",
    "urllib.request",
    "subprocess",
]


def loaded(code: str, environment: dict[str, str] | None = None) -> list[str]:
    """Return the heavy modules that a fresh interpreter has loaded after `code`."""
    check = f"{code}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", check],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[1] / "src"),
            **(environment or {}),
        },
        timeout=300,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize("module", ["wattloop", "wattloop.measure", "wattloop.measure.api"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    """No array library, no database, no YAML, no terminal library, no package metadata."""
    assert loaded(f"import {module}") == []


def test_setting_up_a_measurement_loads_nothing_heavy(tmp_path: Path) -> None:
    """A run on a machine with counters in files does not load them either."""
    from tests.support.powercap_tree import PowercapTree

    PowercapTree(tmp_path / "sys").add_package(0)
    code = "import wattloop\nm = wattloop.measure('x').begin()"
    environment = {
        "WATTLOOP_SYSFS_ROOT": str(tmp_path / "sys"),
        "WATTLOOP_STORE": str(tmp_path / "runs.db"),
        "WATTLOOP_METERS": "rapl",
        "XDG_RUNTIME_DIR": str(tmp_path),
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    assert loaded(code, environment) == []


def test_measuring_with_every_meter_does_not_load_the_virtual_gpu(tmp_path: Path) -> None:
    """Its physics cost milliseconds, and only runs with virtual GPUs pay them."""
    code = "import wattloop\nm = wattloop.measure('x').begin()\nimport sys\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print(*[m for m in sys.modules if '.virtual' in m])"],
        capture_output=True,
        text=True,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("WATTLOOP_")},
            "PYTHONPATH": str(Path(__file__).parents[1] / "src"),
            "WATTLOOP_STORE": str(tmp_path / "runs.db"),
            "HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path),
        },
        timeout=300,
        check=True,
    )
    assert done.stdout.split() == []


def test_a_search_that_is_resumed_loads_no_more_than_it_needs() -> None:
    """Ten thousand trials load in 2 s: Ray's part, levers and caps load on use."""
    unused = ["tune.executors.ray", "cap.callback", "control.session"]
    unused = [f"wattloop.{name}" for name in (*unused, "measure.session")]
    code = "import sys, wattloop.tune.search_setup, wattloop.tune.executors.command\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print(*[m for m in {unused!r} if m in sys.modules])"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")},
        timeout=300,
        check=True,
    )
    assert done.stdout.split() == []
