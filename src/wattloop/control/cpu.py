"""Levers of CPUs: RAPL power limits, governor and frequency bounds."""

import math
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from wattloop.control.file_lever import (
    LimitFiles,
    NumberLever,
    read_number,
    writable_or_why,
    write_file,
)
from wattloop.control.lever import Lever, LeverState, Setting, WriteOrderError, format_setting
from wattloop.core.errors import ConfigError, LeverError
from wattloop.hardware.host import Host, read_text
from wattloop.meters.base import Context
from wattloop.meters.rapl import Zone, all_zones

MICROWATTS_PER_W = 1e6
STEP_W = 0.126
"""Resolution of the registers, an eighth of a watt: a value is read back rounded to it."""


def detect_power_limits(context: Context) -> Iterator[Lever]:
    """Find `constraint_N_power_limit_uw` of every zone, named as the meter names the zone."""
    for zone in all_zones(context.host):
        for path in sorted(zone.directory.glob("constraint_*_power_limit_uw")):
            yield _lever(context.host, zone, path)


def _lever(host: Host, zone: Zone, path: Path) -> NumberLever:
    constraint = path.name.removesuffix("_power_limit_uw")
    kind = read_text(path.with_name(f"{constraint}_name")) or constraint.rpartition("_")[2]
    # A package has the same limits a second time where its registers are memory-mapped.
    second = "_mmio" if "mmio" in zone.directory.name else ""
    disabled = read_text(zone.directory / "enabled") == "0"
    high = path.with_name(f"{constraint}_max_power_uw")
    return NumberLever(
        f"{zone.name.removesuffix('/package')}/power_limit_{kind}{second}",
        f"rapl:{zone.directory.name}",
        host.sysfs,
        path,
        MICROWATTS_PER_W,
        "W",
        # the kernel's maximum of the long-term limit is the package's thermal design power
        limits=LimitFiles(path.with_name(f"{constraint}_min_power_uw"), high, high),
        tolerance=STEP_W,
        note="the zone is disabled: the limit is not enforced" if disabled else "",
    )


# Policies of cpufreq: groups of cores that share a clock, and levers that set all of them.
#
# Each policy is restored to its own previous value, even where they differed.
DEVICE = "cpu"


class PolicyLever(Lever):
    """A lever that is a file of the same name in every policy."""

    device = DEVICE
    leaf: str

    def __init__(self, policies: Sequence[Path], host: Host) -> None:
        self._policies = {policy_name(path): path for path in policies}
        self._host = host

    def read(self) -> Setting:
        """Return the value that all policies share; where they differ, all values as text."""
        values = list(dict.fromkeys(self.parts().values()))
        if len(values) == 1:
            return values[0]
        return ", ".join(sorted(format_setting(value) for value in values))

    def parts(self) -> Mapping[str, Setting]:
        return {part: self.read_part(part) for part in self._policies}

    def read_part(self, part: str) -> Setting:
        return self._read(part, self._file(part))

    def write(self, value: Setting) -> None:
        for part, own in self.parts_of(value).items():
            self.write_part(part, own)

    def write_part(self, part: str, value: Setting) -> None:
        write_file(f"{self.name} of {part}", self._file(part), self._text(value))

    def write_part_text(self, part: str, value: Setting) -> str:
        return f"write {self._text(value)} to {self._file(part)}"

    def write_text(self, value: Setting) -> str:
        return "\n".join(self.write_part_text(p, own) for p, own in self.parts_of(value).items())

    def where(self) -> dict[str, str]:
        return {"WATTLOOP_SYSFS_ROOT": str(self._host.sysfs.absolute())}

    @abstractmethod
    def _read(self, part: str, path: Path) -> Setting: ...

    @abstractmethod
    def _text(self, value: Setting) -> str: ...

    def _file(self, part: str) -> Path:
        policy = self._policies.get(part)
        if policy is None:
            raise LeverError(f"{self.name}: {part} is gone: its cores have been taken offline")
        return policy / self.leaf

    def _permission(self) -> tuple[bool, str, str]:
        """Return the permission of the first policy that is not writable, with a remedy for all."""
        for policy in self._policies.values():
            writable, reason, remedy = writable_or_why(policy / self.leaf)
            if not writable:
                every = str(policy.parent / "*" / self.leaf)
                return False, reason, remedy.replace(str(policy / self.leaf), every)
        return True, "", ""

    def _cores(self) -> str:
        count = len(self._policies)
        return f"{count} policies" if count > 1 else "1 policy"


