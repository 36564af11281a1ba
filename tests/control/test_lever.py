"""Promises of each lever: it keeps the contract, and follows its driver."""

from pathlib import Path

import pytest

from tests.control.conftest import Rig
from tests.support.nvml_stub import Call, StubNvml
from wattloop.control.lever import Lever, Setting
from wattloop.control.restore import restore
from wattloop.control.session import lever_session
from wattloop.core.errors import ConfigError, LeverError
from wattloop.testing.lever_contract import check_lever

MODE = "power_dpm_force_performance_level"
FILES: list[tuple[str, list[Setting], list[Setting]]] = [
    ("cpu:0/power_limit_long_term", [100.0, 199.5], [0.0, -5.0, 200.5, "fast", None, float("nan")]),
    ("cpu/governor", ["schedutil", "ondemand"], ["turbo", 5.0, None]),
    ("cpu/min_frequency", [900.0, 1100.0], [799.0, 3501.0, "fast", None]),
    ("cpu/max_frequency", [1300.0, 3500.0], [799.0, 3501.0, "fast", None, float("nan")]),
    ("gpu:0/power_limit", [150.0, 349.0], [149.0, 351.0, "fast", None]),
    ("gpu:0/sm_clock", [500.0, 1500.0, None], [499.0, 2101.0, "fast"]),
    ("gpu:0/memory_clock", [700.0, None], [399.0, 1601.0, "fast"]),
]
NVIDIA: list[tuple[str, list[Setting], list[Setting]]] = [
    ("gpu:1/power_limit", [200.0, 333.333], [199.0, 701.0, "fast", None]),
    ("gpu:1/sm_clock", [345.0, 1000.0, None], [300.0, 2000.0, "fast"]),
    ("gpu:1/memory_clock", [3201.0, None], [100.0, 9000.0, "fast"]),
]


@pytest.mark.parametrize(("name", "good", "bad"), FILES)
def test_file_levers_keep_the_contract(
    rig: Rig, name: str, good: list[Setting], bad: list[Setting]
) -> None:
    """RAPL, cpufreq and amdgpu."""

    def make() -> Lever:
        rig.card.render()
        return rig.lever(name)

    check_lever(make, good=good, bad=bad)


@pytest.mark.parametrize(("name", "good", "bad"), NVIDIA)
def test_nvidia_levers_keep_the_contract(
    rig: Rig, stub: StubNvml, name: str, good: list[Setting], bad: list[Setting]
) -> None:
    """The levers use the real nvidia-ml-py."""
    check_lever(lambda: rig.lever(name), good=good, bad=bad)


def test_each_policy_is_kept_within_its_own_limits(rig: Rig) -> None:
    """On a hybrid processor a value only some cores reach is clipped for the others."""
    rig.cpufreq.add_policy(bounds_mhz=(800, 2000), limits_mhz=(800, 2000))
    with lever_session([rig.lever("cpu/max_frequency")]) as held:
        held.set({"cpu/max_frequency": 3400.0})
        assert rig.cpufreq.all("scaling_max_freq") == ["3400000", "3400000", "2000000"]
    assert rig.cpufreq.all("scaling_max_freq") == ["3000000", "1200000", "2000000"]


def test_both_bounds_on_a_processor_with_different_cores(rig: Rig) -> None:
    """Bounds that some cores cannot reach are clipped together, and do not cross there."""
    rig.cpufreq.add_policy(bounds_mhz=(800, 2000), limits_mhz=(800, 2000))
    names = ["cpu/min_frequency", "cpu/max_frequency"]
    with lever_session([rig.lever(name) for name in names]) as held:
        held.set(dict(zip(names, (2500.0, 3400.0), strict=True)))
        assert rig.cpufreq.all("scaling_min_freq") == ["2500000", "2500000", "2000000"]
        assert rig.cpufreq.all("scaling_max_freq") == ["3400000", "3400000", "2000000"]


def test_governor_only_of_what_all_policies_have(rig: Rig) -> None:
    """A governor that one policy lacks is not offered."""
    rig.cpufreq.add_policy(governors="performance powersave")
    lever = rig.lever("cpu/governor")
    assert lever.state().choices == ("performance", "powersave")
    with pytest.raises(ConfigError, match="no governor 'schedutil' here"):
        lever.accepted("schedutil")


