"""SMBIOS tables built byte by byte, for tests of their readers."""

import struct
from pathlib import Path


def memory_device(
    size_mib: int | None,
    *,
    locator: str = "DIMM_A1",
    type_code: int = 0x1A,
    form_code: int = 0x09,
    speed_mts: int = 3200,
    technology_code: int = 0x03,
    length: int = 0x5C,
    size_word: int | None = None,
) -> bytes:
    """Return a type 17 structure: one slot (`size_mib` None: unknown; 0: empty)."""
    body = bytearray(0x5C)
    body[0], body[1] = 17, length
    if size_word is None:
        size_word = 0xFFFF if size_mib is None else min(size_mib, 0x7FFF)
    struct.pack_into("<H", body, 0x0C, size_word)
    if size_word == 0x7FFF:
        struct.pack_into("<I", body, 0x1C, size_mib or 0)
    body[0x28] = technology_code
    body[0x0E], body[0x10], body[0x12] = form_code, 1, type_code
    struct.pack_into("<H", body, 0x15, min(speed_mts, 0xFFFF))
    if speed_mts >= 0xFFFF:
        struct.pack_into("<I", body, 0x54, speed_mts)
    return bytes(body[:length]) + locator.encode() + b"\0BANK 0\0\0"


def other_structure() -> bytes:
    """Return a structure of another type, without strings."""
    return bytes((4, 6, 0, 0, 1, 2)) + b"\0\0"


def end_of_table() -> bytes:
    """Return the structure that closes a table."""
    return bytes((127, 4, 0xFF, 0xFE)) + b"\0\0"


def write_table(sysfs: Path, *structures: bytes) -> Path:
    """Write a whole table to the kernel's path."""
    path = sysfs / "firmware" / "dmi" / "tables" / "DMI"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(structures) + end_of_table())
    return path