def policy_name(directory: Path) -> str:
    """Return `policy0`, or `cpu0` on kernels without policies."""
    return directory.parent.name if directory.name == "cpufreq" else directory.name


def policies(host: Host) -> list[Path]:
    """Return the directories of all policies, in numeric order."""
    root = host.sysfs / "devices/system/cpu"
    found = list(root.glob("cpufreq/policy*")) or list(root.glob("cpu[0-9]*/cpufreq"))
    return sorted(found, key=lambda path: int("".join(re.findall(r"\d", policy_name(path)))))


KHZ_PER_MHZ = 1e3


def detect_policies(context: Context) -> Iterator[Lever]:
    found = policies(context.host)
    governed = [p for p in found if (p / "scaling_governor").exists()]
    if governed:
        yield Governor(governed, context.host)
    for bound in ("min", "max"):
        bounded = [p for p in found if (p / f"scaling_{bound}_freq").exists()]
        if bounded:
            yield FrequencyBound(bound, bounded, context.host)


class Governor(PolicyLever):
    """The lever of `scaling_governor`."""

    name = "cpu/governor"
    leaf = "scaling_governor"

    def state(self) -> LeverState:
        values = {read_text(path / self.leaf) for path in self._policies.values()}
        driver = read_text(next(iter(self._policies.values())) / "scaling_driver") or "unknown"
        return self._state(
            self._permission(),
            value=", ".join(sorted(value for value in values if value)) or None,
            unit="name",
            choices=self._choices(),
            source=str(next(iter(self._policies.values())) / self.leaf),
            note=f"{self._cores()}, driver {driver}",
        )

    def accepted(self, value: Setting) -> Setting:
        choices = self._choices()
        if value not in choices:
            known = ", ".join(choices) or "none"
            raise ConfigError(
                f"{self.name}: no governor {format_setting(value)!r} here; there are: {known}"
            )
        return value

    def parts_of(self, value: Setting) -> Mapping[str, Setting]:
        return dict.fromkeys(self._policies, value)

    def check_part(self, part: str, value: Setting) -> None:
        choices = read_text(self._file(part).with_name("scaling_available_governors")).split()
        if value not in choices:
            raise ConfigError(
                f"{self.name} of {part}: {format_setting(value)!r} is not among {choices}"
            )

    def _choices(self) -> tuple[str, ...]:
        lists = [
            read_text(path / "scaling_available_governors").split()
            for path in self._policies.values()
        ]
        return tuple(name for name in lists[0] if all(name in other for other in lists))

    def _read(self, part: str, path: Path) -> Setting:
        text = read_text(path)
        if not text:
            raise LeverError(f"{self.name} of {part}: {path} cannot be read")
        return text

    def _text(self, value: Setting) -> str:
        return str(value)


