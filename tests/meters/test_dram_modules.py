"""Promises of memory modules: read right from SMBIOS, dmidecode's text and the user's setting."""

import random
from pathlib import Path

import pytest
from tests.support.smbios import memory_device, other_structure, write_table

from wattloop.core.errors import CommandError, ConfigError
from wattloop.hardware.host import Host
from wattloop.meters.dram import (
    Dimm,
    describe,
    dimms_from_dmidecode,
    dimms_from_setting,
    dimms_from_smbios,
    parse_smbios,
    run_dmidecode,
)

DMIDECODE = """# dmidecode 3.3
Getting SMBIOS data from sysfs.

Handle 0x0011, DMI type 17, 92 bytes
Memory Device
	Array Handle: 0x000F
	Total Width: 72 bits
	Size: 32 GB
	Form Factor: DIMM
	Locator: DIMM_A1
	Bank Locator: NODE 0
	Type: DDR4
	Type Detail: Synchronous Registered (Buffered)
	Speed: 3200 MT/s
	Configured Memory Speed: 2933 MT/s

Handle 0x0012, DMI type 17, 92 bytes
Memory Device
	Size: No Module Installed
	Form Factor: Unknown
	Locator: DIMM_A2
	Type: Unknown
	Speed: Unknown

Handle 0x0013, DMI type 17, 92 bytes
Memory Device
	Size: 16384 MB
	Form Factor: SODIMM
	Locator: DIMM_A3
	Type: DDR5
	Speed: 4800 MT/s

Handle 0x0014, DMI type 17, 92 bytes
Memory Device
	Size: 126 GB
	Locator: PMEM_1
	Type: Logical non-volatile device
	Memory Technology: Intel Optane DC persistent memory

Handle 0x0015, DMI type 20, 35 bytes
Memory Device Mapped Address
	Range Size: 32 GB
"""


def test_reads_modules_from_the_firmware_table(tmp_path: Path) -> None:
    """Size, technology, form, speed and locator of each installed module; other types skipped."""
    write_table(
        tmp_path,
        other_structure(),
        memory_device(32 * 1024, locator="DIMM_A1"),
        memory_device(0, locator="DIMM_A2"),
        memory_device(16 * 1024, type_code=0x22, form_code=0x0D, locator="B", speed_mts=4800),
    )
    assert dimms_from_smbios(Host(sysfs=tmp_path)) == (
        Dimm(32, "DDR4", "DIMM", 3200, "DIMM_A1"),
        Dimm(16, "DDR5", "SODIMM", 4800, "B"),
    )


@pytest.mark.parametrize("capacity_gib", [16, 24, 31, 32, 48, 64, 128, 256, 512])
def test_sizes_above_the_short_field_use_the_extended_one(capacity_gib: int) -> None:
    """32 GiB and more do not fit in 15 bits of MiB."""
    (dimm,) = parse_smbios(memory_device(capacity_gib * 1024))
    assert dimm.capacity_gib == capacity_gib


def test_size_in_kibibytes() -> None:
    """The top bit of the size means KiB."""
    (dimm,) = parse_smbios(memory_device(1, size_word=0x8000 | 512))
    assert dimm.capacity_gib == pytest.approx(512 / 1024**2)


@pytest.mark.parametrize("size_mib", [0, None])
def test_empty_and_unknown_slots_are_not_modules(size_mib: int | None) -> None:
    """Only installed modules draw power."""
    assert parse_smbios(memory_device(size_mib)) == ()


@pytest.mark.parametrize("code", [0x09, 0x1F])
def test_flash_and_persistent_modules_are_not_dram(code: int) -> None:
    """The same structure also describes modules that are not main memory."""
    assert parse_smbios(memory_device(8192, type_code=code)) == ()


def test_optane_module_is_not_dram() -> None:
    """Persistent modules call themselves DDR4, but their technology differs."""
    assert parse_smbios(memory_device(128 * 1024, technology_code=0x07)) == ()


def test_short_structure_of_old_firmware() -> None:
    """SMBIOS 2.1 ends before the speed: the module still counts."""
    (dimm,) = parse_smbios(memory_device(8192, type_code=0x18, length=0x15))
    assert (dimm.capacity_gib, dimm.technology, dimm.speed_mts) == (8, "DDR3", None)


