"""Promises of names: one lever, or all of a kind; a wrong name gets the nearest right one."""

from pathlib import Path

import pytest

from tests.control.conftest import Rig
from tests.support.amdgpu_tree import AmdgpuTree
from tests.support.cpufreq_tree import CpufreqTree
from tests.support.nvml_stub import StubNvml
from wattloop.control.registry import find_levers, lever_named, levers_named
from wattloop.core.errors import ConfigError
from wattloop.hardware.host import Host


def test_one_and_all_of_a_kind(rig: Rig, stub: StubNvml) -> None:
    """`gpu/power_limit` is every GPU's; numbers choose some."""
    levers = rig.levers()
    both = ["gpu:0/power_limit", "gpu:1/power_limit"]
    assert lever_named(levers, "cpu/governor").name == "cpu/governor"
    assert [lever.name for lever in levers_named(levers, "gpu/power_limit")] == both
    assert [lever.name for lever in levers_named(levers, "gpu:1,0/power_limit")] == both[::-1]
    assert len(levers_named(levers, "gpu:1/power_limit")) == 1
    with pytest.raises(ConfigError, match=r"means several levers .*gpu:0/power_limit, gpu:1"):
        lever_named(levers, "gpu/power_limit")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu:0/powerlimit", "did you mean gpu:0/power_limit"),
        ("gpu/power_limits", "did you mean gpu/power_limit"),
        ("cpu/govenor", "did you mean cpu/governor"),
        ("governor", "did you mean cpu/governor"),
        ("gpu:9/power_limit", r"there is no gpu:9 here; there are gpu:0, gpu:1"),
        ("gpu:0,9/power_limit", r"there is no gpu:9 here; there are gpu:0, gpu:1"),
        ("npu:0/power_limit", "there is no npu:0 here; there is no npu with levers"),
        ("gpu:,/power_limit", "unknown lever .gpu:,/power_limit.; did you mean gpu:"),
        ("gpu:0,/power_limit", "did you mean gpu:0/power_limit"),
        ("xyz", "unknown lever 'xyz'; there are: cpu:0/power_limit_long_term"),
    ],
)
def test_wrong_names_are_explained(rig: Rig, stub: StubNvml, name: str, message: str) -> None:
    """A typing error gets the nearest name, and an unknown number the existing ones."""
    with pytest.raises(ConfigError, match=message):
        levers_named(rig.levers(), name)


def test_machine_without_any_lever() -> None:
    """The message says what is needed, and how to try the virtual GPU."""
    with pytest.raises(ConfigError, match=r"no lever on this machine.*WATTLOOP_VIRTUAL_GPUS=1"):
        levers_named([], "gpu:0/power_limit")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cpu/governor", r"no cpufreq under .*enable frequency scaling in the firmware"),
        ("cpu/max_frequency", r"no cpufreq under "),
        ("cpu:0/power_limit_long_term", r"no power limit under .*modprobe intel_rapl_msr"),
        ("gpu/power_limit", r".*NVIDIA .*no AMD GPU under .*WATTLOOP_VIRTUAL_GPUS=1"),
    ],
)
def test_what_is_not_there_is_no_unknown_lever(tmp_path: Path, name: str, reason: str) -> None:
    """The message says why it cannot be set on this machine, and what would help."""
    AmdgpuTree(tmp_path).add_card() if name.startswith("cpu") else CpufreqTree(tmp_path)
    levers = find_levers(Host(sysfs=tmp_path))
    with pytest.raises(ConfigError, match=rf"{name} cannot be set here: {reason}"):
        levers_named(levers, name)
