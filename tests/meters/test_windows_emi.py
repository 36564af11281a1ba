"""Promises of the meter of Windows' energy interface, against a stub of setupapi and kernel32.

Answers are laid out as in `emi.h`, with the channel names that Windows 11 gives Intel and AMD
processors; no test has run on Windows.
"""

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Gap
from wattloop.meters import windows_emi
from wattloop.meters.base import Context
from wattloop.meters.windows_emi import EmiEnergy, detect, inspect
from wattloop.testing.meter_contract import check_meter

SOURCE = Path(__file__).parent / "system_stubs" / "windows.c"
VERSION, SIZE, METADATA, MEASUREMENT = "4000", "4004", "4008", "400c"
JOULE = round(1 / 3.6e-9)
"""In picowatt-hours."""


def _name(text: str, characters: int) -> bytes:
    return text.encode("utf-16-le").ljust(2 * characters, b"\0")


def _metadata_v2(*channels: str) -> bytes:
    head = _name("Microsoft", 16) + _name("RAPL", 16) + struct.pack("<HH", 1, len(channels))
    names = [(channel + "\0").encode("utf-16-le") for channel in channels]
    return head + b"".join(struct.pack("<IH", 0, len(name)) + name for name in names)


def _device(folder: Path, number: int, version: int, metadata: bytes, *joules: float) -> Path:
    device = folder / str(number)
    device.mkdir(parents=True)
    (device / VERSION).write_bytes(struct.pack("<H", version))
    (device / SIZE).write_bytes(struct.pack("<I", len(metadata)))
    (device / METADATA).write_bytes(metadata)
    _measure(device, *joules)
    return device


def _measure(device: Path, *joules: float) -> None:
    parts = (struct.pack("<QQ", round(each * JOULE), 1_000) for each in joules)
    (device / MEASUREMENT).write_bytes(b"".join(parts))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path / "windows.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    stub = ctypes.CDLL(str(library))
    monkeypatch.setattr(windows_emi, "_libraries", lambda: (stub, stub))
    monkeypatch.setenv("WATTLOOP_EMI_STUB", str(tmp_path / "emi"))
    return tmp_path / "emi"


def test_rapl_channels_are_the_domains_of_the_processor(machine: Path) -> None:
    """Promise: joules from picowatt-hours; cores are inside their package, not added to it."""
    channels = [f"RAPL_Package0_{part}" for part in ("PKG", "PP0", "PP1", "DRAM")]
    device = _device(machine, 0, 2, _metadata_v2(*channels), 100.0, 60.0, 5.0, 7.0)
    (meter,) = detect(Context())
    found = {domain.name: domain for domain in meter.domains}
    assert list(found) == ["cpu:0/package", "cpu:0/core", "cpu:0/uncore", "dram:0"]
    assert found["cpu:0/core"].inside == "cpu:0/package"
    assert found["dram:0"].inside is None
    assert meter.read() == pytest.approx([100.0, 60.0, 5.0, 7.0])
    _measure(device, 101.5, 61.0, 5.0, 7.2)
    assert meter.read() == pytest.approx([101.5, 61.0, 5.0, 7.2])
    meter.close()


def test_handles_are_closed(machine: Path) -> None:
    _device(machine, 0, 2, _metadata_v2("RAPL_Package0_PKG"), 1.0)
    (meter,) = detect(Context())
    meter.close()
    stub, _ = windows_emi._libraries()
    assert stub.stub_open() == 0
    assert all(isinstance(reading, Gap) for reading in meter.read())


def test_a_meter_of_version_1_and_one_of_two_packages(machine: Path) -> None:
    name = "RAPL_Package1_PKG\0".encode("utf-16-le")
    first = struct.pack("<I", 0) + _name("Maker", 16) + _name("Model", 16)
    _device(machine, 0, 1, first + struct.pack("<HH", 1, len(name)) + name, 30.0)
    _device(machine, 1, 2, _metadata_v2("RAPL_Package0_PKG", "Battery"), 20.0, 4.0)
    (meter,) = detect(Context())
    assert [domain.name for domain in meter.domains] == ["cpu:1/package", "cpu:0/package"]
    assert meter.read() == pytest.approx([30.0, 20.0])


def test_a_machine_without_rapl_says_what_it_needs(machine: Path) -> None:
    _device(machine, 0, 2, _metadata_v2("Battery"), 4.0)
    with pytest.raises(MeterUnavailable, match="no energy counter of the processor") as refusal:
        detect(Context())
    assert refusal.value.parts == ("cpu",)
    assert "Windows 11" in refusal.value.remedy


def test_it_meets_the_contract(machine: Path) -> None:
    _device(machine, 0, 2, _metadata_v2("RAPL_Package0_PKG"), 1.0)
    check_meter(lambda: detect(Context())[0])


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {VERSION: b"\x07\0"},
        {VERSION: b"\x02"},
        {VERSION: b"\x02\0", SIZE: b"\xff\xff\xff\x7f"},
        {VERSION: b"\x02\0", SIZE: struct.pack("<I", 80), METADATA: b"\0" * 20},
        {VERSION: b"\x02\0", SIZE: struct.pack("<I", 68), METADATA: b"\xff" * 68},
        {VERSION: b"\x01\0", SIZE: struct.pack("<I", 72), METADATA: b"\xff" * 72},
    ],
)
def test_answers_that_are_torn_or_absurd_are_refused(answers: dict[str, bytes]) -> None:
    """Promise: an invalid answer of a driver affects its own device only, never memory."""

    def control(code: int, room: int) -> bytes:
        answer = answers.get(f"{code & 0xFFFF:04x}")
        if answer is None:
            raise OSError("not supported")
        return answer[:room]

    with pytest.raises((OSError, ValueError)):
        inspect(control)


def test_a_torn_measurement_is_a_gap() -> None:
    def answers(measurement: bytes) -> Callable[[int, int], bytes]:
        return lambda code, room: measurement

    device = windows_emi.EmiDevice(answers(b"\0" * 7), ("RAPL_Package0_PKG",))
    (reading,) = EmiEnergy([device]).read()
    assert isinstance(reading, Gap)