def test_extended_speed() -> None:
    """Speeds beyond 65,535 MT/s have a field of their own."""
    (dimm,) = parse_smbios(memory_device(8192, speed_mts=70_000))
    assert dimm.speed_mts == 70_000


def test_reads_single_entries_where_there_is_no_table(tmp_path: Path) -> None:
    """Older kernels show one file per structure; they come in the order of their numbers."""
    for number in (10, 2):
        entry = tmp_path / "firmware" / "dmi" / "entries" / f"17-{number}"
        entry.mkdir(parents=True)
        (entry / "raw").write_bytes(memory_device(number * 1024, locator=f"SLOT{number}"))
    found = dimms_from_smbios(Host(sysfs=tmp_path))
    assert [dimm.locator for dimm in found] == ["SLOT2", "SLOT10"]


def test_absent_tables_are_empty(tmp_path: Path) -> None:
    """A machine without SMBIOS has an empty list, which is not an error."""
    assert dimms_from_smbios(Host(sysfs=tmp_path)) == ()


def test_broken_tables_never_raise() -> None:
    """Cut anywhere and with random bytes changed, parsing ends without an exception."""
    whole = other_structure() + memory_device(32 * 1024) + memory_device(64 * 1024)
    chance = random.Random(5)
    for cut in range(len(whole)):
        parse_smbios(whole[:cut])
    for _ in range(300):
        spoiled = bytearray(whole)
        for _ in range(4):
            spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
        parse_smbios(bytes(spoiled))


def test_reads_what_dmidecode_prints() -> None:
    """GB and MB, empty slots, and persistent memory that is not DRAM."""
    assert dimms_from_dmidecode(DMIDECODE) == (
        Dimm(32, "DDR4", "DIMM", 3200, "DIMM_A1"),
        Dimm(16, "DDR5", "SODIMM", 4800, "DIMM_A3"),
    )
    assert dimms_from_dmidecode("") == ()


def test_dmidecode_is_run_on_request(tmp_path: Path) -> None:
    """A program of that name is started for real, and its own error message is shown."""
    program = tmp_path / "dmidecode"
    (tmp_path / "text").write_text(DMIDECODE)
    program.write_text(f'#!/bin/sh\n[ "$2" = 17 ] && cat {tmp_path / "text"}\n')
    program.chmod(0o755)
    assert len(run_dmidecode(str(program))) == 2
    program.write_text("#!/bin/sh\necho '/dev/mem: Permission denied' >&2; exit 1\n")
    with pytest.raises(CommandError, match="Permission denied; run it with sudo"):
        run_dmidecode(str(program))
    program.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(CommandError, match="lists no memory module"):
        run_dmidecode(str(program))
    with pytest.raises(CommandError, match="not installed") as caught:
        run_dmidecode(str(tmp_path / "absent"))
    assert caught.value.exit_code == 127


@pytest.mark.parametrize(
    ("text", "capacities"),
    [
        ("8x32", [32] * 8),
        ("4x16+2x32", [16] * 4 + [32] * 2),
        (" 2 x 8 GiB ", [8, 8]),
        ("1X0.5", [0.5]),
    ],
)
def test_user_writes_count_and_capacity(text: str, capacities: list[float]) -> None:
    """COUNTxCAPACITY in GiB, several of them joined by a plus sign."""
    assert [dimm.capacity_gib for dimm in dimms_from_setting(text)] == capacities


@pytest.mark.parametrize(
    "text", ["8", "x32", "8x", "0x32", "8x0", "8x32+", "eight", "8x32,4x16", "-1x4"]
)
def test_bad_setting_shows_the_form(text: str) -> None:
    """The message repeats the setting and shows the valid form."""
    with pytest.raises(ConfigError, match="such as 8x32, or 4x16"):
        dimms_from_setting(text)


def test_description_counts_modules_of_a_kind() -> None:
    """The text reads `4 x 16 GiB DDR4 + 2 x 32 GiB DDR4`."""
    dimms = [Dimm(16, "DDR4")] * 4 + [Dimm(32, "DDR4")] * 2
    assert describe(dimms) == "4 x 16 GiB DDR4 + 2 x 32 GiB DDR4"