def test_amd_clocks_set_the_mode_first_and_restore_both(rig: Rig) -> None:
    """Levels need mode `manual`; afterwards the mode is the earlier one and all levels are
    allowed.
    """
    rig.card.put(MODE, "high")
    with lever_session([rig.lever("gpu:0/sm_clock"), rig.lever("gpu:0/memory_clock")]) as held:
        held.set({"gpu:0/sm_clock": 1150.0})
        assert rig.card.read(MODE) == "manual"
        assert rig.card.read("pp_dpm_sclk") == "2", "the level of 1100 MHz"
        held.set({"gpu:0/memory_clock": 900.0})
        rig.card.render()
    assert rig.card.read("pp_dpm_sclk") == "0 1 2 3 4 5"
    assert rig.card.read("pp_dpm_mclk") == "0 1 2 3"
    assert rig.card.read(MODE) == "high"


def test_amd_clock_that_is_put_back_leaves_the_other_locked(rig: Rig) -> None:
    """Any mode but `manual` frees both clocks, so the mode is restored with the last of them."""
    sm, memory = "gpu:0/sm_clock", "gpu:0/memory_clock"
    with lever_session([rig.lever(sm), rig.lever(memory)]) as held:
        held.set({sm: 1100.0, memory: 900.0})
        held.restore(sm)
        assert rig.card.read("pp_dpm_sclk") == "0 1 2 3 4 5"
        assert rig.card.read("pp_dpm_mclk") == "2"
        assert rig.card.read(MODE) == "manual"
        held.set({sm: 800.0})
        held.restore(memory)
        assert (rig.card.read("pp_dpm_sclk"), rig.card.read(MODE)) == ("1", "manual")
        held.restore(sm)
        assert rig.card.read(MODE) == "auto", "no lever needs it any more"
        held.set({sm: 1100.0, memory: 900.0})
    assert rig.card.read("pp_dpm_mclk") == "0 1 2 3"
    assert rig.card.read(MODE) == "auto"


def test_amd_clocks_left_by_a_killed_owner_come_back_together(rig: Rig) -> None:
    """This also holds when one had been restored before: the other's journal has the mode."""
    owner = rig.start(
        """
with hold([lever("gpu:0/sm_clock"), lever("gpu:0/memory_clock")]) as held:
    held.set({"gpu:0/sm_clock": 1100.0, "gpu:0/memory_clock": 900.0})
    held.restore("gpu:0/sm_clock")
    print("set", flush=True)
    time.sleep(60)
""",
        WATTLOOP_GUARDIAN="0",
    )
    owner.kill()
    owner.wait()
    assert rig.card.read(MODE) == "manual"
    rig.card.render()
    restore(rig.state)
    assert rig.card.read("pp_dpm_mclk") == "0 1 2 3"
    assert rig.card.read(MODE) == "auto"
    assert rig.journals() == []


def test_amd_levels_are_only_written_in_manual_mode(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver refuses levels in other modes, also during a restore."""
    from wattloop.control import amd

    refused: list[str] = []
    write = amd.write_file

    def driver(name: str, path: Path, text: str) -> None:
        if path.name == "pp_dpm_sclk" and "manual" not in rig.card.read(MODE):
            refused.append(text)
        write(name, path, text)
        rig.card.render()

    monkeypatch.setattr(amd, "write_file", driver)
    with lever_session([rig.lever("gpu:0/sm_clock")]) as held:
        held.set({"gpu:0/sm_clock": 800.0})
        rig.card.put(MODE, "low")  # another program
    assert refused == []
    assert rig.card.read(MODE) == "auto"


def test_locked_clock_is_snapped_and_unlocked(rig: Rig, stub: StubNvml) -> None:
    """The nearest supported clock is locked; restoring resets, and the note says why."""
    lever = rig.lever("gpu:0/sm_clock")
    assert lever.accepted(1000.0) == 1005.0
    assert "whether it is locked cannot be read" in lever.state().note
    with lever_session([lever]) as held:
        held.set({lever.name: 1000.0})
        assert held.previous == {lever.name: None}
        assert stub.settings(0).sm_clock_mhz == (1005.0, 1005.0)
    assert stub.settings(0).sm_clock_mhz is None


def test_card_without_limits_is_not_set(rig: Rig, stub: StubNvml) -> None:
    """Without the device's own limits no value can be checked against them."""
    stub.inject(0, "unsupported", calls=Call.LIMIT)
    lever = rig.lever("gpu:0/power_limit")
    assert lever.state().available is False
    with pytest.raises(LeverError):
        lever.accepted(300.0)


def test_root_only_is_said_without_trying(
    rig: Rig, stub: StubNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has the command that an administrator would use."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    state = rig.lever("gpu:0/memory_clock").state()
    assert state.available is False
    assert "sudo nvidia-smi -lmc" in state.remedy
