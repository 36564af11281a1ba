"""Promises of the IOReport meter, against a stub library with Apple Silicon's channel names.

Names and units follow public monitors on M1 to M4; no test has run on a Mac.
"""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Gap
from wattloop.meters.apple import AppleEnergy, detect, domain_energies
from wattloop.meters.base import Context
from wattloop.testing.meter_contract import check_meter

SOURCE = Path(__file__).parent / "system_stubs" / "ioreport.c"
M2 = """ECPU|mJ|2000
PCPU|mJ|7000
CPU Energy|mJ|9000
GPU SRAM|nJ|40
GPU Energy|nJ|5000000000
ANE|mJ|120
DRAM|mJ|800
"""


@pytest.fixture
def chip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path / "libIOReport.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    channels = tmp_path / "channels"
    channels.write_text(M2)
    monkeypatch.setenv("WATTLOOP_IOREPORT_LIBRARY", str(library))
    monkeypatch.setenv("WATTLOOP_IOREPORT_STUB", str(channels))
    return channels


def test_channels_are_counters_in_joules(chip: Path) -> None:
    """Promise: CPU, GPU, neural engine and memory, each once, whatever the unit of its channel."""
    (meter,) = detect(Context())
    names = [domain.name for domain in meter.domains]
    assert dict(zip(names, meter.read(), strict=True)) == {
        "cpu:0/core": pytest.approx(9.0),
        "gpu:0": pytest.approx(5.0),
        "ane": pytest.approx(0.12),
        "dram": pytest.approx(0.8),
    }
    chip.write_text(M2.replace("5000000000", "5250000000"))
    assert meter.read()[1] == pytest.approx(5.25)
    meter.close()
    assert all(isinstance(reading, Gap) for reading in meter.read())


def test_nothing_of_the_library_is_left_behind(chip: Path) -> None:
    """Promise: a meter that reads for hours leaks no object of CoreFoundation."""
    library = ctypes.CDLL(str(chip.parent / "libIOReport.so"))
    (meter,) = detect(Context())
    before = library.stub_living()
    for _ in range(50):
        meter.read()
    assert library.stub_living() == before
    meter.close()
    assert library.stub_living() == 0


def test_it_meets_the_contract(chip: Path) -> None:
    check_meter(lambda: detect(Context())[0])


def test_dies_of_one_chip_are_added() -> None:
    channels = [
        ("DIE_0_CPU Energy", "mJ", 1_000),
        ("DIE_1_CPU Energy", "mJ", 500),
        ("ANE0_0", "mJ", 3),
        ("ANE0_1", "mJ", 4),
        ("GPU Energy", "parsecs", 9),
        ("DRAM", "mJ", -1),
    ]
    assert domain_energies(channels) == {
        "cpu:0/core": pytest.approx(1.5),
        "ane": pytest.approx(0.007),
    }


def test_a_chip_without_channels_is_refused(chip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chip.write_text("Something|mJ|1\n")
    with pytest.raises(MeterUnavailable, match="no channel"):
        detect(Context())
    monkeypatch.setenv("WATTLOOP_IOREPORT_LIBRARY", "/nowhere.dylib")
    with pytest.raises(MeterUnavailable, match="cannot be used") as refusal:
        detect(Context())
    assert refusal.value.parts == ("cpu", "gpu", "ane")


def test_a_value_that_disappears_is_a_gap(chip: Path) -> None:
    (meter,) = detect(Context())
    assert isinstance(meter, AppleEnergy)
    chip.unlink()
    assert all(isinstance(reading, Gap) for reading in meter.read())
