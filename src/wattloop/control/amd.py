"""Power cap and clocks of AMD GPUs: files of the amdgpu driver."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from wattloop.control.file_lever import (
    LimitFiles,
    NumberLever,
    number_within,
    writable_or_why,
    write_file,
)
from wattloop.control.lever import Lever, LeverState, Setting, format_setting
from wattloop.core.errors import ConfigError, LeverError
from wattloop.hardware.host import Host, read_text
from wattloop.meters.amd_gpu import AmdCard, find_cards
from wattloop.meters.base import Context

MICROWATTS_PER_W = 1e6
LIMITS = ("min", "max", "default")
MANUAL = "manual"
LEVELS_PART, MODE_PART = "levels", "mode"
MODES = (
    *("auto", "low", "high", MANUAL, "profile_standard", "profile_min_sclk", "profile_min_mclk"),
    *("profile_peak", "perf_determinism"),
)
CLOCKS = (("sm_clock", "pp_dpm_sclk"), ("memory_clock", "pp_dpm_mclk"))


def detect(context: Context) -> Iterator[Lever]:
    """Find the levers of every card of the amdgpu driver, numbered as the meter numbers them."""
    for card in find_cards(context.host):
        for cap in sorted(card.device.glob("hwmon/hwmon*/power1_cap")):
            yield _power_cap(card, cap, context.host)
        for leaf, file in CLOCKS:
            clock = DpmClock(card, leaf, card.device / file, context.host)
            if clock.levels:
                yield clock


def _power_cap(card: AmdCard, cap: Path, host: Host) -> NumberLever:
    return NumberLever(
        f"{card.name}/power_limit",
        f"amd:{card.pci_address}",
        host.sysfs,
        cap,
        MICROWATTS_PER_W,
        "W",
        limits=LimitFiles(*(cap.with_name(f"power1_cap_{what}") for what in LIMITS)),
        tolerance=1.0,  # the firmware has a resolution of one watt
    )


class DpmClock(Lever):
    """One level of `pp_dpm_sclk` or `pp_dpm_mclk`, with the driver's mode set to `manual`.

    The driver shows the level in use, not the allowed ones, so the choice itself cannot be
    read back; the mode can. Restoring allows all levels again, then restores the mode, unless the
    other clock is still set: any mode but `manual` would release both.
    """

    reads_back = False
    shared_parts = frozenset((MODE_PART,))

    def __init__(self, card: AmdCard, leaf: str, path: Path, host: Host) -> None:
        self.name = f"{card.name}/{leaf}"
        self.device = f"amd:{card.pci_address}"
        self._path = path
        self._mode = card.device / "power_dpm_force_performance_level"
        self._host = host
        found = re.findall(r"^(\d+):\s*(\d+)\s*mhz", read_text(path), re.M | re.I)
        self.levels = {int(number): float(mhz) for number, mhz in found}
        """Number -> MHz, as in `1: 800Mhz *`; fixed for a card."""

    def state(self) -> LeverState:
        permission = writable_or_why(self._path)
        if permission[0]:
            permission = writable_or_why(self._mode)
        in_use = re.search(r"^\d+:\s*(\d+)\s*mhz\s*\*", read_text(self._path), re.M | re.I)
        return self._state(
            permission,
            value=float(in_use.group(1)) if in_use else None,
            unit="MHz",
            low=min(self.levels.values(), default=None),
            high=max(self.levels.values(), default=None),
            source=str(self._path),
            note=f"{len(self.levels)} levels, mode {read_text(self._mode) or 'unknown'}; "
            "a choice made by hand before (mode manual) is restored to all levels",
        )

    def read(self) -> Setting:
        """Return None: the allowed levels cannot be read. Raises LeverError if the card is lost."""
        if not read_text(self._path) or not read_text(self._mode):
            raise LeverError(f"{self.name}: {self._path} cannot be read: is the card still there?")
        return None

    def accepted(self, value: Setting) -> Setting:
        if value is None:
            return None
        clocks = self.levels.values()
        wanted = number_within(self.name, value, min(clocks), max(clocks), "MHz")
        return min(clocks, key=lambda mhz: (abs(mhz - wanted), mhz))

    def write(self, value: Setting) -> None:
        """Write the mode first: the driver accepts levels in `manual` only."""
        for part, own in sorted(self.parts_of(value).items(), reverse=True):
            self.write_part(part, own)

    def write_text(self, value: Setting) -> str:
        parts = sorted(self.parts_of(value).items(), reverse=True)
        return "\n".join(self.write_part_text(part, own) for part, own in parts)

    def parts(self) -> Mapping[str, Setting]:
        """Return the mode, and the levels, which cannot be read."""
        self.read()
        return {LEVELS_PART: None, MODE_PART: read_text(self._mode)}

    def parts_of(self, value: Setting) -> Mapping[str, Setting]:
        return {LEVELS_PART: value, MODE_PART: MANUAL}

    def check_part(self, part: str, value: Setting) -> None:
        if part == MODE_PART:
            if value not in MODES:
                raise ConfigError(
                    f"{self.name}: {format_setting(value)!r} is not a mode of the amdgpu driver"
                )
            return
        self.accepted(value)

    def write_part(self, part: str, value: Setting) -> None:
        if part == LEVELS_PART and read_text(self._mode) != MANUAL:
            write_file(self.name, self._mode, MANUAL)
        path, text = self._written(part, value)
        write_file(self.name, path, text)

    def write_part_text(self, part: str, value: Setting) -> str:
        path, text = self._written(part, value)
        return f"write {text} to {path}"

    def where(self) -> dict[str, str]:
        return {"WATTLOOP_SYSFS_ROOT": str(self._host.sysfs.absolute())}

    def _written(self, part: str, value: Setting) -> tuple[Path, str]:
        if part == MODE_PART:
            return self._mode, str(value)
        chosen = [number for number, mhz in self.levels.items() if value in (None, mhz)]
        return self._path, " ".join(map(str, chosen))
