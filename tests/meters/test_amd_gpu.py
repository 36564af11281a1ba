"""Promises of AMD GPUs: amdsmi through a module with its real signatures, hwmon through files."""

import importlib
import sys
import time
from pathlib import Path

import pytest

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import DomainKind, Gap
from wattloop.hardware.host import Host
from wattloop.meters import amd_gpu
from wattloop.meters.base import Context
from wattloop.testing.meter_contract import check_meter

FILES = {
    "hwmon/hwmon3/power1_average": "213000000\n",
    "hwmon/hwmon3/power1_cap": "250000000\n",
    "hwmon/hwmon3/power1_cap_default": "300000000\n",
    "hwmon/hwmon3/freq1_input": "1700000000\n",
    "hwmon/hwmon3/temp1_input": "61000\n",
    "gpu_busy_percent": "42\n",
    "mem_info_vram_used": "1073741824\n",
}


def add_card(root: Path, number: int, address: str, files=FILES, vendor="0x1002") -> Path:
    device = root / "sys/devices/pci0000:00" / address
    for name, text in {**files, "vendor": vendor}.items():
        path = device / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    card = root / f"sys/class/drm/card{number}"
    card.mkdir(parents=True)
    (card / "device").symlink_to(device)
    (root / f"sys/class/drm/card{number}-DP-1").mkdir()
    return device


@pytest.fixture
def context(tmp_path):
    return Context(host=Host(sysfs=tmp_path / "sys", procfs=tmp_path / "proc"))


@pytest.fixture
def no_amdsmi(monkeypatch):
    monkeypatch.setitem(sys.modules, "amdsmi", None)


@pytest.fixture
def amdsmi(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "fake_amdsmi"))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    module = importlib.import_module("amdsmi")
    yield module
    sys.modules.pop("amdsmi", None)


@pytest.fixture
def two_cards(tmp_path):
    # card numbers do not follow PCI order; amdsmi and ROCm do.
    return [add_card(tmp_path, 1, "0000:c1:00.0"), add_card(tmp_path, 0, "0000:c6:00.0")]


def test_no_amd_gpu_is_reported_and_no_part_is_missing(context):
    """A machine without AMD graphics has no missing part."""
    with pytest.raises(MeterUnavailable, match="no AMD GPU") as refusal:
        amd_gpu.detect(context)
    assert refusal.value.parts == ()


def test_cards_of_other_makers_are_ignored(tmp_path, context):
    """An Intel card in the same tree is ignored."""
    add_card(tmp_path, 0, "0000:00:02.0", vendor="0x8086")
    with pytest.raises(MeterUnavailable, match="no AMD GPU"):
        amd_gpu.detect(context)


def test_amd_cards_are_numbered_after_nvidia_cards(tmp_path, context, two_cards):
    """A desktop with both makers has no two domains called gpu:0."""
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert [card.name for card in amd_gpu.find_cards(context.host)] == ["gpu:1", "gpu:2"]


@pytest.mark.parametrize("index", [0, 1])
def test_amdsmi_meters_keep_the_contract(context, two_cards, amdsmi, index):
    """Counter and gauge keep the contract of every meter."""
    check_meter(lambda: amd_gpu.detect(context)[index])


def test_amdsmi_energy_is_accumulator_times_resolution(context, two_cards, amdsmi):
    """Joules, not counts: the difference equals power x time."""
    energy = amd_gpu.detect(context)[1]
    assert energy.domains[0].kind is DomainKind.COUNTER
    assert energy.domains[0].resolution == pytest.approx(15.259e-6)
    before_s = time.monotonic()
    first_j = energy.read()[0]
    between_s = time.monotonic()
    time.sleep(0.05)
    again_s = time.monotonic()
    second_j = energy.read()[0]
    after_s = time.monotonic()
    assert 310 * (again_s - between_s) - 1e-3 <= second_j - first_j
    assert second_j - first_j <= 310 * (after_s - before_s) + 1e-3


def test_amdsmi_power_signals_and_limit(context, two_cards, amdsmi):
    """Watts, fractions and bytes; amdsmi's N/A is a gap."""
    power = amd_gpu.detect(context)[0]
    assert power.read() == [310.0, 95.0]
    values = dict(zip((s.name for s in power.signals), power.read_signals(), strict=True))
    assert values["gpu:0/utilisation"] == 0.87
    assert values["gpu:0/power_limit"] == 400
    assert values["gpu:1/sm_clock"] == 1700
    assert isinstance(values["gpu:0/memory_utilisation"], Gap)
    assert power.domains[0].device == "AMD Instinct MI250X"
    assert power.domains[0].tdp_note == "enforced power limit 400 W of 560 W default"