class FrequencyBound(PolicyLever):
    """The lever of `scaling_min_freq` or `scaling_max_freq`.

    The lower bound never exceeds the upper one: a write that would do so is postponed until the
    other bound has changed.
    """

    tolerance = 100.0
    """Some drivers round to their bus clock."""

    def __init__(self, bound: str, policies: Sequence[Path], host: Host) -> None:
        super().__init__(policies, host)
        self.name = f"cpu/{bound}_frequency"
        self.leaf = f"scaling_{bound}_freq"
        self._is_min = bound == "min"
        self._other_name = f"cpu/{'max' if self._is_min else 'min'}_frequency"
        self._other_leaf = f"scaling_{'max' if self._is_min else 'min'}_freq"

    def state(self) -> LeverState:
        paths = list(self._policies.values())
        values = {read_number(path / self.leaf, KHZ_PER_MHZ) for path in paths}
        known = sorted(value for value in values if value is not None)
        low, high = self._limits(paths)
        note = self._cores()
        if len(known) > 1:
            note += f" that differ, {known[0]:g} to {known[-1]:g} MHz"
        return self._state(
            self._permission(),
            value=None if not known or None in values else known[0 if self._is_min else -1],
            unit="MHz",
            low=low,
            high=high,
            default=low if self._is_min else high,
            source=str(paths[0] / self.leaf),
            note=note,
        )

    def accepted(self, value: Setting) -> Setting:
        """Accept a value within the limits of any policy; the others get their nearest value."""
        low, high = self._limits(list(self._policies.values()))
        if not isinstance(value, float | int) or math.isnan(value):
            raise ConfigError(f"{self.name} takes a number of MHz, not {format_setting(value)!r}")
        if low is None or high is None or not low <= value <= high:
            raise ConfigError(
                f"{self.name}: {value:g} MHz is outside the device's limits, "
                f"{low or 0:g} to {high or 0:g} MHz"
            )
        return float(value)

    def conflict(self, settings: Mapping[str, Setting]) -> str:
        """Refuse a lower bound above the upper one, whichever of them is set."""
        mine = self.parts_of(settings[self.name])
        for part, path in self._policies.items():
            other = settings.get(self._other_name)
            if isinstance(other, float | int):
                limit = self.parts_of(other)[part]
            else:
                limit = read_number(path / self._other_leaf, KHZ_PER_MHZ)
            own = mine[part]
            if isinstance(own, float) and isinstance(limit, float) and self._passes(own, limit):
                return (
                    f"{self.name}={own:g} MHz would pass {self._other_name}={limit:g} MHz of "
                    f"{part}; set both"
                )
        return ""

    def parts_of(self, value: Setting) -> Mapping[str, Setting]:
        """Return each policy's nearest value within its own limits."""
        number = self._number(value)
        parts: dict[str, Setting] = {}
        for name, path in self._policies.items():
            low, high = self._limits([path])
            parts[name] = float(min(max(number, low or number), high or number))
        return parts

    def check_part(self, part: str, value: Setting) -> None:
        low, high = self._limits([self._file(part).parent])
        inside = isinstance(value, float | int) and (low or 0) <= value <= (high or value)
        if not inside:
            given = format_setting(value, "MHz")
            raise ConfigError(f"{self.name} of {part}: {given} is outside {low:g} to {high:g} MHz")

    def write_part(self, part: str, value: Setting) -> None:
        other = read_number(self._file(part).with_name(self._other_leaf), KHZ_PER_MHZ)
        if isinstance(value, float | int) and other is not None and self._passes(value, other):
            raise WriteOrderError(
                f"{self.name} of {part}: {value:g} MHz would pass {self._other_name}, {other:g} MHz"
            )
        super().write_part(part, value)

    def _passes(self, own: float, other: float) -> bool:
        return own > other if self._is_min else own < other

    @staticmethod
    def _limits(policies: Sequence[Path]) -> tuple[float | None, float | None]:
        lows = [read_number(path / "cpuinfo_min_freq", KHZ_PER_MHZ) for path in policies]
        highs = [read_number(path / "cpuinfo_max_freq", KHZ_PER_MHZ) for path in policies]
        return (
            min((low for low in lows if low is not None), default=None),
            max((high for high in highs if high is not None), default=None),
        )

    def _read(self, part: str, path: Path) -> Setting:
        value = read_number(path, KHZ_PER_MHZ)
        if value is None:
            raise LeverError(f"{self.name} of {part}: {path} holds no number")
        return value

    def _text(self, value: Setting) -> str:
        return str(round(self._number(value) * KHZ_PER_MHZ))
