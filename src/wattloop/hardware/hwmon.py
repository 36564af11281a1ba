"""Sensor chips of the kernel's `class/hwmon`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wattloop.hardware.host import Host
from wattloop.hardware.sysfs_file import read_text

HWMON = "class/hwmon"


class Chip(NamedTuple):
    """One hwmon directory: its driver's name and its files."""

    name: str
    directory: Path

    def text(self, leaf: str) -> str:
        """Stripped content of one of its files; empty when unreadable."""
        return read_text(self.directory / leaf)

    def channels(self, pattern: str) -> Iterator[tuple[int, Path]]:
        """Files such as `energy*_input`, with the number in the star's place, in its order."""
        before, _, after = pattern.partition("*")
        expression = re.compile(re.escape(before) + r"(\d+)" + re.escape(after))
        found = []
        for path in _files(self.directory):
            match = expression.fullmatch(path.name)
            if match:
                found.append((int(match.group(1)), path))
        yield from sorted(found)


def find_chips(host: Host) -> list[Chip]:
    """Every chip, in the order of their numbers (which a reboot may change)."""
    chips = []
    for directory in _files(host.sysfs / HWMON):
        chip = Chip("", directory)
        # Old drivers keep their files one level down.
        name = chip.text("name") or chip.text("device/name")
        if name:
            home = directory if chip.text("name") else directory / "device"
            chips.append(Chip(name, home))
    return sorted(chips, key=lambda chip: _number(chip.directory))


def _files(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _number(directory: Path) -> int:
    match = re.search(r"hwmon(\d+)", str(directory))
    return int(match.group(1)) if match else 0