def test_amdsmi_second_die_is_refused_not_zero(context, two_cards, amdsmi):
    """A die without readings of its own is named, and the first die is read."""
    amdsmi.world.errors = {(1, "energy"): 2, (1, "power"): 2}
    meters = amd_gpu.detect(context)
    assert [[d.name for d in meter.domains] for meter in meters] == [["gpu:0"], ["gpu:0"]]
    (missing,) = [missing for meter in meters for missing in meter.refused]
    assert missing.name == "gpu:1"
    assert "MI250" in missing.reason


@pytest.mark.parametrize("code, lost", [(31, True), (10, True), (99, False)])
def test_amdsmi_faults_are_gaps(context, two_cards, amdsmi, code, lost):
    """A card that is gone is lost; an unknown error passes."""
    power = amd_gpu.detect(context)[0]
    amdsmi.world.errors = {(0, "*"): code}
    bad, good = power.read()
    assert isinstance(bad, Gap)
    assert bad.lost is lost
    assert good == 95.0


def test_amdsmi_is_shut_down_once_by_its_last_user(context, two_cards, amdsmi):
    """The other meter still works after one is closed."""
    power, energy = amd_gpu.detect(context)
    power.close()
    assert isinstance(energy.read()[0], float)
    energy.close()
    assert amdsmi.world.started == 0


def test_after_fork_handles_are_opened_again(context, two_cards, amdsmi):
    """A child does not use the parent's handles."""
    power = amd_gpu.detect(context)[0]
    power.after_fork_in_child()
    assert amdsmi.world.started == 1
    assert power.read() == [310.0, 95.0]
    assert amdsmi.world.started == 2


def test_hwmon_is_read_where_amdsmi_is_missing(context, two_cards, no_amdsmi):
    """Without amdsmi the driver's own file is a measured gauge."""
    check_meter(lambda: amd_gpu.detect(context)[0])
    (meter,) = amd_gpu.detect(context)
    assert meter.read() == [213.0, 213.0]
    domain = meter.domains[0]
    assert (domain.name, domain.source) == ("gpu:0", "amdgpu power1_average")
    assert domain.tdp_note == "enforced power limit 250 W of 300 W default"
    values = dict(zip((s.name for s in meter.signals), meter.read_signals(), strict=True))
    assert values["gpu:0/utilisation"] == 0.42
    assert values["gpu:0/sm_clock"] == 1700
    assert values["gpu:0/temperature"] == 61
    assert values["gpu:0/memory_used"] == 1073741824
    assert "gpu:0/memory_clock" not in values


def test_hwmon_is_read_where_amdsmi_does_not_start(context, two_cards, amdsmi):
    """amdsmi without a working driver does not hide the readable file."""
    amdsmi.world.init_error = 34
    (meter,) = amd_gpu.detect(context)
    assert meter.name == "amd-hwmon"


def test_without_any_source_the_remedy_is_to_install_amdsmi(tmp_path, context, no_amdsmi):
    """The card is reported missing, with the remedy."""
    add_card(tmp_path, 0, "0000:c1:00.0", files={})
    with pytest.raises(MeterUnavailable, match="amdsmi") as refusal:
        amd_gpu.detect(context)
    assert refusal.value.parts == ("gpu:0",)
    assert "pip install" in refusal.value.remedy


def test_a_missing_or_unreadable_file_is_a_gap(context, two_cards, no_amdsmi):
    """A missing file is lost; an unreadable number may pass."""
    (meter,) = amd_gpu.detect(context)
    (two_cards[0] / "hwmon/hwmon3/power1_average").unlink()
    (two_cards[1] / "hwmon/hwmon3/power1_average").write_text("")
    gone, nonsense = meter.read()
    assert isinstance(gone, Gap)
    assert gone.lost
    assert isinstance(nonsense, Gap)
    assert not nonsense.lost


def test_integrated_graphics_lie_inside_the_package(tmp_path, context, no_amdsmi):
    """An APU's reading is part of the package's energy and must not be added to it."""
    files = {"hwmon/hwmon1/power1_input": "15000000", "hwmon/hwmon1/in1_label": "vddnb\n"}
    add_card(tmp_path, 0, "0000:04:00.0", files=files)
    (meter,) = amd_gpu.detect(context)
    assert meter.domains[0].inside == "cpu:0/package"
    assert meter.read() == [15.0]


def test_nan_and_inf_are_gaps(context, two_cards, no_amdsmi):
    """`nan` and `inf` in the power file are not watts."""
    (meter,) = amd_gpu.detect(context)
    for device, word in zip(two_cards, ("nan", "inf"), strict=True):
        (device / "hwmon/hwmon3/power1_average").write_text(word)
    assert all(isinstance(reading, Gap) for reading in meter.read())
